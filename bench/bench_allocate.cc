// What an arena's heap costs against glibc's malloc in the same process, and how many pages it
// dirties in an epoch.
//
//   bench_allocate --benchmark_filter='churn'
//
// Times are for one operation: a pair of allocate and free, or one insertion into a map. With
// two threads: elapsed time divided by the operations of both.
// `ratio` is the peer's time divided by ours: above 1 Pagetide is the faster one, below 1 it
// loses. The first eight bytes of every block are written. `clears` and `keeps` are the two
// policies of an arena: ClearPolicy::on_free (the default), which clears each freed block as
// malloc does not, and ClearPolicy::never. The process has had a second thread before anything
// is measured: glibc's locks, on both sides, skip atomic operations in one that never had, and
// results would depend on the order of the benchmarks.

#include <benchmark/benchmark.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory_resource>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "bench/object_population.h"
#include "bench/support.h"
#include "pagetide/allocator/arena.h"

namespace {

using namespace pagetide;
using namespace pagetide::bench;
using namespace pagetide::literals;

constexpr const char* kPeer = "glibc malloc";

struct FromArena {
  Arena& arena;
  void* allocate(std::size_t bytes) const { return arena.allocate(bytes).value_or(nullptr); }
  void release(void* block) const { arena.deallocate(block); }
};

struct FromMalloc {
  void* allocate(std::size_t bytes) const { return std::malloc(bytes); }
  void release(void* block) const { std::free(block); }
};

Result<Arena> new_arena(ClearPolicy clear, BackendKind backend = BackendKind::automatic) {
  ArenaOptions options;
  options.name = "bench";
  options.reserve_bytes = 4_GiB;
  options.clear = clear;
  options.backend = backend;
  return Arena::create(options);
}

// False for nullptr.
bool touch(void* block) {
  if (block == nullptr) return false;
  *static_cast<volatile std::uint64_t*>(block) = 1;
  return true;
}

tl::unexpected<Error> exhausted() {
  return failure(ErrorCode::out_of_memory, "one of the heaps is exhausted");
}

// --- pairs and batches --------------------------------------------------------------------------

// `work` is called with a source of memory and the bytes of a block, and does that many pairs.
template <typename Work>
void compare_blocks(benchmark::State& state, ClearPolicy clear, std::size_t pairs, Work work) {
  auto arena = new_arena(clear);
  if (!arena) return skip(state, arena.error());
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto run = [&](const auto& source) -> Result<double> {
    bool complete = true;
    const double seconds = seconds_of([&] { complete = work(source, bytes, pairs); });
    if (!complete) return exhausted();
    return seconds;
  };
  compare(
      state, kPeer,
      {.count = 11, .operations = static_cast<double>(pairs), .unit = bench::Unit::ns},
      [&] { return run(FromArena{*arena}); }, [&] { return run(FromMalloc{}); });
}

template <typename Source>
bool allocate_and_free(const Source& source, std::size_t bytes, std::size_t pairs) {
  bool complete = true;
  for (std::size_t i = 0; i < pairs && complete; ++i) {
    void* block = source.allocate(bytes);
    complete = touch(block);
    source.release(block);
  }
  return complete;
}

// Batches of blocks that live at the same time, freed in reverse order.
template <typename Source>
bool allocate_and_free_batches(const Source& source, std::size_t bytes, std::size_t pairs) {
  constexpr std::size_t kBatch = 1000;
  std::array<void*, kBatch> blocks{};
  bool complete = true;
  for (std::size_t done = 0; done < pairs; done += kBatch) {
    for (void*& block : blocks) {
      block = source.allocate(bytes);
      complete = touch(block) && complete;
    }
    for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) source.release(*block);
  }
  return complete;
}

void pair(benchmark::State& state, ClearPolicy clear) {
  // A large block comes from the system and goes back to it: many times the cost.
  const std::size_t pairs = state.range(0) > 32 * 1024 ? 500 : 20000;
  compare_blocks(state, clear, pairs, [](const auto& source, std::size_t bytes, std::size_t n) {
    return allocate_and_free(source, bytes, n);
  });
}

