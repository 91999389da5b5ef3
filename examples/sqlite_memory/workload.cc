#include "examples/sqlite_memory/workload.h"

#include <utility>

namespace sqlite_memory {

using pagetide::Result;

Workload::Workload(BankState& state, pagetide::Safepoints& points)
    : state_(state), points_(points), thread_([this] { run(); }) {}

Workload::~Workload() {
  (void)end();
}

std::uint64_t Workload::end() {
  is_to_end_ = true;
  if (thread_.joinable()) thread_.join();
  return transactions();
}

void Workload::run() {
  pagetide::Mutator mutator(points_, "workload");
  while (!is_to_end_) {
    if (auto done = run_transaction(state_); !done) {
      error_ = std::move(done).error();
      transactions_ = kFailed;
      transactions_.notify_one();
      return;
    }
    ++transactions_;
    transactions_.notify_one();
    mutator.poll();
  }
}

Result<void> Workload::wait_for(std::uint64_t more) const {
  std::uint64_t now = transactions_;
  const std::uint64_t wanted = now + more;
  while (now < wanted) {
    transactions_.wait(now);
    now = transactions_;
  }
  if (now == kFailed) return tl::unexpected<pagetide::Error>(*error_);
  return {};
}

}  // namespace sqlite_memory
