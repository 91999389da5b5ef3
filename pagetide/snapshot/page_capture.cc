#include "pagetide/snapshot/page_capture.h"

#include <cstring>
#include <utility>

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
  capture.masked_.reserve(region_pages);
  return capture;
}

// Both sets in one ascending walk.
template <typename AddWritten>
Result<void> PageCapture::add_all(const Source& source, const DirtyBitmap& written,
                                  const DirtyBitmap& zeroed, AddWritten&& add_written) {
  unchanged_.assign_clear(written.size());
  masked_.assign_clear(written.size());
  PageRange next_written = written.next_run(0);
  PageRange next_zeroed = zeroed.next_run(0);
  while (!next_written.empty() || !next_zeroed.empty()) {
    if (next_zeroed.empty() || (!next_written.empty() && next_written.first < next_zeroed.first)) {
      if (Result<void> r = add_written(next_written); !r) return r;
      next_written = written.next_run(next_written.end());
    } else {
      add_zeroed(source, next_zeroed);
      next_zeroed = zeroed.next_run(next_zeroed.end());
    }
  }
  return {};
}

Result<void> PageCapture::capture(const Source& source, const DirtyBitmap& written,
                                  const DirtyBitmap& zeroed, SegmentWriter& segment) {
  return add_all(source, written, zeroed,
                 [&](PageRange run) { return add_written(source, run, segment); });
}

Result<void> PageCapture::add_written(const Source& source, PageRange run, SegmentWriter& segment) {
  const std::size_t page_bytes = page_size();
  for (std::size_t tracked = run.first; tracked < run.end(); ++tracked) {
    const std::byte* content = source.region + (source.first_page + tracked) * page_bytes;
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
    if (add_copy(source, tracked, copy, segment.id())) staging_.add_page();
  }
  return {};
}

// Whether the copy is a page of the snapshot; else it is zero, or what it was.
bool PageCapture::add_copy(const Source& source, std::size_t tracked, std::byte* copy,
                           std::uint64_t segment) {
  const std::size_t page_bytes = page_size();
  const std::size_t page = source.first_page + tracked;
  if (source.mask != nullptr && source.mask->apply(page, copy)) {
    masked_.set(tracked);
    if (is_all_zero(copy, page_bytes)) {
      add_zero(source, tracked);
      return false;
    }
  }
  const Hash128 hash = hash128(copy, page_bytes, source.hash_seed);
  if (!source.before.is_zero(page) && source.before.hash(page) == hash) {
    unchanged_.set(tracked);
    return false;
  }
  draft_.add_data(page, segment, hash);
  return true;
}

namespace {

// Pages that lie one after the other in memory are appended by one call.
class RunAppender {
 public:
  explicit RunAppender(SegmentWriter& segment) : segment_(segment) {}

  Result<void> add(std::byte* page) {
    constexpr std::size_t kMostBytes = std::size_t{8} << 20;
    if (page != run_.data() + run_.size() || run_.size() >= kMostBytes) {
      if (auto r = flush(); !r) return r;
      run_ = {page, 0};
    }
    run_ = {run_.data(), run_.size() + page_size()};
    return {};
  }
  Result<void> flush() { return segment_.append(std::exchange(run_, {})); }

 private:
  SegmentWriter& segment_;
  std::span<std::byte> run_;
};

}  // namespace

Result<void> PageCapture::capture_copies(const Source& source, const DirtyBitmap& written,
                                         const DirtyBitmap& zeroed, PageCopies& copies,
                                         SegmentWriter& segment) {
  RunAppender appender(segment);
  auto added = add_all(source, written, zeroed, [&](PageRange run) -> Result<void> {
    for (std::size_t tracked = run.first; tracked < run.end(); ++tracked) {
      std::byte* copy = copies.find(tracked);
      if (is_all_zero(copy, page_size())) {
        add_zero(source, tracked);
      } else if (add_copy(source, tracked, copy, segment.id())) {
        if (auto r = appender.add(copy); !r) return r;
      }
    }
    return {};
  });
  return added ? appender.flush() : added;
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
