#include "bench/heap/epoch_taker.h"

namespace pagetide::bench {

using Clock = std::chrono::steady_clock;

Result<std::unique_ptr<EpochTaker>> EpochTaker::start(Arena& arena, const Plan& plan) {
  auto taker = std::unique_ptr<EpochTaker>(new EpochTaker(arena, plan));
  arena.tracker().reserve(arena.region().watch(), taker->collected_);
  if (auto r = taker->take(); !r) return propagate(r);
  taker->thread_ = std::thread([t = taker.get()] { t->run(); });
  return taker;
}

EpochTaker::~EpochTaker() {
  if (thread_.joinable()) thread_.join();
}

Result<std::size_t> EpochTaker::finish() {
  thread_.join();
  if (!outcome_) return propagate(outcome_);
  return pages_;
}

Result<void> EpochTaker::take() {
  auto r = arena_.tracker().collect_into(arena_.region().watch(), CollectMode::take, collected_);
  if (r && collected_.poisoned) return failure(ErrorCode::system_failure, collected_.cause);
  return r;
}

void EpochTaker::run() {
  const Clock::time_point start = Clock::now();
  for (std::size_t i = 1; i <= plan_.count && outcome_; ++i) {
    std::this_thread::sleep_until(start + i * plan_.period);
    outcome_ = take();
    pages_ += collected_.written.count();
  }
}

}  // namespace pagetide::bench
