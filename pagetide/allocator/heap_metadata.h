#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "pagetide/allocator/heap_layout.h"

namespace pagetide {

// A heap's metadata where it stands at the offsets of heap_layout.h: in a region, or in a copy of
// that part of it. Plain value; the memory belongs to somebody else, and may hold anything.
class HeapMetadata {
 public:
  HeapMetadata(const std::byte* base, const layout::Geometry& geometry)
      : base_(base), geometry_(geometry) {}

  const layout::Geometry& geometry() const { return geometry_; }
  const layout::Superblock& superblock() const { return at<layout::Superblock>(0); }
  // No entry and no line from here on differs from zero.
  std::size_t spans_used() const {
    return std::min<std::size_t>(superblock().spans_used, geometry_.span_count);
  }
  const layout::RootEntry& root(std::size_t index) const {
    return at<layout::RootEntry>(geometry_.roots_offset + index * sizeof(layout::RootEntry));
  }
  const layout::SpanEntry& entry(std::size_t span) const {
    return at<layout::SpanEntry>(geometry_.spans_offset + span * sizeof(layout::SpanEntry));
  }
  // The kWordsPerGroup words of a span and group.
  const std::uint64_t* line(std::size_t span, std::size_t group) const {
    return &at<std::uint64_t>(geometry_.bitmaps_offset + group * geometry_.group_bytes +
                              span * layout::kBytesPerGroupLine);
  }
  std::uint64_t word(std::size_t span, std::size_t index) const {
    return line(span, index / layout::kWordsPerGroup)[index % layout::kWordsPerGroup];
  }

 private:
  template <typename T>
  const T& at(std::size_t offset) const {
    return *reinterpret_cast<const T*>(base_ + offset);
  }

  const std::byte* base_;
  layout::Geometry geometry_;
};

}  // namespace pagetide
