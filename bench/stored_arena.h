#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "bench/support.h"
#include "pagetide/allocator/arena.h"
#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/snapshot/store.h"

namespace pagetide::bench {

// An arena with one block of data, tracked by write protection, and a store of its own with a
// snapshot of it. Not thread-safe.
class StoredArena {
 public:
  // Tells the reason where this machine cannot track or the store cannot be written.
  static Result<std::unique_ptr<StoredArena>> create(Place place, std::size_t data_bytes);

  ByteRange data() const { return data_; }
  Store& store() { return *store_; }
  // Has taken nothing yet, so that the copies of the first, full snapshot are not in memory.
  Snapshotter& snapshotter() { return *snapshotter_; }
  SnapshotId first() const { return first_; }
  const std::string& directory() const { return directory_.path(); }

  // Unmaps the arena; what is left is the store.
  void close_arena();

 private:
  explicit StoredArena(Place place) : directory_(directory_of(place)) {}
  Result<void> fill(std::size_t data_bytes);
  Result<void> take_first();

  ScratchDirectory directory_;
  std::optional<Store> store_;
  std::optional<Arena> arena_;
  std::optional<Snapshotter> snapshotter_;
  ByteRange data_;
  SnapshotId first_;
};

}  // namespace pagetide::bench
