// Clearing memory.
//
//   clear/hot/aligned/bytes:16384  one cell: all kernels, clear_memory() and memset in one series
//   clear_2022/...                 the four ways of 2022, at 16 KiB
//   clear_tracked/...              clearing what is tracked, by stores and by purges
//   clear_policy/...               what clearing on free costs an arena
//
//   bench_clear --benchmark_filter='clear/(hot|cold)/aligned/bytes:(4096|16384)/'

#include "bench/bench_clear.h"

#include <benchmark/benchmark.h>

int main(int argc, char** argv) {
  pagetide::bench::register_clear_cells();
  pagetide::bench::register_clear_2022();
  pagetide::bench::register_clear_tracked();
  pagetide::bench::register_clear_policy();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
