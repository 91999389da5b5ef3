#include "pagetide/snapshot/draft.h"

namespace pagetide {

Result<SnapshotDraft> SnapshotDraft::create(std::size_t page_count) {
  SnapshotDraft draft;
  auto extents = VirtualArray<format::Extent>::create(page_count);
  if (!extents) return propagate(extents);
  auto hashes = VirtualArray<Hash128>::create(page_count);
  if (!hashes) return propagate(hashes);
  draft.extents_ = std::move(*extents);
  draft.hashes_ = std::move(*hashes);
  return draft;
}

void SnapshotDraft::clear() {
  extent_count_ = 0;
  hash_count_ = 0;
  zero_pages_ = 0;
}

void SnapshotDraft::add(std::uint64_t page, format::ExtentKind kind, std::uint64_t segment) {
  if (extent_count_ > 0) {
    format::Extent& last = extents_[extent_count_ - 1];
    if (last.kind == kind && last.first_page + last.page_count == page &&
        last.page_count < UINT32_MAX) {
      ++last.page_count;
      return;
    }
  }
  extents_[extent_count_++] = {page, 1, kind, segment, segment != 0 ? hash_count_ : 0};
}

void SnapshotDraft::add_data(std::uint64_t page, std::uint64_t segment, const Hash128& hash) {
  add(page, format::ExtentKind::data, segment);
  hashes_[hash_count_++] = hash;
}

void SnapshotDraft::add_zero(std::uint64_t page) {
  add(page, format::ExtentKind::zero, 0);
  ++zero_pages_;
}

}  // namespace pagetide
