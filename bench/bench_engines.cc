// How long a thread is held that writes all the time, by engine: one writes to pages chosen
// uniformly, so many percent of all pages a second, while snapshots are taken.
//
//   PAGETIDE_BENCH_MIB=1024 bench_engines
//
// The time is that from when the writer is held until it goes on, as Snapshotter::last_take() has
// it; ratio is the pause of fork() of a process with as much data divided by it. Counters:
//   scan_us      a scan of the whole, armed, of which nothing was written
//   rounds, copied_pages, stop_pages   of the last take; see TakeStats
//   durable_ms   the whole call

#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "bench/fork_server.h"
#include "bench/support.h"
#include "pagetide/snapshot/snapshotter.h"

namespace {

using namespace pagetide;
using namespace pagetide::bench;

// Writes to pages at a constant rate, and waits while it is held.
class PacedWriter {
 public:
  PacedWriter(ByteRange data, double writes_a_second)
      : data_(data), rate_(writes_a_second), thread_([this] { run(); }) {}
  PacedWriter(const PacedWriter&) = delete;
  PacedWriter& operator=(const PacedWriter&) = delete;
  ~PacedWriter() {
    over_ = true;
    thread_.join();
  }

  Quiesce quiesce() {
    return Quiesce::caller(
        [this] {
          hold_ = true;
          while (!held_) std::this_thread::yield();
        },
        [this] {
          hold_ = false;
          while (held_) std::this_thread::yield();
        });
  }

 private:
  void run() {
    using Clock = std::chrono::steady_clock;
    std::minstd_rand random(1);
    const std::size_t pages = data_.size / page_size();
    const Clock::time_point start = Clock::now();
    for (double written = 0; !over_;) {
      if (hold_) {
        held_ = true;
        while (hold_) std::this_thread::yield();
        held_ = false;
      }
      const std::chrono::duration<double> passed = Clock::now() - start;
      if (written >= passed.count() * rate_) {
        std::this_thread::yield();
        continue;
      }
      auto* const page = data_.data() + random() % pages * page_size();
      *reinterpret_cast<volatile std::uint64_t*>(page) = random();
      ++written;
    }
  }

  ByteRange data_;
  double rate_;
  std::atomic<bool> hold_ = false;
  std::atomic<bool> held_ = false;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// What is kept over the rows. The server comes first: else its forks would copy the arena.
struct Bed {
  std::unique_ptr<ForkServer> forks;
  std::optional<Arena> arena;
  ByteRange data;
  double scan_seconds = 0;
};

Result<double> clean_scan(Arena& arena) {
  Tracker& tracker = arena.tracker();
  const WatchId watch = arena.region().watch();
  const UsedRanges used = arena.heap().used_ranges();
  if (auto r = tracker.collect(watch, used.span(), CollectMode::take); !r) return propagate(r);
  std::vector<double> samples;
  for (int i = 0; i < 9; ++i) {
    Result<Collected> peeked;
    samples.push_back(
        seconds_of([&] { peeked = tracker.collect(watch, used.span(), CollectMode::peek); }));
    if (!peeked) return propagate(peeked);
  }
  return median(samples);
}

Result<Bed*> bed() {
  static Bed bed;
  if (bed.arena) return &bed;
  auto forks = ForkServer::start(bench_bytes());
  if (!forks) return propagate(forks);
  ArenaOptions options;
  options.name = "bench_engines";
  options.reserve_bytes = 2 * bench_bytes();
  options.backend = BackendKind::uffd_async;
  auto arena = Arena::create(options);
  if (!arena) return propagate(arena);
  auto block = arena->allocate(bench_bytes());
  if (!block) return propagate(block);
  bed.data = ByteRange::of(*block, bench_bytes());
  fill_with_noise(bed.data);
  auto scan = clean_scan(*arena);
  if (!scan) return propagate(scan);
  bed.scan_seconds = *scan;
  bed.forks = std::move(*forks);
  bed.arena = std::move(*arena);
  return &bed;
}

void engine(benchmark::State& state, SnapshotEngine engine) {
  auto made = bed();
  if (!made) return skip(state, made.error());
  Bed& bed = **made;
  const ScratchDirectory directory(directory_of(Place::temporary));
  auto store = Store::open(directory.path() + "/store");
  if (!store) return skip(state, store.error());
  const double pages = static_cast<double>(bed.data.size / page_size());
  PacedWriter writer(bed.data, pages * static_cast<double>(state.range(0)) / 100);
  SnapshotterOptions options;
  options.quiesce = writer.quiesce();
  options.engine = engine;
  // Room for all pages, so that nothing is written to the disk in the stop.
  options.staging_bytes = 2 * bench_bytes();
  Snapshotter snapshotter(*bed.arena, *store, options);
  std::vector<double> durable;
  compare(
      state, "pause of fork()", {.count = 7, .unit = Unit::ms},
      [&]() -> Result<double> {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        if (auto id = snapshotter.take(); !id) return propagate(id);
        const TakeStats stats = snapshotter.last_take();
        durable.push_back(static_cast<double>(stats.total_ns) * 1e-9);
        return static_cast<double>(stats.stop_ns) * 1e-9;
      },
      [&]() -> Result<double> {
        auto times = bed.forks->run({});
        if (!times) return propagate(times);
        return times->pause_seconds;
      });
  const TakeStats stats = snapshotter.last_take();
  set_time_counter(state, "scan", bed.scan_seconds, Unit::us);
  if (!durable.empty()) set_time_counter(state, "durable", median(durable), Unit::ms);
  set_counter(state, "rounds", stats.rounds);
  set_counter(state, "copied_pages", static_cast<double>(stats.copied_pages));
  set_counter(state, "stop_pages", static_cast<double>(stats.stop_pages));
}

void shares(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("percent_a_second")->Arg(1)->Arg(10)->Arg(100)->Apply(series);
}

[[maybe_unused]] const bool kRegistered = [] {
  benchmark::RegisterBenchmark("engines/precopy", engine, SnapshotEngine::precopy)->Apply(shares);
  benchmark::RegisterBenchmark("engines/stop", engine, SnapshotEngine::stop)->Apply(shares);
  return true;
}();

}  // namespace

BENCHMARK_MAIN();
