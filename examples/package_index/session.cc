#include "examples/package_index/session.h"

#include <fmt/format.h>

#include <utility>

#include "examples/package_index/queries.h"
#include "examples/package_index/updates.h"

namespace package_index {

using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::propagate;
using pagetide::Result;
using pagetide::SnapshotId;

namespace {

// Fewer records from apt-cache mean that it knows little more than what is installed.
constexpr std::uint64_t kFewRecords = 5'000;

}  // namespace

Result<Index> create_index(std::size_t reserve_bytes) {
  auto arena = pagetide::Arena::create({.name = "package index", .reserve_bytes = reserve_bytes});
  if (!arena) return propagate(arena);
  auto graph = arena->find_or_construct<PackageGraph>(kGraphRoot, arena->resource());
  if (!graph) return propagate(graph);
  auto progress = arena->find_or_construct<Progress>(kProgressRoot);
  if (!progress) return propagate(progress);
  return Index{std::move(*arena), *graph, *progress};
}

Result<Index> open_index(pagetide::Store& store, SnapshotId id) {
  auto arena = store.open_arena(id);
  if (!arena) return propagate(arena);
  auto graph = arena->find<PackageGraph>(kGraphRoot);
  auto progress = arena->find<Progress>(kProgressRoot);
  if (!graph || !progress) {
    return failure(
        ErrorCode::not_a_store,
        fmt::format("{} holds the arena '{}' of another program or of another version of "
                    "this one: {} Name another directory with --store.",
                    store.path(), arena->name(),
                    graph ? progress.error().message() : graph.error().message()));
  }
  return Index{std::move(*arena), *graph, *progress};
}

Session::Session(const Options& options, pagetide::Store& store, Index& index,
                 KillSwitch& kill_switch, Report& report)
    : options_(options),
      store_(store),
      index_(index),
      kill_switch_(kill_switch),
      report_(report),
      snapshotter_(index.arena, store, {.quiesce = pagetide::Quiesce::none()}) {}

Result<void> Session::take(std::string_view after) {
  kill_switch_.commit_begins();
  const Stopwatch watch;
  auto id = snapshotter_.take();
  if (!id) return propagate(id);
  const Milliseconds elapsed = watch.elapsed();
  auto info = store_.info(*id);
  if (!info) return propagate(info);
  report_.snapshot(*info, after, elapsed);
  return {};
}

Result<void> Session::load() {
  Progress& progress = *index_.progress;
  if (progress.load_complete) return {};
  auto source = PackageSource::open(options_.input);
  if (!source) return propagate(source);
  if (progress.records_done > 0) {
    if (auto r = skip_done_records(*source); !r) return r;
  }
  if (auto r = load_records(*source); !r) return r;
  if (progress.records_done == 0) {
    return failure(ErrorCode::not_found,
                   fmt::format("{} has no package in it. Fetch the package lists as root with "
                               "`apt-get update`, or give a saved index with --input FILE.",
                               source->name()));
  }
  progress.load_limit = options_.limit;
  progress.load_complete = true;
  if (auto r = take(fmt::format("all {} records", grouped(progress.records_done))); !r) return r;
  if (options_.input.empty() && options_.limit == 0 && progress.records_done < kFewRecords) {
    report_.line("note: apt-cache knows few packages; `apt-get update` as root fetches all");
  }
  return {};
}

// What was loaded before the last snapshot is in the heap; here it is also checked.
Result<void> Session::skip_done_records(PackageSource& source) {
  auto records = read_done_records(source, *index_.progress);
  if (!records) return propagate(records);
  PlainIndex expected;
  for (const PackageRecord& record : *records) expected.put(record);
  if (auto r = compare(expected); !r) return r;
  report_.line(fmt::format("the first {} records of {} are all in the heap; going on after them",
                           grouped(records->size()), source.name()));
  return {};
}

Result<void> Session::load_records(PackageSource& source) {
  Progress& progress = *index_.progress;
  PackageRecord record;
  while (options_.limit == 0 || progress.records_done < options_.limit) {
    auto more = source.next(record);
    if (!more) return propagate(more);
    if (!*more) break;
    index_.graph->put(record);
    ++progress.records_done;
    progress.records_hash = hash_record(progress.records_hash, record);
    kill_switch_.operation_applied();
    if (progress.records_done % options_.snapshot_every != 0) continue;
    if (auto r = take(fmt::format("{} records", grouped(progress.records_done))); !r) return r;
  }
  return {};
}

Result<void> Session::update() {
  Progress& progress = *index_.progress;
  while (progress.rounds_done < options_.rounds) {
    std::uint64_t changes = 0;
    apply_round(*index_.graph, progress.rounds_done + 1, [&] {
      ++changes;
      kill_switch_.operation_applied();
    });
    ++progress.rounds_done;
    const std::uint64_t round = progress.rounds_done;
    if (auto r = take(fmt::format("round {}: {} changes", round, grouped(changes))); !r) return r;
  }
  return {};
}

Result<void> Session::compare(const PlainIndex& expected) const {
  if (auto checked = index_.arena.heap().check(); !checked) return propagate(checked);
  const auto found = differences(*index_.graph, expected);
  if (found.empty()) return {};
  std::string text = "the index in the heap is not what the input gives:";
  for (const std::string& difference : found) text += "\n  " + difference;
  return failure(ErrorCode::damaged, std::move(text));
}

Result<void> Session::compare_with(const Replay& replay) {
  const PlainIndex expected = replay.at(*index_.progress);
  if (auto r = compare(expected); !r) return r;
  report_.line(
      fmt::format("\ncompared with a fresh parse: all {} packages and {} dependencies are equal",
                  grouped(expected.records().size()), grouped(index_.graph->edge_count())));
  return {};
}

Result<void> Session::verify_store() {
  const Stopwatch watch;
  auto report = pagetide::verify(store_);
  if (!report) return propagate(report);
  if (!report->sound()) {
    std::string text = "the store does not verify:";
    for (const pagetide::Error& problem : report->problems) text += "\n  " + problem.message();
    return failure(ErrorCode::damaged, std::move(text));
  }
  report_.line(fmt::format("verified {} snapshots: {} pages, {}, no problem, {:.0f} ms",
                           report->snapshots, grouped(report->pages), human_bytes(report->bytes),
                           watch.elapsed().count()));
  return {};
}

Result<void> Session::roll_back_to(SnapshotId id) {
  const Stopwatch watch;
  auto stats = snapshotter_.rollback(id);
  if (!stats) return propagate(stats);
  report_.line(
      fmt::format("  to snapshot {}: {} pages put back in {:.0f} ms; {} packages, {} rounds",
                  id.value, grouped(stats->restored_pages), watch.elapsed().count(),
                  grouped(index_.graph->package_count()), index_.progress->rounds_done));
  return {};
}

Result<void> Session::roll_back_and_forth(const Replay& replay) {
  auto newest = store_.latest();
  if (!newest) return propagate(newest);
  const SnapshotId target{(newest->value + 1) / 2};
  if (target == *newest) {
    report_.line("no rollback: there is only one snapshot");
    return {};
  }
  const Answers before = answer(*index_.graph);

  report_.line("rollback in place:");
  if (auto r = roll_back_to(target); !r) return r;
  if (auto r = compare(replay.at(*index_.progress)); !r) return r;
  report_.answers(answer(*index_.graph));
  if (auto r = roll_back_to(*newest); !r) return r;
  if (auto r = compare(replay.at(*index_.progress)); !r) return r;
  if (answer(*index_.graph) != before) {
    return failure(ErrorCode::damaged,
                   "after the way back the index answers otherwise than before");
  }
  report_.line("  both times compared with a fresh parse: equal");
  return {};
}

}  // namespace package_index
