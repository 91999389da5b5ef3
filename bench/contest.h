#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pagetide/base/error.h"

// Comparing more than two ways of doing a thing: all of them run in turn within one series of
// rounds, so that drift of the machine hits all alike, and each becomes a row of its own. Not
// thread-safe.

namespace pagetide::bench {

// What one turn measured, by name. A name without a dot is a time in seconds, for one operation; a
// name "time.counter" is a counter, shown as it is in the row of that time.
using Figures = std::map<std::string, double, std::less<>>;

struct Entrant {
  std::string name;
  // Does its set-up, then its work. Owns what it works on.
  std::function<Result<Figures>()> turn;
};

// One row of the table.
struct ContestRow {
  std::string name;
  std::string entrant;
  std::string time;  // which of its times
  // The entrant whose time is divided by this one's for "ratio"; empty: no ratio.
  std::string reference = {};
  std::string label = {};
  // Numbers that are not measured here.
  std::vector<std::pair<std::string, double>> published = {};
  benchmark::TimeUnit unit = benchmark::kNanosecond;
};

// Times and counters are medians over the rounds; ratios are medians of the ratios within a round.
class Contest : public std::enable_shared_from_this<Contest> {
 public:
  // Makes the entrants of one repetition, and what they work on.
  using Prepare = std::function<Result<std::vector<Entrant>>()>;

  static std::shared_ptr<Contest> create(int rounds, Prepare prepare) {
    return std::shared_ptr<Contest>(new Contest(rounds, std::move(prepare)));
  }

  // Registers a benchmark. Its first row of a repetition runs the whole contest, the others show
  // what that run found for them.
  void add(ContestRow row);

 private:
  // What one entrant did in the rounds of one repetition.
  struct Record {
    std::optional<Error> failed;
    std::map<std::string, std::vector<double>, std::less<>> samples;
  };
  using Records = std::map<std::string, Record, std::less<>>;

  Contest(int rounds, Prepare prepare) : rounds_(rounds), prepare_(std::move(prepare)) {}
  const Result<Records>& repetition(std::size_t number);
  Result<Records> run() const;
  void show(benchmark::State& state, const ContestRow& row, std::size_t repetition);

  int rounds_;
  Prepare prepare_;
  std::vector<Result<Records>> repetitions_;
};

}  // namespace pagetide::bench
