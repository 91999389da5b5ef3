// Where a heap puts what is written all the time decides what adaptive arming can save: it leaves
// blocks of 2 MiB unarmed, with all that lies in them.
//
//   bench_hot_classes
//
// 100 000 objects are written at random, 100 000 times an epoch; beside them lie as many others, of
// which 800 are written. A row is an epoch: its writes, with their faults, and the take.
//   apart   they are of two size classes, each of which the heap keeps together
//   mixed   they are of one size class, in turn, a span of these and a span of those
//   armed, adaptive   HotPageOptions off and on
// `ratio` is the time of the armed one divided by it. `stale_pages` were reported though nobody had
// written to them: each costs a consumer a comparison or a hash (0.9 us where it was measured).

#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/support.h"
#include "pagetide/allocator/arena.h"
#include "pagetide/base/bytes.h"

namespace {

using namespace pagetide;
using namespace pagetide::bench;
using namespace literals;

constexpr std::size_t kObjects = 100'000;
constexpr std::size_t kHotWrites = 100'000;
constexpr std::size_t kOtherWrites = 800;
constexpr std::size_t kHotBytes = 256;
constexpr int kWarmUpEpochs = 10;
constexpr int kEpochs = 20;

struct EpochCost {
  double seconds = 0;
  double reported_pages = 0;
  double stale_pages = 0;
};

class Population {
 public:
  static Result<std::unique_ptr<Population>> create(bool apart, bool adaptive) {
    ArenaOptions options;
    options.name = "bench_hot_classes";
    options.reserve_bytes = 1_GiB;
    options.backend = BackendKind::uffd_async;
    options.hot_pages.enabled = adaptive;
    auto arena = Arena::create(options);
    if (!arena) return propagate(arena);
    std::unique_ptr<Population> population(new Population(std::move(*arena)));
    if (auto r = population->fill(apart ? kHotBytes + kHotBytes / 4 : kHotBytes); !r) {
      return propagate(r);
    }
    return population;
  }

  // One epoch, with what the consumer tells the tracker about it.
  Result<EpochCost> run_epoch() {
    written_.clear();
    Result<Collected> collected;
    EpochCost cost;
    cost.seconds = seconds_of([&] {
      for (std::size_t i = 0; i < kHotWrites; ++i) write(hot_);
      for (std::size_t i = 0; i < kOtherWrites; ++i) write(others_);
      collected = arena_.tracker().collect(arena_.region().watch(), CollectMode::take);
    });
    if (!collected) return propagate(collected);
    DirtyBitmap unchanged = collected->written;
    const std::uintptr_t first = arena_.region().tracked_range().begin;
    for (const void* object : written_) {
      unchanged.reset_range(PageRange::covering(ByteRange::of(object, kHotBytes), {first, 1_GiB}));
    }
    arena_.tracker().report_unchanged(arena_.region().watch(), unchanged);
    cost.reported_pages = static_cast<double>(collected->written.count());
    cost.stale_pages = static_cast<double>(unchanged.count());
    return cost;
  }

 private:
  explicit Population(Arena arena) : arena_(std::move(arena)) {}

  Result<void> fill(std::size_t other_bytes) {
    constexpr std::size_t kTurn = layout::kSpanBytes / kHotBytes;
    while (hot_.size() < kObjects) {
      if (auto r = add(kTurn, kHotBytes, hot_); !r) return r;
      if (auto r = add(kTurn, other_bytes, others_); !r) return r;
    }
    return {};
  }
  Result<void> add(std::size_t count, std::size_t bytes, std::vector<void*>& objects) {
    for (std::size_t i = 0; i < count; ++i) {
      auto block = arena_.allocate(bytes);
      if (!block) return propagate(block);
      std::memset(*block, 1, bytes);
      objects.push_back(*block);
    }
    return {};
  }
  void write(const std::vector<void*>& objects) {
    void* const object = objects[random_() % objects.size()];
    std::memset(object, static_cast<int>(random_()), kHotBytes);
    written_.push_back(object);
  }

  Arena arena_;
  std::vector<void*> hot_;
  std::vector<void*> others_;
  std::vector<const void*> written_;
  std::minstd_rand random_{1};
};

Result<EpochCost> median_epoch(Population& population) {
  std::vector<double> seconds;
  EpochCost last;
  for (int epoch = 0; epoch < kWarmUpEpochs + kEpochs; ++epoch) {
    auto cost = population.run_epoch();
    if (!cost) return cost;
    last = *cost;
    if (epoch >= kWarmUpEpochs) seconds.push_back(cost->seconds);
  }
  last.seconds = median(std::move(seconds));
  return last;
}

void hot_classes(benchmark::State& state, bool apart, bool adaptive) {
  for (auto _ : state) {
    double armed_seconds = 0;
    EpochCost cost;
    for (const bool adapts : {false, adaptive}) {
      auto population = Population::create(apart, adapts);
      if (!population) return skip(state, population.error());
      auto measured = median_epoch(**population);
      if (!measured) return skip(state, measured.error());
      cost = *measured;
      if (!adapts) armed_seconds = cost.seconds;
    }
    state.SetIterationTime(cost.seconds);
    set_counter(state, "ratio", armed_seconds / cost.seconds);
    set_counter(state, "reported_pages", cost.reported_pages);
    set_counter(state, "stale_pages", cost.stale_pages);
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (const bool apart : {true, false}) {
    for (const bool adaptive : {false, true}) {
      const std::string name = std::string("hot_classes/") + (apart ? "apart" : "mixed") +
                               (adaptive ? "/adaptive" : "/armed");
      benchmark::RegisterBenchmark(
          name.c_str(), [=](benchmark::State& state) { hot_classes(state, apart, adaptive); })
          ->Apply(series)
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
