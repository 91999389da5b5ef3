// All kernels by block size, alignment and by where the blocks are.
//
// A row is one cell: the time is that of clear_memory(), the inline path for small blocks included;
// `ratio` is the time of the best kernel of the cell (memset is one of them) divided by it,
// `against_memset` the same for the memset of the C library. Then the GB/s of every kernel.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "bench/bench_clear.h"
#include "bench/clear_pool.h"
#include "bench/support.h"
#include "pagetide/base/bytes.h"

namespace pagetide::bench {

namespace {

using namespace literals;

void cell(benchmark::State& state, const ClearCell& cell) {
  std::vector<Clearer> clearers = clearers_of_all_kernels();
  clearers.push_back(clearer_of_the_heap(cell.cache));
  for (auto _ : state) {
    const std::vector<double> seconds = race(cell, clearers);
    if (seconds.empty())
      return state.SkipWithError("no memory, or a kernel left bytes that are not zero");
    const double ours = seconds.back();
    state.SetIterationTime(ours);
    const auto best = std::min_element(seconds.begin(), std::prev(seconds.end()));
    state.counters["ratio"] = *best / ours;
    state.SetLabel("best: " + clearers[static_cast<std::size_t>(best - seconds.begin())].name);
    for (std::size_t i = 0; i < clearers.size(); ++i) {
      if (clearers[i].name == "memset") state.counters["against_memset"] = seconds[i] / ours;
      state.counters[clearers[i].name] = static_cast<double>(cell.bytes) / seconds[i] / 1e9;
    }
  }
}

void add(std::size_t bytes, bool aligned, Cache cache) {
  const std::string name = std::string("clear/") + (cache == Cache::hot ? "hot" : "cold") +
                           (aligned ? "/aligned" : "/misaligned") +
                           "/bytes:" + std::to_string(bytes);
  benchmark::RegisterBenchmark(name.c_str(), cell, ClearCell{bytes, aligned, cache})->Apply(series);
}

}  // namespace

void register_clear_cells() {
  for (const Cache cache : {Cache::hot, Cache::cold}) {
    for (const bool aligned : {true, false}) {
      for (std::size_t bytes = 16; bytes <= 256_MiB; bytes *= bytes < 1_MiB ? 2U : 4U) {
        // Nothing larger than the caches is hot.
        if (cache == Cache::hot && bytes > 16_MiB) continue;
        add(bytes, aligned, cache);
      }
    }
  }
}

}  // namespace pagetide::bench