void batch(benchmark::State& state, ClearPolicy clear) {
  compare_blocks(state, clear, 20000, [](const auto& source, std::size_t bytes, std::size_t n) {
    return allocate_and_free_batches(source, bytes, n);
  });
}

// --- churn --------------------------------------------------------------------------------------

// The blocks of one thread.
template <typename Source>
class LiveBlocks {
 public:
  LiveBlocks(Source source, std::size_t count, std::uint64_t seed)
      : source_(source), random_(seed), blocks_(count) {}
  LiveBlocks(LiveBlocks&&) noexcept = default;
  LiveBlocks(const LiveBlocks&) = delete;
  LiveBlocks& operator=(const LiveBlocks&) = delete;
  LiveBlocks& operator=(LiveBlocks&&) = delete;
  ~LiveBlocks() {
    for (void* block : blocks_) source_.release(block);
  }

  bool fill() {
    bool complete = true;
    for (void*& block : blocks_) {
      block = source_.allocate(size());
      complete = touch(block) && complete;
    }
    return complete;
  }
  // Frees a random block and allocates one of a random size in its place, so many times.
  bool churn(std::size_t times) {
    bool complete = true;
    for (std::size_t i = 0; i < times; ++i) {
      void*& block = blocks_[random_() % blocks_.size()];
      source_.release(block);
      block = source_.allocate(size());
      complete = touch(block) && complete;
    }
    return complete;
  }

 private:
  std::size_t size() { return 16 + random_() % 1009; }  // up to 1 KiB

  Source source_;
  std::mt19937_64 random_;
  std::vector<void*> blocks_;
};

// The seconds from the common start to the end of the last thread.
double seconds_of_threads(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::barrier start(static_cast<std::ptrdiff_t>(count + 1));
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      work(i);
    });
  }
  start.arrive_and_wait();
  return seconds_of([&] {
    for (std::thread& thread : threads) thread.join();
  });
}

// One side of a churn: threads that each churn blocks of their own from one source.
template <typename Source>
class ChurnSide {
 public:
  ChurnSide(Source source, std::size_t threads) {
    for (std::size_t i = 0; i < threads; ++i) sets_.emplace_back(source, kLive, i + 1);
  }
  bool fill() {
    bool complete = true;
    for (auto& set : sets_) complete = set.fill() && complete;
    return complete;
  }
  Result<double> run() {
    std::atomic<bool> complete{true};
    const double seconds = seconds_of_threads(sets_.size(), [&](std::size_t i) {
      if (!sets_[i].churn(kTimes)) complete = false;
    });
    if (!complete) return exhausted();
    return seconds;
  }

  static constexpr std::size_t kLive = 50'000;
  static constexpr std::size_t kTimes = 50'000;

 private:
  std::vector<LiveBlocks<Source>> sets_;
};

void churn(benchmark::State& state, ClearPolicy clear) {
  auto arena = new_arena(clear);
  if (!arena) return skip(state, arena.error());
  const auto threads = static_cast<std::size_t>(state.range(0));
  ChurnSide ours(FromArena{*arena}, threads);
  ChurnSide peer(FromMalloc{}, threads);
  if (!ours.fill() || !peer.fill()) return skip(state, exhausted().value());
  const auto operations = static_cast<double>(threads * decltype(ours)::kTimes);
  compare(
      state, kPeer, {.count = 5, .operations = operations, .unit = bench::Unit::ns},
      [&] { return ours.run(); }, [&] { return peer.run(); });
}

// --- containers ---------------------------------------------------------------------------------

constexpr std::size_t kEntries = 100'000;

struct MapTimes {
  double build;
  double destroy;
};

// Fills a map with random keys and destroys it.
template <typename Map>
MapTimes build_map(std::pmr::memory_resource* resource) {
  std::mt19937_64 random(1);
  std::optional<Map> map(std::in_place, resource);
  MapTimes times{};
  times.build = seconds_of([&] {
    for (std::size_t i = 0; i < kEntries; ++i) map->emplace(random(), i);
  });
  benchmark::DoNotOptimize(map->size());
  times.destroy = seconds_of([&] { map.reset(); });
  return times;
}

