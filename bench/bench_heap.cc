// An arena as an allocator, beside the well-known ones and the restorable heaps: time, memory, and
// pages that an epoch dirties.
//
//   bench_heap --benchmark_filter='heap/server/'
//
// Entrants:
//   arena                      an Arena as it is made by default, under ClearPolicy::deferred
//   arena_clears, arena_keeps  the same under ClearPolicy::on_free and never
//   arena_slack_N              an arena with a slack of N percent instead of 20; dirty_pages alone
//   glibc                      malloc as it is
//   jemalloc, jemalloc_tuned   malloc by preload, by default and by MALLOC_CONF; see entrants.cc
//   mimalloc, tcmalloc         the same
//   mimalloc_clears            mimalloc, with a memset of every block before it is freed: what an
//                              arena does by default
//   interprocess               Boost.Interprocess, managed_mapped_file in /dev/shm
//   pmemobj                    libpmemobj's atomic allocations, in /dev/shm, with
//                              PMEM_IS_PMEM_FORCE=1: cache lines are flushed, msync is not called
// A peer that was not there when this was configured becomes a row that says so. The other peers
// clear nothing, as arena_keeps.
//
// Every entrant runs in processes of its own (bench_heap_worker, the same program for all of them)
// and is called through the same table of function pointers. A round runs all entrants over a
// workload, in another order each time; numbers are medians of five rounds, whatever
// --benchmark_repetitions says, ratios medians of the ratios within a round. Blocks have a pattern
// at both ends that is checked when they are freed, containers are asked for what they hold; an
// entrant that fails that has no result.
//
//   heap/WORKLOAD/ENTRANT   ns an operation; the workloads are in heap/workload.h
//   heap/geomean/ENTRANT    geometric means over all workloads, of the counters, too
//     ratio         its time divided by that of arena, tracking off: above 1 Pagetide is the
//                   faster one by that factor, below 1 it loses. Off means an arena as it is made:
//                   its memory is prefilled and armed, and nobody takes.
//     vs_keeps      the same to arena_keeps
//     vs_default_1s, vs_default_100ms, vs_keeps_1s, vs_keeps_100ms
//                   the same to arenas with tracking on, whose tracker takes that often
//     epochs_1s_ns, epochs_100ms_ns
//                   the time of an arena with tracking on: one take at least, and the faults of the
//                   pages that a take armed, are in it
//     pages_1s, pages_100ms
//                   pages that such a take reports
//     peak_MiB      the most resident memory that the worker had
//     spread_pct    standard deviation over mean of the rounds
//   dirty_pages/replaced:N[/updates]/ENTRANT, dirty_pages/updates/ENTRANT
//                   an epoch on a million objects of 16 to 256 bytes, of which N are replaced at
//                   random, and 1 % written to with updates (heap/dirty_pages.h); one run of each
//                   entrant. The time and its ratio are those of the epoch's work, in which the
//                   first write to each page takes a fault on all sides.
//     dirty_pages   written pages, of all the memory that the entrant has, metadata included; of an
//                   arena those that its tracker found, and the pages that the record of its
//                   metadata fills in a snapshot
//     dirty_ranges  runs of pages that lie beside each other and were written; of an arena alone
//     updates_ratio dirty pages of replacements and updates divided by those of the updates alone,
//                   which follow on the same objects: how little the replacements add
//     volatile_pages
//                   written pages of an arena outside of its region: in no snapshot
//     pages_ratio   them divided by those of arena: above 1 Pagetide dirties fewer
//     memory_MiB    the memory that was looked at, as far as it is populated
//     rss_MiB       resident memory of the worker
//
// PAGETIDE_BENCH_HEAP_PERCENT scales live sets and work (100); epochs stay as long as they are.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/heap/dirty_pages.h"
#include "bench/heap/entrants.h"
#include "bench/heap/heap_contest.h"
#include "bench/heap/workload.h"
#include "bench/support.h"

namespace {

using namespace pagetide;
using namespace pagetide::bench;

double percent() {
  const char* asked = std::getenv("PAGETIDE_BENCH_HEAP_PERCENT");
  const double given = asked == nullptr ? 0 : std::strtod(asked, nullptr);
  return given > 0 ? given : 100;
}

// "ns" becomes the row's time, the others its counters.
void show(benchmark::State& state, const Result<Figures>& figures) {
  for (auto _ : state) {
    if (!figures) return skip(state, figures.error());
    state.SetIterationTime(figures->at("ns") * 1e-9);
    for (const auto& [name, value] : *figures) {
      if (name != "ns") set_counter(state, name, value);
    }
  }
}

template <typename Find>
void add_row(const std::string& name, benchmark::TimeUnit unit, Find find) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [find](benchmark::State& state) { show(state, find()); })
      ->Apply(series)
      ->Unit(unit);
}

using Contests = std::vector<std::shared_ptr<HeapContest>>;

Result<Figures> means_over(const Contests& contests, const std::string& entrant) {
  std::vector<Figures> all;
  for (const auto& contest : contests) {
    auto figures = contest->figures(entrant);
    if (!figures) return propagate(figures);
    figures->erase("spread_pct");
    all.push_back(*std::move(figures));
  }
  return geometric_means(all);
}

void register_workloads(const std::vector<HeapEntrant>& entrants) {
  Contests contests;
  for (const std::string_view workload : kWorkloads) {
    contests.push_back(std::make_shared<HeapContest>(std::string(workload), entrants, percent()));
    for (const HeapEntrant& entrant : entrants) {
      if (!entrant.missing.empty()) continue;
      add_row("heap/" + std::string(workload) + "/" + entrant.name, benchmark::kNanosecond,
              [contest = contests.back(), name = entrant.name] { return contest->figures(name); });
    }
  }
  for (const HeapEntrant& entrant : entrants) {
    add_row("heap/geomean/" + entrant.name, benchmark::kNanosecond,
            [contests, entrant]() -> Result<Figures> {
              if (entrant.missing.empty()) return means_over(contests, entrant.name);
              return failure(ErrorCode::not_found, entrant.missing);
            });
  }
}

void register_dirty_pages(const std::vector<HeapEntrant>& entrants) {
  const auto contest = std::make_shared<DirtyPagesContest>(entrants, percent());
  // In the order of the worker's phases.
  const std::vector<std::string> phases = {"replaced:10000", "replaced:10000/updates", "updates",
                                           "replaced:50000", "replaced:50000/updates"};
  for (std::size_t phase = 0; phase < phases.size(); ++phase) {
    for (const HeapEntrant& entrant : entrants) {
      if (!entrant.missing.empty()) continue;
      add_row("dirty_pages/" + phases[phase] + "/" + entrant.name, benchmark::kMillisecond,
              [contest, phase, name = entrant.name] { return contest->figures(name, phase); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  // The rounds are the repetitions, and three times ten minutes would be long. The last flag
  // wins.
  std::string once = "--benchmark_repetitions=1";
  std::vector<char*> arguments(argv, argv + argc);
  arguments.push_back(once.data());
  arguments.push_back(nullptr);
  int count = argc + 1;
  const std::vector<HeapEntrant> entrants = heap_entrants();
  register_workloads(entrants);
  std::vector<HeapEntrant> with_slacks = slack_entrants();
  with_slacks.insert(with_slacks.begin(), entrants.begin(), entrants.end());
  // Clearing what is freed dirties more pages than not clearing it, so it is no peer there.
  std::erase_if(with_slacks, [](const HeapEntrant& each) { return each.clears_by_memset(); });
  register_dirty_pages(with_slacks);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
