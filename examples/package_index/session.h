#pragma once

#include <cstddef>
#include <string_view>

#include "examples/package_index/kill_switch.h"
#include "examples/package_index/options.h"
#include "examples/package_index/package_graph.h"
#include "examples/package_index/progress.h"
#include "examples/package_index/report.h"
#include "pagetide/pagetide.hpp"

namespace package_index {

// The arena and what stands in it.
struct Index {
  pagetide::Arena arena;
  PackageGraph* graph;
  Progress* progress;
};

// Names of the arena's roots.
constexpr std::string_view kGraphRoot = "packages";
constexpr std::string_view kProgressRoot = "progress";

pagetide::Result<Index> create_index(std::size_t reserve_bytes);
// not_a_store when the snapshot is another program's.
pagetide::Result<Index> open_index(pagetide::Store& store, pagetide::SnapshotId id);

// The work on an index, from wherever it stands. One thread does everything, so nobody needs to
// be stopped while a snapshot is taken.
class Session {
 public:
  Session(const Options& options, pagetide::Store& store, Index& index, KillSwitch& kill_switch,
          Report& report);

  // Each goes on from the progress in the arena, and takes snapshots.
  pagetide::Result<void> load();
  pagetide::Result<void> update();

  // Each fails when it finds a difference.
  pagetide::Result<void> compare_with(const Replay& replay);
  pagetide::Result<void> verify_store();
  // To a snapshot half way back and to the newest again, in place.
  pagetide::Result<void> roll_back_and_forth(const Replay& replay);

 private:
  pagetide::Result<void> skip_done_records(PackageSource& source);
  pagetide::Result<void> load_records(PackageSource& source);
  pagetide::Result<void> take(std::string_view after);
  pagetide::Result<void> roll_back_to(pagetide::SnapshotId id);
  pagetide::Result<void> compare(const PlainIndex& expected) const;

  const Options& options_;
  pagetide::Store& store_;
  Index& index_;
  KillSwitch& kill_switch_;
  Report& report_;
  pagetide::Snapshotter snapshotter_;
};

}  // namespace package_index
