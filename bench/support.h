#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"

// What the comparing benchmarks share. Not thread-safe.

namespace pagetide::bench {

// The memory that a benchmark works on: 256 MiB, or PAGETIDE_BENCH_MIB (16 at least: below, 0.1 %
// of the pages is none).
std::size_t bench_bytes();

// The lower one of the two in the middle. Not of an empty set.
double median(std::vector<double> samples);

// Wall-clock seconds that `work` takes.
template <typename Work>
double seconds_of(Work&& work) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Ends the benchmark with the reason as its result; it becomes a row that says so.
void skip(benchmark::State& state, const Error& error);

enum class Unit : std::uint8_t { ns, us, ms };

struct Rounds {
  int count = 10;
  double operations = 1;  // in a round; times are shown for one of them
  Unit unit = Unit::us;   // of the peer's time
};

// The counter `name`_ns, `name`_us or `name`_ms.
void set_time_counter(benchmark::State& state, const std::string& name, double seconds, Unit unit);

// A counter; left out when it is zero. Google Benchmark also writes the variation of a counter over
// the repetitions, and that of zeros is NaN, with which the report is no JSON.
void set_counter(benchmark::State& state, const std::string& name, double value);

// One side of a comparison. Does its set-up, then its work, and returns the seconds of the work.
template <typename F>
concept Side = requires(F& side) {
  { side() } -> std::same_as<Result<double>>;
};

// Runs ours and the peer in turn, in one process and one series, the first one changing with each
// round: drift of the machine hits both alike. Sets
//   time     of one operation of ours, the median of the rounds
//   peer_us  the same of the peer (or peer_ns, peer_ms)
//   ratio    peer's time divided by ours: above 1, Pagetide is the faster one by that factor;
//            below 1 it loses
//   label    who the peer is
// The benchmark must be a series(): the rounds are its iterations, so that the time shown is a
// median, which one stall of a noisy machine does not move.
template <Side Ours, Side Peer>
void compare(benchmark::State& state, const std::string& peer_name, const Rounds& rounds, Ours ours,
             Peer peer) {
  std::vector<double> our_times;
  std::vector<double> peer_times;
  for (auto _ : state) {
    // Round 0 warms caches and files up and does not count.
    for (int round = 0; round <= rounds.count; ++round) {
      Result<double> mine = 0.0;
      if (round % 2 == 0) mine = ours();
      Result<double> theirs = peer();
      if (round % 2 != 0) mine = ours();
      if (!mine) return skip(state, mine.error());
      if (!theirs) return skip(state, theirs.error());
      if (round == 0) continue;
      our_times.push_back(*mine);
      peer_times.push_back(*theirs);
    }
    state.SetIterationTime(median(our_times) / rounds.operations);
  }
  set_time_counter(state, "peer", median(peer_times) / rounds.operations, rounds.unit);
  state.counters["ratio"] = median(peer_times) / median(our_times);
  state.SetLabel("peer: " + peer_name);
}

// What a benchmark that calls compare() must be set to.
inline void series(benchmark::internal::Benchmark* benchmark) {
  benchmark->UseManualTime()->Iterations(1);
}

// Anonymous memory of base pages, not populated. A size of 0 stands for a failed mmap.
class Pages {
 public:
  explicit Pages(std::size_t bytes);
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages();

  ByteRange range() const { return range_; }
  std::size_t count() const { return range_.size / page_size(); }

 private:
  ByteRange range_;
};

// Fills memory with words that differ from page to page and are not zero.
void fill_with_noise(ByteRange range);

// One store into each page, of a value that the page did not hold: it counts up over all calls.
void write_pages(ByteRange range, std::span<const std::uint32_t> pages);
void write_all_pages(ByteRange range);

// Picks different sets of pages, uniformly; the same ones in each run of the program.
class PagePicker {
 public:
  explicit PagePicker(std::size_t page_count);

  // `count` different pages in random order. Valid until the next call.
  std::span<const std::uint32_t> pick(std::size_t count);

 private:
  std::mt19937_64 random_{20240229};
  std::vector<std::uint32_t> pages_;
};

// A directory inside another one, removed with everything in it. An empty path: it failed.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& parent);
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory();

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

// Where stores are put: the directory for temporary files, and /dev/shm where there is one.
enum class Place : std::uint8_t { temporary, shared_memory };
std::string directory_of(Place place);
bool exists(Place place);
// "ext4" and the like; what is not known by name, as its number.
std::string file_system_of(const std::string& path);

}  // namespace pagetide::bench
