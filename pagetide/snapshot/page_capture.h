#pragma once

#include <cstddef>
#include <cstdint>

#include "pagetide/allocator/free_mask.h"
#include "pagetide/base/error.h"
#include "pagetide/snapshot/draft.h"
#include "pagetide/snapshot/page_copies.h"
#include "pagetide/snapshot/page_map.h"
#include "pagetide/snapshot/segment.h"
#include "pagetide/snapshot/staging.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace pagetide {

// The pages of data of a snapshot under way: which of those that may have changed differ from the
// parent's, and copies of them. All tables are there before writers are stopped. Not thread-safe.
class PageCapture {
 public:
  static Result<PageCapture> create(std::size_t region_pages, std::size_t staging_bytes);

  // Pages and where they go.
  struct Source {
    const std::byte* region;
    std::size_t first_page;  // of the region, that is page 0 of what the tracker watches
    const PageMap& before;   // the parent's
    std::uint64_t hash_seed;
    FreeMask* mask;  // nullptr: bytes that are free are as they are
  };

  // Begins a snapshot.
  void begin() { draft_.clear(); }
  // Inside the stop. Pages that were written, and others that are zero, of which nothing is read.
  // Allocates nothing; writes to the disk only when the staging memory is full.
  Result<void> capture(const Source& source, const DirtyBitmap& written, const DirtyBitmap& zeroed,
                       SegmentWriter& segment);
  // The same after the stop, from copies of all pages of `written`: they are masked where they are,
  // and written.
  Result<void> capture_copies(const Source& source, const DirtyBitmap& written,
                              const DirtyBitmap& zeroed, PageCopies& copies,
                              SegmentWriter& segment);
  // Afterwards: writes the copies that are still in memory.
  Result<void> finish(SegmentWriter& segment) { return staging_.flush(segment); }
  // Whatever became of the snapshot; see Staging.
  void tidy(bool clear) { staging_.tidy(clear); }

  const SnapshotDraft& draft() const { return draft_; }
  // Pages of the watch that were written and are what they were.
  const DirtyBitmap& unchanged() const { return unchanged_; }
  // Those that are not in the snapshot as they are in memory.
  const DirtyBitmap& masked() const { return masked_; }

 private:
  template <typename AddWritten>
  Result<void> add_all(const Source& source, const DirtyBitmap& written, const DirtyBitmap& zeroed,
                       AddWritten&& add_written);
  Result<void> add_written(const Source& source, PageRange run, SegmentWriter& segment);
  bool add_copy(const Source& source, std::size_t tracked, std::byte* copy, std::uint64_t segment);
  void add_zeroed(const Source& source, PageRange run);
  void add_zero(const Source& source, std::size_t tracked);

  SnapshotDraft draft_;
  DirtyBitmap unchanged_;
  DirtyBitmap masked_;
  Staging staging_;
};

}  // namespace pagetide
