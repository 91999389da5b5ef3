// bench_heap_worker: one workload over one allocator, in a process of its own; bench_heap starts
// it. It links none of the allocators that take malloc's place: those are preloaded.
//
//   bench_heap_worker --source=NAME --workload=NAME [--percent=N] [--portions=N]
//                     [--epoch-ms=N --epochs=N]
//
// Sources are those of source.h, workloads those of workload.h and dirty_pages (dirty_pages.h).
// --percent scales the amounts. A workload runs one portion that does not count, so that memory is
// populated and caches of threads are filled, and then --portions that do. With --epoch-ms the
// arena's tracker takes that often meanwhile, --epochs times, and the workload runs until the last
// one: every epoch with its take, and with the faults of the pages that it armed, is in the time.
//
// Prints one line of JSON:
//   malloc          the file that malloc comes from
//   seconds         by the clock on the wall, threads started and joined included
//   operations      see Workload::run()
//   taken_pages     what the takes reported
//   peak_rss_kib    see process_facts.h
//   dirty           of dirty_pages alone: an object for each phase
// When a block or a container is not what it was, or memory runs out, it says so on standard error
// and exits with 1; 2 for wrong arguments.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "bench/heap/dirty_pages.h"
#include "bench/heap/epoch_taker.h"
#include "bench/heap/process_facts.h"
#include "bench/heap/source.h"
#include "bench/heap/workload.h"

namespace {

using namespace pagetide;
using namespace pagetide::bench;

struct Options {
  std::string source;
  std::string workload;
  Scale scale;
  unsigned portions = 3;
  EpochTaker::Plan epochs;
};

struct Report {
  double seconds = 0;
  std::uint64_t operations = 0;
  std::size_t taken_pages = 0;
  std::string dirty;  // members of a JSON array
};

unsigned number(std::string_view text) {
  return static_cast<unsigned>(std::strtoul(std::string(text).c_str(), nullptr, 10));
}

// "--name=value"
bool set_option(std::string_view argument, Options& options) {
  const std::size_t equals = argument.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = argument.substr(0, equals);
  const std::string_view value = argument.substr(equals + 1);
  if (name == "--source") {
    options.source = value;
  } else if (name == "--workload") {
    options.workload = value;
  } else if (name == "--percent") {
    options.scale.percent = std::strtod(std::string(value).c_str(), nullptr);
  } else if (name == "--portions") {
    options.portions = number(value);
  } else if (name == "--epoch-ms") {
    options.epochs.period = std::chrono::milliseconds(number(value));
  } else if (name == "--epochs") {
    options.epochs.count = number(value);
  } else {
    return false;
  }
  return true;
}

Result<Report> run_portions(Workload& workload, const Options& options, Arena* arena) {
  using Clock = std::chrono::steady_clock;
  Report report;
  std::unique_ptr<EpochTaker> taker;
  if (options.epochs.count > 0) {
    if (arena == nullptr) {
      return failure(ErrorCode::invalid_argument, "epochs are those of an arena's tracker");
    }
    auto started = EpochTaker::start(*arena, options.epochs);
    if (!started) return propagate(started);
    taker = std::move(*started);
  }
  const Clock::time_point start = Clock::now();
  for (unsigned i = 0; taker ? Clock::now() - start < options.epochs.whole() : i < options.portions;
       ++i) {
    report.operations += workload.run();
  }
  if (taker) {
    auto pages = taker->finish();
    if (!pages) return propagate(pages);
    report.taken_pages = *pages;
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

Result<Report> count_dirty_pages(OpenSource& heap, const Options& options) {
  auto phases = measure_dirty_pages(heap, options.scale);
  if (!phases) return propagate(phases);
  Report report;
  for (const DirtyCounts& counts : *phases) {
    report.dirty +=
        fmt::format(R"({}{{"replaced": {}, "updated": {}, "seconds": {}, "dirty_pages": {}, )"
                    R"("dirty_ranges": {}, "volatile_pages": {}, "memory_pages": {}, )"
                    R"("rss_kib": {}}})",
                    report.dirty.empty() ? "" : ", ", counts.phase.replaced, counts.phase.updated,
                    counts.seconds, counts.dirty_pages, counts.dirty_ranges, counts.volatile_pages,
                    counts.memory_pages, counts.rss_kib);
  }
  return report;
}

Result<Report> run(OpenSource& heap, const Options& options) {
  if (options.workload == kDirtyPages) return count_dirty_pages(heap, options);
  const auto workload = make_workload(options.workload, options.scale);
  if (!workload) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("there is no workload '{}'", options.workload));
  }
  workload->run();
  return run_portions(*workload, options, heap.arena());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (!set_option(argv[i], options)) {
      fmt::print(stderr, "bench_heap_worker: what is '{}'?\n", argv[i]);
      return 2;
    }
  }
  // Locks and allocators take shortcuts in a process that never had a second thread.
  std::thread([] {}).join();
  auto heap = open_source(options.source);
  if (!heap) {
    fmt::print(stderr, "{}\n", heap.error().message());
    return heap.error().code() == ErrorCode::invalid_argument ? 2 : 1;
  }
  set_source((*heap)->table());
  const auto report = run(**heap, options);
  if (!report) {
    fmt::print(stderr, "{}\n", report.error().message());
    return report.error().code() == ErrorCode::invalid_argument ? 2 : 1;
  }
  fmt::print(R"({{"malloc": "{}", "seconds": {}, "operations": {}, "taken_pages": {}, )"
             R"("peak_rss_kib": {}, "dirty": [{}]}})"
             "\n",
             malloc_library(), report->seconds, report->operations, report->taken_pages,
             peak_resident_kib(), report->dirty);
  return 0;
}
