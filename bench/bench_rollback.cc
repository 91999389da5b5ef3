// One iteration of a program that tries something and puts its memory back: write to K pages,
// chosen uniformly, and roll back. The writes are part of the time on every side, because what
// they cost differs: a tracked page was armed, a dropped or forked one must be copied.
//
//   bench_rollback --benchmark_filter='fork_server'
//
// `ratio` is the peer's time divided by ours: above 1 Pagetide is the faster one.
//   vs_dontneed     MADV_DONTNEED of the K pages in a MAP_PRIVATE mapping of a memfd, which holds
//                   the state. It is told which pages were written; we find them.
//   vs_fork_server  fork() of a process with as much data, K writes in the child, exit and wait.
// Pagetide reads the pages from its store, which is in the page cache, and checks their hashes.

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "bench/fork_server.h"
#include "bench/stored_arena.h"
#include "bench/support.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/base/unique_fd.h"

namespace {

using namespace pagetide;
using namespace pagetide::bench;

std::uint64_t first_word(ByteRange data, std::size_t page) {
  return *reinterpret_cast<volatile std::uint64_t*>(data.data() + page * page_size());
}

// A private mapping over a state in memory: dropping a page brings the state's back.
class PrivateMapping {
 public:
  static Result<std::unique_ptr<PrivateMapping>> create(std::size_t bytes) {
    auto mapping = std::unique_ptr<PrivateMapping>(new PrivateMapping);
    const UniqueFd state(::memfd_create("bench-state", MFD_CLOEXEC));
    if (!state.valid()) return system_failure("make a memfd", errno);
    const Pages content(bytes);
    if (content.range().empty()) return system_failure("map memory", ENOMEM);
    fill_with_noise(content.range());
    const auto written = sys::write_full(state.get(), content.range().data(), bytes, 0);
    if (written < 0) return system_failure("fill a memfd", static_cast<int>(-written));
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, state.get(), 0);
    if (memory == MAP_FAILED) return system_failure("map a memfd", errno);
    mapping->range_ = ByteRange::of(memory, bytes);
    return mapping;
  }
  PrivateMapping(const PrivateMapping&) = delete;
  PrivateMapping& operator=(const PrivateMapping&) = delete;
  ~PrivateMapping() {
    if (!range_.empty()) ::munmap(range_.data(), range_.size);
  }

  Result<double> write_and_drop(std::span<const std::uint32_t> pages) {
    // Sorting is not counted: whoever knows the pages may know them in order.
    std::vector<std::uint32_t> sorted(pages.begin(), pages.end());
    std::sort(sorted.begin(), sorted.end());
    const std::uint64_t before = first_word(range_, pages.back());
    bool dropped = true;
    const double seconds = seconds_of([&] {
      write_pages(range_, pages);
      for (std::size_t i = 0; i < sorted.size();) {
        std::size_t count = 1;
        while (i + count < sorted.size() && sorted[i + count] == sorted[i] + count) ++count;
        const ByteRange run = PageRange{sorted[i], count}.bytes_from(range_.begin);
        dropped = ::madvise(run.data(), run.size, MADV_DONTNEED) == 0 && dropped;
        i += count;
      }
    });
    if (!dropped) return system_failure("drop pages of a private mapping", errno);
    if (first_word(range_, pages.back()) != before) {
      return failure(ErrorCode::system_failure, "dropping a page did not put it back");
    }
    return seconds;
  }

 private:
  PrivateMapping() = default;
  ByteRange range_;
};

// Kept over all benchmarks, which take less time than making it.
struct Bed {
  std::unique_ptr<ForkServer> forks;  // before any other memory: see there
  std::unique_ptr<StoredArena> arena;
  std::unique_ptr<PrivateMapping> mapping;
};