template <typename Map>
void pmr(benchmark::State& state, ClearPolicy clear) {
  auto arena = new_arena(clear);
  if (!arena) return skip(state, arena.error());
  std::vector<double> destroyed;
  std::vector<double> peer_destroyed;
  const auto build = [](std::pmr::memory_resource* resource,
                        std::vector<double>& destructions) -> Result<double> {
    const MapTimes times = build_map<Map>(resource);
    destructions.push_back(times.destroy);
    return times.build;
  };
  compare(
      state, "std::pmr::new_delete_resource()",
      {.count = 5, .operations = static_cast<double>(kEntries), .unit = bench::Unit::ns},
      [&] { return build(arena->resource(), destroyed); },
      [&] { return build(std::pmr::new_delete_resource(), peer_destroyed); });
  const double entries = kEntries;
  set_time_counter(state, "destroy", median(destroyed) / entries, bench::Unit::ns);
  set_time_counter(state, "peer_destroy", median(peer_destroyed) / entries, bench::Unit::ns);
}

using TreeMap = std::pmr::map<std::uint64_t, std::uint64_t>;
using HashMap = std::pmr::unordered_map<std::uint64_t, std::uint64_t>;

// --- dirty pages --------------------------------------------------------------------------------

// Of a million objects an epoch replaces some, at random. All of the heap's pages count, metadata
// too. No peer: glibc's memory has no tracker.
void dirty_pages(benchmark::State& state, ClearPolicy clear) {
  constexpr int kWarmUp = 2;
  constexpr int kEpochs = 7;
  // The compare back end does not see a page that was written with what it held already.
  auto arena = new_arena(clear, BackendKind::uffd_async);
  if (!arena) return skip(state, arena.error());
  ObjectPopulation objects(*arena, 1'000'000);
  if (!objects.fill()) return skip(state, exhausted().value());
  const auto churned = static_cast<std::size_t>(state.range(0));
  std::vector<double> times;
  std::vector<double> written;
  for (auto _ : state) {
    for (int epoch = 0; epoch < kWarmUp + kEpochs; ++epoch) {
      bool complete = true;
      const double seconds = seconds_of([&] { complete = objects.replace(churned); });
      if (!complete) return skip(state, exhausted().value());
      const UsedRanges used = arena->heap().used_ranges();
      auto collected =
          arena->tracker().collect(arena->region().watch(), used.span(), CollectMode::take);
      if (!collected) return skip(state, collected.error());
      if (epoch < kWarmUp) continue;
      times.push_back(seconds / static_cast<double>(churned));
      written.push_back(static_cast<double>(collected->written.count()));
    }
    state.SetIterationTime(median(times));
  }
  state.counters["dirty_pages"] = median(written);
  state.counters["heap_MiB"] = static_cast<double>(arena->heap().heap_bytes()) / (1 << 20);
}

// ------------------------------------------------------------------------------------------------

void register_for(ClearPolicy clear, const std::string& policy) {
  using benchmark::RegisterBenchmark;
  auto* pairs = RegisterBenchmark(("pair/" + policy).c_str(), pair, clear)->ArgName("bytes");
  for (const std::int64_t bytes : {16, 128, 1024, 8192, 32768, 262144}) pairs->Arg(bytes);
  pairs->Apply(series);
  RegisterBenchmark(("batch/" + policy).c_str(), batch, clear)
      ->ArgName("bytes")
      ->Arg(64)
      ->Arg(1024)
      ->Apply(series);
  RegisterBenchmark(("churn/" + policy).c_str(), churn, clear)
      ->ArgName("threads")
      ->Arg(1)
      ->Arg(2)
      ->Apply(series);
  RegisterBenchmark(("pmr_map/" + policy).c_str(), pmr<TreeMap>, clear)->Apply(series);
  RegisterBenchmark(("pmr_unordered_map/" + policy).c_str(), pmr<HashMap>, clear)->Apply(series);
  RegisterBenchmark(("dirty_pages/" + policy).c_str(), dirty_pages, clear)
      ->ArgName("replaced")
      ->Arg(10'000)
      ->Arg(100'000)
      ->Apply(series);
}

[[maybe_unused]] const bool kRegistered = [] {
  std::thread([] {}).join();
  register_for(ClearPolicy::on_free, "clears");
  register_for(ClearPolicy::never, "keeps");
  return true;
}();

}  // namespace

BENCHMARK_MAIN();
