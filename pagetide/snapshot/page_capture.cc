#include "pagetide/snapshot/page_capture.h"

#include <cstring>

#include "pagetide/base/hash.h"

namespace pagetide {

Result<PageCapture> PageCapture::create(std::size_t region_pages, std::size_t staging_bytes) {
  PageCapture capture;
  auto draft = SnapshotDraft::create(region_pages);
  if (!draft) return propagate(draft);
  auto staging = Staging::create(staging_bytes);
  if (!staging) return propagate(staging);
  capture.draft_ = std::move(*draft);
  capture.staging_ = std::move(*staging);
  capture.unchanged_.reserve(region_pages);
  return capture;
}

Result<void> PageCapture::capture(const Source& source, const DirtyBitmap& written,
                                  const DirtyBitmap& zeroed, SegmentWriter& segment) {
  unchanged_.assign_clear(written.size());
  // Both sets in one ascending walk.
  PageRange next_written = written.next_run(0);
  PageRange next_zeroed = zeroed.next_run(0);
  while (!next_written.empty() || !next_zeroed.empty()) {
    if (next_zeroed.empty() || (!next_written.empty() && next_written.first < next_zeroed.first)) {
      if (auto r = add_written(source, next_written, segment); !r) return r;
      next_written = written.next_run(next_written.end());
    } else {
      add_zeroed(source, next_zeroed);
      next_zeroed = zeroed.next_run(next_zeroed.end());
    }
  }
  return {};
}

Result<void> PageCapture::add_written(const Source& source, PageRange run, SegmentWriter& segment) {
  const std::size_t page_bytes = page_size();
  for (std::size_t tracked = run.first; tracked < run.end(); ++tracked) {
    const std::size_t page = source.first_page + tracked;
    const std::byte* content = source.region + page * page_bytes;
    if (is_all_zero(content, page_bytes)) {
      add_zero(source, tracked);
      continue;
    }
    if (staging_.is_full()) {
      if (auto r = staging_.flush(segment); !r) return r;
    }
    // One pass: the hash reads the copy while it is still in the first-level cache.
    std::byte* copy = staging_.next_page();
    std::memcpy(copy, content, page_bytes);
    if (source.mask != nullptr && source.mask->apply(page, copy) && is_all_zero(copy, page_bytes)) {
      add_zero(source, tracked);
      continue;
    }
    const Hash128 hash = hash128(copy, page_bytes, source.hash_seed);
    if (!source.before.is_zero(page) && source.before.hash(page) == hash) {
      unchanged_.set(tracked);
      continue;
    }
    draft_.add_data(page, segment.id(), hash);
    staging_.add_page();
  }
  return {};
}

// A page that was written and is zero.
void PageCapture::add_zero(const Source& source, std::size_t tracked) {
  const std::size_t page = source.first_page + tracked;
  if (source.before.is_zero(page)) {
    unchanged_.set(tracked);
  } else {
    draft_.add_zero(page);
  }
}

void PageCapture::add_zeroed(const Source& source, PageRange run) {
  for (std::size_t page = source.first_page + run.first; page < source.first_page + run.end();
       ++page) {
    if (!source.before.is_zero(page)) draft_.add_zero(page);
  }
}

}  // namespace pagetide
