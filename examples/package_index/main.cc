// An index of Debian packages in a heap that outlives the process. See --help.

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <new>

#include "examples/package_index/kill_switch.h"
#include "examples/package_index/options.h"
#include "examples/package_index/queries.h"
#include "examples/package_index/report.h"
#include "examples/package_index/session.h"
#include "pagetide/pagetide.hpp"

namespace package_index {
namespace {

using pagetide::ErrorCode;
using pagetide::propagate;
using pagetide::Result;
using pagetide::SnapshotId;
using pagetide::Store;
using pagetide::StoreMode;

Result<Store> open_store(const Options& options, pagetide::FileSystem& files) {
  if (options.queries_only) return Store::open(options.store, {StoreMode::read, &files});
  // The store makes its own directory, for its owner alone; "a/b" and "a/b/" both lie in "a".
  const auto parent = (std::filesystem::absolute(options.store) / "").parent_path().parent_path();
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) {
    return pagetide::system_failure(fmt::format("create the directory {}", parent.string()),
                                    error.value(), "Name another place with --store.");
  }
  return Store::open(options.store, {StoreMode::create_or_write, &files});
}

// The index as the newest snapshot holds it, with answers from it before any input is opened.
Result<Index> reopen(Store& store, SnapshotId id, const Options& options, const Report& report,
                     Milliseconds store_opened) {
  const Stopwatch watch;
  auto index = open_index(store, id);
  if (!index) return index;
  const Milliseconds opened = watch.elapsed();
  auto info = store.info(id);
  if (!info) return propagate(info);
  report.line(
      fmt::format("reopened snapshot {} of {}: {} of heap at {:#x} in {:.1f} ms ({:.1f} ms the "
                  "store, {:.1f} ms "
                  "the arena)",
                  id.value, store.path(), human_bytes(info->heap_bytes), info->region_base,
                  (store_opened + opened).count(), store_opened.count(), opened.count()));
  const Stopwatch answering;
  const Answers answers = answer(*index->graph);
  report.line(fmt::format("answers from the heap, before any input is opened ({:.1f} ms):",
                          answering.elapsed().count()));
  report.answers(answers);
  for (const std::string& name : options.queries) report.package(*index->graph, name);
  return index;
}

Result<Index> open_or_create(Store& store, const Options& options, const Report& report,
                             Milliseconds store_opened) {
  auto latest = store.latest();
  if (latest) return reopen(store, *latest, options, report, store_opened);
  if (latest.error().code() != ErrorCode::not_found || options.queries_only) {
    return propagate(latest);
  }
  report.line(fmt::format("{} is empty; building the index from {}", store.path(),
                          options.input.empty() ? "apt-cache dumpavail" : options.input));
  return create_index(options.reserve_bytes);
}

Result<void> run(const Options& options) {
  Report report(options.quiet);
  KillSwitch kill_switch(options.kill_at);
  KillingFileSystem files(pagetide::posix_file_system(), kill_switch);
  const Stopwatch watch;
  auto store = open_store(options, files);
  if (!store) return propagate(store);
  auto index = open_or_create(*store, options, report, watch.elapsed());
  if (!index) return propagate(index);
  if (options.queries_only) return {};

  Session session(options, *store, *index, kill_switch, report);
  if (auto r = session.load(); !r) return r;
  if (auto r = session.update(); !r) return r;
  auto replay = Replay::read(options.input, *index->progress);
  if (!replay) return propagate(replay);
  if (auto r = session.compare_with(*replay); !r) return r;
  if (auto r = session.verify_store(); !r) return r;
  if (auto r = session.roll_back_and_forth(*replay); !r) return r;
  for (const std::string& name : options.queries) report.package(*index->graph, name);
  if (kill_switch.is_pending()) {
    fmt::print(stderr, "package_index: the run ended before the point of --kill-at\n");
  }
  return {};
}

}  // namespace
}  // namespace package_index

int main(int argc, char** argv) {
  int status = 0;
  const auto options = package_index::parse_options(argc, argv, &status);
  if (!options) return status;
  try {
    const auto result = package_index::run(*options);
    if (result) return 0;
    fmt::print(stderr, "package_index: {}\n", result.error().message());
  } catch (const std::bad_alloc&) {
    // From a container in the arena. The store holds the last snapshot, and nothing after it.
    fmt::print(stderr,
               "package_index: out of memory: the heap's reservation or the machine is exhausted. "
               "Begin a new store with a larger --reserve.\n");
  }
  return package_index::kExitFailure;
}
