#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "pagetide/base/lock_rank.h"
#include "pagetide/snapshot/heap_draft.h"
#include "pagetide/snapshot/page_capture.h"
#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/snapshot/store_impl.h"

namespace pagetide {

// What taking a snapshot (take.cc) and going back to one (rollback.cc) share.
struct Snapshotter::Impl {
  Impl(Arena& a, Store& s, SnapshotterOptions o)
      : arena(a), store(s.impl()), options(std::move(o)), has_arena(a.acquire_consumer()) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (has_arena) arena.release_consumer();
  }

  class Take;
  class Rollback;

  mutable RankedMutex mutex{LockRank::snapshotter, "snapshotter"};
  Arena& arena;
  Store::Impl& store;
  SnapshotterOptions options;
  bool has_arena;
  const pid_t owner = ::getpid();

  // The image that the tracker's epoch and the heap's change log are relative to.
  std::optional<SnapshotImage> base;
  std::uint64_t base_id = 0;

  // Tables that outlive a call, so that the next one need not allocate.
  Collected collected;
  Collected latest;
  bool has_collected = false;  // for the snapshot or rollback under way
  TakeStats last_take;
  DirtyBitmap zeroed;  // what of it was purged, and what was freed
  std::optional<PageCapture> page_capture;
  std::optional<PageCopies> page_copies;  // of engine precopy
  std::optional<HeapDraft> heap_draft;

  std::uintptr_t region_begin() const { return arena.range().begin; }
  std::size_t region_pages() const { return arena.range().size / page_size(); }
  // Page 0 of the tracker's watch: the first one of the heap's data.
  std::size_t first_page() const { return arena.heap().geometry().data_offset / page_size(); }
  // Whether bytes that are free count as zero, whatever the memory holds.
  bool masks_free_bytes() const { return arena.heap().clear_policy() == ClearPolicy::deferred; }

  std::uint64_t parent_id() const {
    const ArenaOrigin& origin = arena.origin();
    return origin.store_uuid == store.root.uuid ? origin.snapshot : 0;
  }
  // The tracker's epoch began with a snapshot in another store.
  bool is_base_elsewhere() const { return base_id == 0 && arena.origin().snapshot != 0; }

  // Everything that may allocate, fail or take time, before writers are stopped.
  Result<void> prepare();
  // What has changed since the base, or since the last call for this snapshot, added to
  // `collected`; `latest` are the pages of this call that have a content.
  Result<void> collect(const UsedRanges& used, CollectMode mode);
  void begin_collecting();

 private:
  Result<void> load_base();
  void widen_to_base(const UsedRanges& used);
};

// Gives back to the tracker what was collected, unless it came to its use: also where memory runs
// out on the way.
class CollectedPages {
 public:
  CollectedPages(Arena& arena, const Collected& collected) : arena_(arena), collected_(collected) {}
  CollectedPages(const CollectedPages&) = delete;
  CollectedPages& operator=(const CollectedPages&) = delete;
  ~CollectedPages() {
    if (!used_) arena_.tracker().put_back(arena_.region().watch(), collected_);
  }
  void set_used() { used_ = true; }

 private:
  Arena& arena_;
  const Collected& collected_;
  bool used_ = false;
};

}  // namespace pagetide
