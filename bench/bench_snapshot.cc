// What a snapshot costs after a share of the arena was written: how long writers stop, and how
// long until it is durable.
//
//   bench_snapshot --benchmark_filter='stop/temporary/'
//
// `ratio` is the peer's time divided by ours: above 1 Pagetide is the faster one.
//   stop     time that writers are held, as the store records it. Peer: the pause of fork() of a
//            process with as much data, the child ending at once. What fork() costs afterwards, a
//            copy-on-write fault for each page written, is not counted. The process is another
//            one because those faults would be counted on our side.
//   durable  time of Snapshotter::take(), after which the snapshot survives a crash. Peer: all
//            data written to a new file with write(2) and fdatasync(2).
// `temporary` is the directory for temporary files; the label says on which file system it is.

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/fork_server.h"
#include "bench/stored_arena.h"
#include "bench/support.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/base/unique_fd.h"

namespace {

using namespace pagetide;
using namespace pagetide::bench;

// What is kept over the benchmarks, one arena at a time: filling and storing it takes longer than
// they do.
struct Bed {
  std::unique_ptr<ForkServer> forks;  // before any arena: see there
  std::unique_ptr<StoredArena> arena;
  Place place = Place::temporary;
};

Result<Bed*> bed_in(Place place) {
  static Bed bed;
  if (!bed.forks) {
    auto started = ForkServer::start(bench_bytes());
    if (!started) return propagate(started);
    bed.forks = std::move(*started);
  }
  if (bed.arena && bed.place == place) return &bed;
  bed.arena.reset();
  auto made = StoredArena::create(place, bench_bytes());
  if (!made) return propagate(made);
  bed.arena = std::move(*made);
  bed.place = place;
  return &bed;
}

// Writes to a share of the pages and takes a snapshot; remembers what the snapshots cost.
class Taker {
 public:
  Taker(StoredArena& arena, std::size_t permille)
      : arena_(arena),
        picker_(arena.data().size / page_size()),
        dirty_(arena.data().size / page_size() * permille / 1000) {}

  struct Cost {
    double stop_seconds;
    double durable_seconds;
  };
  Result<Cost> take() {
    write_pages(arena_.data(), picker_.pick(dirty_));
    Result<SnapshotId> id;
    const double seconds = seconds_of([&] { id = arena_.snapshotter().take(); });
    if (!id) return propagate(id);
    auto info = arena_.store().info(*id);
    if (!info) return propagate(info);
    // Bitmaps and superblock of the heap may be among the changed pages.
    if (info->changed_pages < dirty_) {
      return failure(ErrorCode::system_failure, "the snapshot lacks pages that were written");
    }
    const Cost cost{static_cast<double>(info->stop_ns) * 1e-9, seconds};
    if (std::exchange(is_warm_, true)) {
      bytes_.push_back(static_cast<double>(info->bytes_written));
      stops_.push_back(cost.stop_seconds);
    }
    return cost;
  }

  void report(benchmark::State& state) const {
    if (bytes_.empty()) return;
    state.counters["dirty_pages"] = static_cast<double>(dirty_);
    state.counters["written_MiB"] = median(bytes_) / (1 << 20);
    set_time_counter(state, "stop", median(stops_), Unit::us);
  }

 private:
  StoredArena& arena_;
  PagePicker picker_;
  std::size_t dirty_;
  bool is_warm_ = false;  // the first one is the warm-up of compare()
  std::vector<double> bytes_;
  std::vector<double> stops_;
};

Result<double> write_all_to_file(ByteRange data, const std::string& directory) {
  const std::string path = directory + "/peer";
  const UniqueFd parent(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid() || !parent.valid()) return system_failure("create a file", errno);
  ssize_t written = 0;
  int synced = 0;
  const double seconds = seconds_of([&] {
    written = sys::write_full(file.get(), data.data(), data.size, 0);
    synced = ::fdatasync(file.get());
  });
  const int e = errno;
  // Else the next snapshot waits for the file system to free what the peer wrote.
  file.reset();
  ::unlink(path.c_str());
  (void)::syncfs(parent.get());
  if (written < 0) return system_failure("write all data to a file", static_cast<int>(-written));
  if (synced != 0) return system_failure("sync a file", e);
  return seconds;
}

void stop(benchmark::State& state, Place place) {
  auto bed = bed_in(place);
  if (!bed) return skip(state, bed.error());
  Taker taker(*(*bed)->arena, static_cast<std::size_t>(state.range(0)));
  const auto take = [&]() -> Result<double> {
    auto cost = taker.take();
    if (!cost) return propagate(cost);
    return cost->stop_seconds;
  };
  const auto fork_pause = [&]() -> Result<double> {
    auto times = (*bed)->forks->run({});
    if (!times) return propagate(times);
    return times->pause_seconds;
  };
  compare(state, "pause of fork(); on " + file_system_of(directory_of(place)),
          {.count = 7, .unit = Unit::ms}, take, fork_pause);
  taker.report(state);
}

void durable(benchmark::State& state, Place place) {
  auto bed = bed_in(place);
  if (!bed) return skip(state, bed.error());
  StoredArena& arena = *(*bed)->arena;
  Taker taker(arena, static_cast<std::size_t>(state.range(0)));
  const auto take = [&]() -> Result<double> {
    auto cost = taker.take();
    if (!cost) return propagate(cost);
    return cost->durable_seconds;
  };
  compare(state, "write + fdatasync of all data; on " + file_system_of(directory_of(place)),
          {.count = 3, .unit = Unit::ms}, take,
          [&] { return write_all_to_file(arena.data(), arena.directory()); });
  taker.report(state);
}

void shares(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("permille")->Arg(1)->Arg(10)->Arg(100)->Apply(series);
}

void register_for(Place place, const std::string& name) {
  benchmark::RegisterBenchmark(("stop/" + name).c_str(), stop, place)->Apply(shares);
  benchmark::RegisterBenchmark(("durable/" + name).c_str(), durable, place)->Apply(shares);
}

[[maybe_unused]] const bool kRegistered = [] {
  register_for(Place::temporary, "temporary");
  if (exists(Place::shared_memory)) register_for(Place::shared_memory, "dev_shm");
  return true;
}();

}  // namespace

BENCHMARK_MAIN();
