#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "pagetide/base/error.h"

namespace pagetide::bench {

// What one run of bench_heap_worker is started with.
struct WorkerCall {
  std::vector<std::string> arguments;
  std::string preload;  // a library in malloc's place; empty: glibc's own malloc
  std::map<std::string, std::string> environment = {};
};

// What it printed; see worker_main.cc.
struct WorkerReport {
  struct Dirty {
    std::size_t replaced = 0;
    std::size_t updated = 0;
    double seconds = 0;
    double dirty_pages = 0;
    double dirty_ranges = 0;
    double volatile_pages = 0;
    double memory_pages = 0;
    double rss_kib = 0;
  };

  double seconds = 0;
  double operations = 0;
  double taken_pages = 0;
  double peak_rss_kib = 0;
  std::vector<Dirty> dirty;
};

// Starts the worker, alone, and waits for its end; two minutes at most. Errors: what it said when
// it failed; and damaged when malloc was not that of `preload`, for the dynamic linker goes on
// without a library that it cannot load. Variables that tune an allocator reach the worker only by
// `call`.
Result<WorkerReport> run_worker(const WorkerCall& call);

}  // namespace pagetide::bench
