#include "bench/contest.h"

#include <algorithm>

#include "bench/support.h"

namespace pagetide::bench {

void Contest::add(ContestRow row) {
  const std::string name = row.name;
  const benchmark::TimeUnit unit = row.unit;
  // Repetitions of one row follow one another, so each row counts its own.
  const auto body = [contest = shared_from_this(), row = std::move(row),
                     done = std::size_t{0}](benchmark::State& state) mutable {
    for (auto _ : state) contest->show(state, row, done);
    ++done;
  };
  benchmark::RegisterBenchmark(name.c_str(), body)->Apply(series)->Unit(unit);
}

const Result<Contest::Records>& Contest::repetition(std::size_t number) {
  while (repetitions_.size() <= number) repetitions_.push_back(run());
  return repetitions_[number];
}

Result<Contest::Records> Contest::run() const {
  auto entrants = prepare_();
  if (!entrants) return propagate(entrants);
  Records records;
  // Round 0 warms caches up and does not count; who begins changes with each round.
  for (int round = 0; round <= rounds_; ++round) {
    if (round > 0) std::rotate(entrants->begin(), entrants->begin() + 1, entrants->end());
    for (const Entrant& entrant : *entrants) {
      Record& record = records[entrant.name];
      if (record.failed) continue;
      const auto figures = entrant.turn();
      if (!figures) {
        record.failed = figures.error();
      } else if (round > 0) {
        for (const auto& [name, value] : *figures) record.samples[name].push_back(value);
      }
    }
  }
  return records;
}

namespace {

std::vector<double> ratios_of(const std::vector<double>& dividends,
                              const std::vector<double>& divisors) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(dividends.size(), divisors.size()); ++i) {
    ratios.push_back(dividends[i] / divisors[i]);
  }
  return ratios;
}

}  // namespace

void Contest::show(benchmark::State& state, const ContestRow& row, std::size_t repetition) {
  const auto& records = this->repetition(repetition);
  if (!records) return skip(state, records.error());
  const auto own = records->find(row.entrant);
  if (own == records->end()) return state.SkipWithError("no such entrant");
  if (own->second.failed) return skip(state, *own->second.failed);
  const auto times = own->second.samples.find(row.time);
  if (times == own->second.samples.end()) return state.SkipWithError("nothing was measured");
  state.SetIterationTime(median(times->second));
  for (const auto& [name, samples] : own->second.samples) {
    if (name.starts_with(row.time + ".")) {
      set_counter(state, name.substr(row.time.size() + 1), median(samples));
    }
  }
  for (const auto& [name, value] : row.published) set_counter(state, name, value);
  if (const auto reference = records->find(row.reference); reference != records->end()) {
    const auto theirs = reference->second.samples.find(row.time);
    if (theirs != reference->second.samples.end()) {
      state.counters["ratio"] = median(ratios_of(theirs->second, times->second));
    }
  }
  state.SetLabel(row.label);
}

}  // namespace pagetide::bench