Result<void> make(Bed& bed) {
  auto forks = ForkServer::start(bench_bytes());
  if (!forks) return propagate(forks);
  auto arena = StoredArena::create(Place::temporary, bench_bytes());
  if (!arena) return propagate(arena);
  auto mapping = PrivateMapping::create(bench_bytes());
  if (!mapping) return propagate(mapping);
  // Brings the snapshot into the page cache, past which it was written.
  const auto ignore = [](PageRange, std::span<const std::byte>) -> Result<void> { return {}; };
  if (auto r = (*arena)->store().read_image((*arena)->first(), ignore); !r) return r;
  bed.forks = std::move(*forks);
  bed.arena = std::move(*arena);
  bed.mapping = std::move(*mapping);
  return {};
}

Result<Bed*> the_bed() {
  static Bed bed;
  if (!bed.mapping) {
    if (auto r = make(bed); !r) return propagate(r);
  }
  return &bed;
}

// Our side, and what of it is the rollback alone.
class Rollbacks {
 public:
  explicit Rollbacks(StoredArena& arena) : arena_(arena) {}

  Result<double> write_and_roll_back(std::span<const std::uint32_t> pages) {
    const ByteRange data = arena_.data();
    const std::uint64_t before = first_word(data, pages.back());
    const double writing = seconds_of([&] { write_pages(data, pages); });
    Result<RollbackStats> stats;
    const double rolling =
        seconds_of([&] { stats = arena_.snapshotter().rollback(arena_.first()); });
    if (!stats) return propagate(stats);
    if (stats->restored_pages < pages.size() || first_word(data, pages.back()) != before) {
      return failure(ErrorCode::system_failure, "the rollback did not put the pages back");
    }
    rollbacks_.push_back(rolling);
    stops_.push_back(static_cast<double>(stats->stop_ns) * 1e-9);
    return writing + rolling;
  }

  void report(benchmark::State& state) const {
    if (rollbacks_.empty()) return;
    set_time_counter(state, "rollback", median(rollbacks_), Unit::us);
    set_time_counter(state, "stop", median(stops_), Unit::us);
  }

 private:
  StoredArena& arena_;
  std::vector<double> rollbacks_;
  std::vector<double> stops_;
};

// `peer` does an iteration over the pages it is given.
template <typename Peer>
void compare_with(benchmark::State& state, const char* peer_name, Peer peer) {
  auto bed = the_bed();
  if (!bed) return skip(state, bed.error());
  const std::size_t pages = bench_bytes() / page_size();
  const auto dirty = static_cast<std::size_t>(state.range(0));
  if (dirty > pages) return state.SkipWithError("more pages than the arena has");
  PagePicker picker(pages);
  Rollbacks rollbacks(*(*bed)->arena);
  compare(
      state, peer_name, {.count = 9},
      [&] { return rollbacks.write_and_roll_back(picker.pick(dirty)); },
      [&] { return peer(**bed, picker.pick(dirty)); });
  rollbacks.report(state);
}

void vs_dontneed(benchmark::State& state) {
  compare_with(state, "MADV_DONTNEED of known pages, MAP_PRIVATE memfd",
               [](Bed& bed, std::span<const std::uint32_t> pages) {
                 return bed.mapping->write_and_drop(pages);
               });
}

void vs_fork_server(benchmark::State& state) {
  compare_with(state, "fork server",
               [](Bed& bed, std::span<const std::uint32_t> pages) -> Result<double> {
                 auto times = bed.forks->run(pages);
                 if (!times) return propagate(times);
                 return times->iteration_seconds;
               });
}

void page_counts(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("pages")->RangeMultiplier(10)->Range(10, 10000)->Apply(series);
  benchmark->Unit(benchmark::kMicrosecond);
}

BENCHMARK(vs_dontneed)->Name("rollback/vs_dontneed")->Apply(page_counts);
BENCHMARK(vs_fork_server)->Name("rollback/vs_fork_server")->Apply(page_counts);

}  // namespace

BENCHMARK_MAIN();
