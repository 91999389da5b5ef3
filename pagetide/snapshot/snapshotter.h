#pragma once

#include <cstdint>
#include <memory>

#include "pagetide/allocator/arena.h"
#include "pagetide/base/error.h"
#include "pagetide/base/export.h"
#include "pagetide/snapshot/quiesce.h"
#include "pagetide/snapshot/snapshot_id.h"
#include "pagetide/snapshot/store.h"

namespace pagetide {

// How the pages of one instant are got at.
enum class SnapshotEngine : std::uint8_t {
  // Changed pages are copied while writers run, in rounds, each of which copies what was written
  // during the one before. Writers are held for one more scan, and for the copies of what they
  // wrote
  // last. It does what `stop` does where nobody need be held (Quiesce::none), where the changed
  // pages
  // are more than `staging_bytes` have room for, and where the arena's tracker does not see every
  // write of running threads (back ends compare and soft_dirty).
  precopy,
  // Writers are held while the page table is scanned and the changed pages are copied.
  stop,
};

struct SnapshotterOptions {
  Quiesce quiesce = {};
  SnapshotEngine engine = SnapshotEngine::precopy;
  // Of `precopy`: at most so many rounds before writers are held. It stops sooner where a round
  // finds hardly any page, or not much fewer than the one before.
  unsigned max_rounds = 4;
  // Copies of changed pages kept in memory; past this they are written to the
  // disk while writers are held. A part of the memory is kept for the next snapshot: twice what
  // this one needed, or half of what was kept before. Unless the arena's policy is
  // ClearPolicy::never the copies are cleared when the snapshot is committed.
  std::size_t staging_bytes = std::size_t{256} << 20;
};

// What a take did.
struct TakeStats {
  SnapshotEngine engine = SnapshotEngine::stop;  // that took it; see SnapshotEngine::precopy
  unsigned rounds = 0;                           // before writers were held, the last one in vain
                                                 // where copies had no room
  std::uint64_t copied_pages = 0;                // in the rounds, each time counted
  std::uint64_t stop_pages = 0;                  // copied while writers were held
  std::uint64_t stop_ns = 0;                     // from when writers were held until they went on
  std::uint64_t total_ns = 0;                    // of the call, until the snapshot was durable
};

struct RollbackStats {
  std::uint64_t restored_pages = 0;  // of these, zero_pages became zero
  std::uint64_t zero_pages = 0;
  std::uint64_t stop_ns = 0;
};

// Takes incremental snapshots of an arena into a store and puts the arena back to one.
//
// Files are written and synced after writers go on, unless copies have no room in memory. Pages
// whose content is what the parent snapshot holds are dropped by their hash.
//
// One snapshotter an arena at a time; arena and store must outlive it and stay where they are.
// Thread-safe: calls wait for each other.
class PAGETIDE_API Snapshotter {
 public:
  Snapshotter(Arena& arena, Store& store, SnapshotterOptions options = {});
  Snapshotter(const Snapshotter&) = delete;
  Snapshotter& operator=(const Snapshotter&) = delete;
  ~Snapshotter();

  // Commits a snapshot and returns its id; when it returns, the snapshot survives a crash. Its
  // parent is the snapshot the arena was opened from, rolled back to or last saved as, when that
  // is in this store; else it is a full one without a parent. On failure nothing is lost: the
  // next take() includes all that this one would have.
  // Errors: no_space, busy (another snapshotter has the arena), invalid_argument (the store was
  // opened for reading), identity_mismatch (another store is at its path by now), damaged (the
  // parent's manifest), permission_denied, system_failure, forked, and what pause() fails with.
  Result<SnapshotId> take();

  // Puts the arena's memory back to a snapshot of the store, in place: every pointer into it is
  // valid again, or dangling, as it was then. The next take()'s parent is this snapshot. On
  // failure while reading the memory is untouched. Cost: one scan, and reading what differs.
  // The program must drop what it remembers of the arena's content.
  // Errors: not_found, identity_mismatch (a snapshot of another arena), damaged, busy,
  // invalid_argument, system_failure, forked, and what pause() fails with.
  Result<RollbackStats> rollback(SnapshotId id);

  // Of the last take() that succeeded.
  TakeStats last_take() const;

  // What the arena's memory is based on; value 0: nothing in this store.
  SnapshotId parent() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pagetide
