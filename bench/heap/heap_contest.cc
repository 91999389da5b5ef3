#include "bench/heap/heap_contest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>

#include "bench/heap/workload.h"
#include "bench/support.h"

namespace pagetide::bench {

namespace {

constexpr int kRounds = 5;

// Epochs of an arena's tracker, and how many of them a run is long.
struct Epochs {
  const char* suffix;
  unsigned period_ms;
  unsigned count;
};
constexpr std::array<Epochs, 2> kEpochs = {{{"_1s", 1000, 1}, {"_100ms", 100, 2}}};

WorkerCall call_of(const HeapEntrant& entrant, std::string_view workload, double percent) {
  return {{"--source=" + entrant.source, fmt::format("--workload={}", workload),
           fmt::format("--percent={}", percent), fmt::format("--portions={}", entrant.portions)},
          entrant.preload,
          entrant.environment};
}

double spread_of(const std::vector<double>& samples) {
  double sum = 0;
  for (const double sample : samples) sum += sample;
  const double mean = sum / static_cast<double>(samples.size());
  double squares = 0;
  for (const double sample : samples) squares += std::pow(sample - mean, 2);
  return samples.size() < 2 || mean <= 0
             ? 0
             : std::sqrt(squares / static_cast<double>(samples.size() - 1)) / mean;
}

}  // namespace

HeapContest::HeapContest(std::string workload, const std::vector<HeapEntrant>& entrants,
                         double percent) {
  for (const HeapEntrant& entrant : entrants) {
    if (!entrant.missing.empty()) continue;
    const WorkerCall call = call_of(entrant, workload, percent);
    parties_.push_back({entrant.name, call});
    if (!entrant.is_arena()) continue;
    for (const Epochs& epochs : kEpochs) {
      WorkerCall tracked = call;
      tracked.arguments.push_back(fmt::format("--epoch-ms={}", epochs.period_ms));
      tracked.arguments.push_back(fmt::format("--epochs={}", epochs.count));
      parties_.push_back({entrant.name + epochs.suffix, std::move(tracked)});
    }
  }
}

void HeapContest::run() {
  std::mt19937 random(1);
  for (int round = 0; round < kRounds; ++round) {
    std::shuffle(parties_.begin(), parties_.end(), random);
    for (const Party& party : parties_) {
      Record& record = records_[party.name];
      if (record.failed) continue;
      const auto report = run_worker(party.call);
      if (!report) {
        record.failed = report.error();
        continue;
      }
      record.ns.push_back(report->seconds / report->operations * 1e9);
      record.peak_rss_kib.push_back(report->peak_rss_kib);
      record.taken_pages.push_back(report->taken_pages);
    }
  }
}

std::optional<double> HeapContest::ratio(const std::string& theirs, const std::string& ours) const {
  const auto dividend = records_.find(theirs);
  const auto divisor = records_.find(ours);
  if (dividend == records_.end() || divisor == records_.end()) return std::nullopt;
  if (dividend->second.failed || divisor->second.failed) return std::nullopt;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < dividend->second.ns.size(); ++i) {
    ratios.push_back(dividend->second.ns[i] / divisor->second.ns.at(i));
  }
  return median(std::move(ratios));
}

void HeapContest::add_tracked(const std::string& arena, Figures& figures) const {
  for (const Epochs& epochs : kEpochs) {
    const auto record = records_.find(arena + epochs.suffix);
    if (record == records_.end() || record->second.failed) continue;
    figures[fmt::format("epochs{}_ns", epochs.suffix)] = median(record->second.ns);
    figures[fmt::format("pages{}", epochs.suffix)] =
        median(record->second.taken_pages) / epochs.count;
  }
}

void HeapContest::add_ratios(const std::string& peer, Figures& figures) const {
  for (const auto& [arena, name] :
       {std::pair<std::string, std::string>{kOurs, "vs_default"}, {"arena_keeps", "vs_keeps"}}) {
    for (const std::string suffix : {"", "_1s", "_100ms"}) {
      const auto found = ratio(peer, arena + suffix);
      if (found && arena + suffix != kOurs) figures[name + suffix] = *found;
    }
  }
}

