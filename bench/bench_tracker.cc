// Tracking alone: back ends, prefill policies, what the kernel costs underneath, what others do
// instead, and hot pages.
//
//   bench_tracker --benchmark_filter='first_write/'
//
// All ways to do one thing run in turn in one series of rounds (contest.h), so that drift of the
// machine hits all alike. `ratio` is the time of what the label names divided by the row's own:
// above 1 the row is the faster one by that factor.
//
//   arm, first_write,     back ends and peers over populated memory; see bench_tracker_backends.cc
//   scan_*, take_*
//   fresh                 back ends by prefill policy over untouched memory, and
//   zero_pages            two ways to map zero pages; see bench_tracker_prefill.cc
//   harvest               a take against the bare PAGEMAP_SCAN in it; 1.0 would be no overhead
//   reservation           64 GiB of which almost nothing is in use; see bench_tracker_harvest.cc
//   protect_untouched     the table of a kernel mailing list thread of 2023, and
//   pte_none              its other comparison; see bench_tracker_thread_2023.cc
//   hot_pages             adaptive arming on against off; see bench_tracker_hot_pages.cc
//
// A counter that a row does not show is zero there.
//
// PAGETIDE_BENCH_MIB is the memory of each entrant (256); harvest, protect_untouched and hot_pages
// take four times as much, the last one three times over.

#include "bench/bench_tracker.h"

#include <benchmark/benchmark.h>

int main(int argc, char** argv) {
  using namespace pagetide::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  register_backend_contest();
  register_prefill_contests();
  register_harvest_contests();
  register_thread_2023_contests();
  register_hot_page_benchmarks();  // the last one: it keeps its memory
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
