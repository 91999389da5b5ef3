#pragma once

#include <cstdint>
#include <span>

#include "pagetide/base/virtual_array.h"
#include "pagetide/snapshot/format.h"

namespace pagetide {

// What a snapshot under way has found changed: extents and hashes, in tables whose address space
// is there before writers are stopped, so that adding to them never allocates.
class SnapshotDraft {
 public:
  static Result<SnapshotDraft> create(std::size_t page_count);

  void clear();
  // Pages come in ascending order. A data page's content is the next payload page of `segment`.
  void add_data(std::uint64_t page, std::uint64_t segment, const Hash128& hash);
  void add_zero(std::uint64_t page);

  std::uint64_t data_pages() const { return hash_count_; }
  std::uint64_t zero_pages() const { return zero_pages_; }
  std::span<const format::Extent> extents() const { return extents_.span().first(extent_count_); }
  std::span<const Hash128> hashes() const { return hashes_.span().first(hash_count_); }

 private:
  void add(std::uint64_t page, format::ExtentKind kind, std::uint64_t segment);

  VirtualArray<format::Extent> extents_;
  VirtualArray<Hash128> hashes_;
  std::size_t extent_count_ = 0;
  std::size_t hash_count_ = 0;
  std::uint64_t zero_pages_ = 0;
};

}  // namespace pagetide