Result<Figures> HeapContest::figures(std::string_view entrant) {
  if (!std::exchange(has_run_, true)) run();
  const auto record = records_.find(entrant);
  if (record == records_.end()) return failure(ErrorCode::not_found, "no such entrant");
  if (record->second.failed) return tl::unexpected<Error>(*record->second.failed);
  Figures figures;
  figures["ns"] = median(record->second.ns);
  figures["peak_MiB"] = median(record->second.peak_rss_kib) / 1024;
  figures["spread_pct"] = 100 * spread_of(record->second.ns);
  const std::string name(entrant);
  if (const auto found = ratio(name, kOurs)) figures["ratio"] = *found;
  if (name.starts_with("arena")) {
    add_tracked(name, figures);
  } else {
    add_ratios(name, figures);
  }
  return figures;
}

Figures geometric_means(const std::vector<Figures>& all) {
  Figures means;
  if (all.empty()) return means;
  for (const auto& [name, ignored] : all.front()) {
    double logarithms = 0;
    const bool everywhere =
        std::all_of(all.begin(), all.end(), [&, key = name](const Figures& figures) {
          const auto found = figures.find(key);
          if (found == figures.end() || found->second <= 0) return false;
          logarithms += std::log(found->second);
          return true;
        });
    if (everywhere) means[name] = std::exp(logarithms / static_cast<double>(all.size()));
  }
  return means;
}

DirtyPagesContest::DirtyPagesContest(const std::vector<HeapEntrant>& entrants, double percent) {
  for (const HeapEntrant& entrant : entrants) {
    if (entrant.missing.empty()) {
      calls_.emplace_back(entrant.name, call_of(entrant, kDirtyPages, percent));
    }
  }
}

void DirtyPagesContest::run() {
  for (const auto& [name, call] : calls_) reports_.emplace(name, run_worker(call));
}

Result<Figures> DirtyPagesContest::figures(std::string_view entrant, std::size_t phase) {
  if (reports_.empty()) run();
  const auto report = reports_.find(entrant);
  if (report == reports_.end()) return failure(ErrorCode::not_found, "no such entrant");
  if (!report->second) return tl::unexpected<Error>(report->second.error());
  if (phase >= report->second->dirty.size()) {
    return failure(ErrorCode::not_found, "the worker has no such phase");
  }
  const std::vector<WorkerReport::Dirty>& phases = report->second->dirty;
  const WorkerReport::Dirty& own = phases[phase];
  Figures figures;
  figures["ns"] = own.seconds * 1e9;
  figures["dirty_pages"] = own.dirty_pages;
  figures["pages_per_operation"] =
      own.dirty_pages / static_cast<double>(own.replaced + own.updated);
  if (own.dirty_ranges > 0) figures["dirty_ranges"] = own.dirty_ranges;
  // The same updates on the same objects, without replacements, come next.
  if (own.replaced > 0 && phase + 1 < phases.size() && phases[phase + 1].replaced == 0) {
    figures["updates_ratio"] = own.dirty_pages / phases[phase + 1].dirty_pages;
  }
  if (own.volatile_pages > 0) figures["volatile_pages"] = own.volatile_pages;
  figures["memory_MiB"] = own.memory_pages * static_cast<double>(page_size()) / (1 << 20);
  figures["rss_MiB"] = own.rss_kib / 1024;
  if (const auto ours = reports_.find(kOurs);
      ours != reports_.end() && ours->second && phase < ours->second->dirty.size()) {
    const WorkerReport::Dirty& reference = ours->second->dirty[phase];
    figures["ratio"] = own.seconds / reference.seconds;
    figures["pages_ratio"] = own.dirty_pages / reference.dirty_pages;
  }
  return figures;
}

}  // namespace pagetide::bench
