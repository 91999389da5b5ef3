#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/contest.h"
#include "bench/heap/entrants.h"
#include "bench/heap/run_worker.h"
#include "pagetide/base/error.h"

namespace pagetide::bench {

// All entrants over one workload: in each round every one of them once, in an order of the round's
// own, each time in a new process. An arena takes part three times, as itself and with takes at 1 s
// and at 100 ms. Not thread-safe.
class HeapContest {
 public:
  // `percent` scales the workload's amounts. Entrants that are missing are left out.
  HeapContest(std::string workload, const std::vector<HeapEntrant>& entrants, double percent);

  // What the row of an entrant shows; see bench_heap.cc. "ns" is its time for an operation. The
  // first call runs the contest.
  Result<Figures> figures(std::string_view entrant);

 private:
  struct Party {
    std::string name;  // the entrant's, with "_1s" or "_100ms" behind it
    WorkerCall call;
  };
  // What one party did in the rounds.
  struct Record {
    std::optional<Error> failed;
    std::vector<double> ns;
    std::vector<double> peak_rss_kib;
    std::vector<double> taken_pages;  // by a take
  };

  void run();
  std::optional<double> ratio(const std::string& theirs, const std::string& ours) const;
  void add_tracked(const std::string& arena, Figures& figures) const;
  void add_ratios(const std::string& peer, Figures& figures) const;

  std::vector<Party> parties_;
  std::map<std::string, Record, std::less<>> records_;
  bool has_run_ = false;
};

// Of each figure that all of them have and that is above zero, over workloads.
Figures geometric_means(const std::vector<Figures>& all);

// The pages that an epoch dirties: one run of each entrant, for all phases. Not thread-safe.
class DirtyPagesContest {
 public:
  DirtyPagesContest(const std::vector<HeapEntrant>& entrants, double percent);

  // What the row of an entrant shows of a phase; see bench_heap.cc. "ns" is its time for an epoch's
  // work. The first call runs the contest.
  Result<Figures> figures(std::string_view entrant, std::size_t phase);

 private:
  void run();

  std::vector<std::pair<std::string, WorkerCall>> calls_;
  std::map<std::string, Result<WorkerReport>, std::less<>> reports_;
};

}  // namespace pagetide::bench
