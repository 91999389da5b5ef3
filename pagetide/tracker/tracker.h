#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "pagetide/base/error.h"
#include "pagetide/base/export.h"
#include "pagetide/base/page_range.h"
#include "pagetide/tracker/backend_choice.h"
#include "pagetide/tracker/dirty_backend.h"
#include "pagetide/tracker/dirty_bitmap.h"
#include "pagetide/tracker/hot_page_options.h"
#include "pagetide/tracker/prefill.h"

namespace pagetide {

class AnyBackend;

struct TrackerOptions {
  BackendKind backend = BackendKind::automatic;
  // No system call ever writes to the watched memory (read(2) and the like into it would fail
  // with EFAULT). Lets `automatic` fall back to uffd_sigbus and mprotect.
  bool never_syscall_target = false;
  // No thread writes to watched memory during a take. Lets `automatic` fall back to soft_dirty,
  // which loses such writes.
  bool writers_held_in_takes = false;
  HotPageOptions hot_pages = {};
  BackendSettings settings = {};
};

// Names one reader of a Tracker's stream of writes, with epochs of its own; never used again for
// another one. Value 0 is always there.
struct ConsumerId {
  std::uint32_t value = 0;
  friend bool operator==(const ConsumerId&, const ConsumerId&) = default;
};

// Names one watched range of a Tracker; never used again for another one. Value 0 is none.
struct WatchId {
  std::uint64_t value = 0;
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
  std::uint64_t pages_unchanged = 0;  // the surplus, as far as consumers told
  std::uint64_t hot_blocks = 0;       // of 2 MiB, left unarmed by the latest take of each watch
  std::uint64_t poisoned_takes = 0;
  std::uint64_t last_collect_ns = 0;
  std::uint64_t total_collect_ns = 0;
};

// Tells which pages of watched memory were written since the last take, by any thread of this
// process or by the kernel on its behalf (read(2) and the like).
//
// Not seen, with every back end but compare: writes through another mapping of the same memory or
// to the file under a private one, holes made in the file or memfd behind it, and writes through
// long-term pins (io_uring registered buffers, RDMA, VFIO). Declare such ranges with
// mark_always_dirty(). Purges (MADV_DONTNEED of private memory) must go through purge() or be told
// by note_purged(). Forbidden in watched memory: munmap, MAP_FIXED, mremap, MADV_FREE.
//
// Thread-safe: every method may be called from any thread. A collect is atomic a page, not over
// the range: for the state of one instant, hold the writers (that is what Snapshotter does).
//
// After fork() the child's calls fail with ErrorCode::forked or do nothing, since the descriptors
// still belong to the parent's memory; none of them waits for a lock. The parent goes on
// undisturbed.
class PAGETIDE_API Tracker {
 public:
  static Result<Tracker> create(const TrackerOptions& options = {});
  // Over a back end of the caller's; for tests and for new back ends.
  static Tracker over(AnyBackend backend, const HotPageOptions& hot_pages = {});

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
  // What was handed to watch(). Errors: invalid_argument when it was unwatched.
  Result<ByteRange> range(WatchId watch) const;

  // The written pages of `parts` (page-aligned, inside the watched range; by default all of it).
  // take begins a new epoch for these parts, as do take_again and take_unarmed (CollectMode); peek
  // changes nothing. A failing scan is not an
  // error: it poisons the epoch (see Collected). Errors: forked, invalid_argument.
  // Cost with uffd_async: 3-6 ns a clean populated page, 50-60 ns a written one.
  Result<Collected> collect(WatchId watch, std::span<const ByteRange> parts, CollectMode mode,
                            ConsumerId consumer = {});
  Result<Collected> collect(WatchId watch, CollectMode mode, ConsumerId consumer = {});
  // The same into a value of the caller's. Allocates nothing when reserve() was called on it for
  // this watch, so that it can run while other threads are held wherever they were.
  Result<void> collect_into(WatchId watch, std::span<const ByteRange> parts, CollectMode mode,
                            Collected& out, ConsumerId consumer = {});
  Result<void> collect_into(WatchId watch, CollectMode mode, Collected& out,
                            ConsumerId consumer = {});
  void reserve(WatchId watch, Collected& out) const;

  // A further consumer: it sees at least what is written from now on, whatever the others take.
  // Up to 8, the first included. Errors: out_of_memory.
  Result<ConsumerId> add_consumer();
  void remove_consumer(ConsumerId consumer);

  // Tells which pages of the latest take had not really changed, for consumers that compare or
  // hash: the surplus is counted, and adaptive arming learns from it.
  void report_unchanged(WatchId watch, const DirtyBitmap& unchanged);

  // The next collect of every consumer reports these pages (in addition to what it finds).
  void mark_dirty(ByteRange range);
  // Puts back what a take reported and nobody could use (a failed snapshot).
  void put_back(WatchId watch, const Collected& collected, ConsumerId consumer = {});
  // Every collect from now on reports these pages.
  void mark_always_dirty(ByteRange range);

  // MADV_DONTNEED and the log entry as one step, of whole pages of watched memory. In a forked
  // child without the log. Errors: invalid_argument; unsupported where a file or memfd lies behind
  // the memory, whose content would come back; system_failure where it is locked (mlock): then a
  // part may be zero by now, and all of it counts as written.
  Result<void> purge(ByteRange range);
  // For memory that the caller purged himself: call it after the purge, before the pages are used
  // again. A collect between the two does not know of the purge yet; the next one does.
  void note_purged(ByteRange range);

  // How many pages of watched memory a store would fault on because they are armed; untouched ones
  // may be counted too. An estimate, for deciding what is cheaper: writers and takes change it at
  // any time. Allocates nothing. Cost: 1 us, and 2 to 6 ns a page. 0 in a forked child.
  std::size_t count_armed(ByteRange range) const;

  // Prepares untouched pages of watched anonymous memory and arms them; pages in use, and memory
  // with a file or memfd behind it, stay as they are.
  Result<void> prefill(ByteRange range, Prefill policy);

  TrackerStats stats() const;

  // Grows with every take of any consumer: what was written before it is armed again after it. For
  // allocators that prefer pages which are written already. The reference lives as long as the
  // tracker, also while it is moved.
  const std::atomic<std::uint32_t>& take_count() const;

 private:
  struct Impl;
  explicit Tracker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pagetide
