#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "pagetide/base/error.h"
#include "pagetide/base/export.h"
#include "pagetide/base/page_range.h"
#include "pagetide/tracker/dirty_backend.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace pagetide {

class AnyBackend;

struct TrackerOptions {
  BackendKind backend = BackendKind::automatic;
};

// Names one watched range of a Tracker.
struct WatchId {
  std::uint32_t value = 0;
  friend bool operator==(const WatchId&, const WatchId&) = default;
};

// What one collect() found. Pages are numbered from the start of the watched range.
struct Collected {
  // May have been written since the last take. Never misses one; may name a few too many.
  DirtyBitmap written;
  // Purged since the last take and not written since: their content is zero and need not be read.
  // Disjoint from `written`.
  DirtyBitmap zeroed;
  // The scan failed: `written` names every page of the parts that were asked for.
  bool poisoned = false;
  std::string cause;  // why, when poisoned
};

struct TrackerStats {
  std::uint64_t takes = 0;
  std::uint64_t peeks = 0;
  std::uint64_t pages_reported = 0;  // by takes, written and zeroed
  std::uint64_t pages_purged = 0;
  std::uint64_t poisoned_takes = 0;
  std::uint64_t last_collect_ns = 0;
  std::uint64_t total_collect_ns = 0;
};

// Tells which pages of watched memory were written since the last take, by any thread of this
// process or by the kernel on its behalf (read(2) and the like).
//
// Not seen, with every back end but compare: writes through another mapping of the same memory,
// and through long-term pins (io_uring fixed buffers, RDMA, VFIO). Declare such ranges with
// mark_always_dirty(). Purges (MADV_DONTNEED) must go through purge() or be told by
// note_purged(). Forbidden in watched memory: munmap, MAP_FIXED, mremap, MADV_FREE.
//
// Thread-safe: every method may be called from any thread. A collect is atomic a page, not over
// the range: for the state of one instant, hold the writers (that is what Snapshotter does).
//
// After fork() the child's calls fail with ErrorCode::forked, since the descriptors still belong
// to the parent's memory; the parent goes on undisturbed.
class PAGETIDE_API Tracker {
 public:
  static Result<Tracker> create(const TrackerOptions& options = {});
  // Over a back end of the caller's; for tests and for new back ends.
  static Tracker over(AnyBackend backend);

  Tracker(Tracker&&) noexcept;
  Tracker& operator=(Tracker&&) noexcept;
  ~Tracker();

  BackendKind backend() const;
  // Why `automatic` chose this back end; empty when it was asked for by name.
  const std::string& reason() const;

  // Begins to track; page-aligned, mapped by the caller, who keeps it mapped until unwatch() or
  // the tracker's end. The first collect reports what is populated by then.
  Result<WatchId> watch(ByteRange range);
  void unwatch(WatchId watch);

  // The written pages of `parts` (page-aligned, inside the watched range; by default all of it).
  // take begins a new epoch for these parts, peek changes nothing. A failing scan is not an
  // error: it poisons the epoch (see Collected). Errors: forked, invalid_argument.
  // Cost with uffd_async: 3-6 ns a clean populated page, 50-60 ns a written one.
  Result<Collected> collect(WatchId watch, std::span<const ByteRange> parts, CollectMode mode);
  Result<Collected> collect(WatchId watch, CollectMode mode);
  // The same into a value of the caller's. Allocates nothing when reserve() was called on it for
  // this watch, so that it can run while other threads are held wherever they were.
  Result<void> collect_into(WatchId watch, std::span<const ByteRange> parts, CollectMode mode,
                            Collected& out);
  void reserve(WatchId watch, Collected& out) const;

  // The next collect reports these pages (in addition to what it finds).
  void mark_dirty(ByteRange range);
  // Puts back what a take reported and nobody could use (a failed snapshot).
  void put_back(WatchId watch, const Collected& collected);
  // Every collect from now on reports these pages.
  void mark_always_dirty(ByteRange range);

  // MADV_DONTNEED and the log entry as one step. Fails where the memory is locked (mlock).
  Result<void> purge(ByteRange range);
  // For memory that the caller purged himself: call it after the purge, before the pages are used
  // again. A collect between the two does not know of the purge yet; the next one does.
  void note_purged(ByteRange range);

  // Zero-page entries for untouched pages of watched memory, armed, so that reading them never
  // faults and their first write is one fault. Does nothing where the back end has no such thing.
  Result<void> prefill_zero(ByteRange range);

  TrackerStats stats() const;

 private:
  struct Impl;
  explicit Tracker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pagetide
