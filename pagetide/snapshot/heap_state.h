#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "pagetide/allocator/heap_metadata.h"
#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/snapshot/heap_record.h"

namespace pagetide {

// The metadata of a heap at one snapshot, at the offsets of heap_layout.h: a copy of that part of
// the region, of which what is zero stays untouched address space.
class HeapState {
 public:
  // Of a heap without a byte. invalid_argument where the reservation is too small for a heap.
  static Result<HeapState> create(std::size_t reserve_bytes);

  HeapMetadata metadata() const { return {bytes_.span().data(), geometry_}; }
  const layout::Geometry& geometry() const { return geometry_; }

  // A record that was checked when it was read.
  void apply(std::span<const std::byte> record, format::HeapRecordKind kind);
  // All that is not zero.
  std::vector<std::byte> encode_full() const;

  // Calls visit(pages, content) for each run of pages that are not zero, ascending, with at most
  // 8 MiB at a time.
  using PageVisitor = std::function<Result<void>(PageRange, std::span<const std::byte>)>;
  Result<void> for_each_page_run(const PageVisitor& visit) const;

  bool operator==(const HeapState& other) const;
  // The parts in which two heaps of the same geometry differ, by offset from the region's start;
  // the superblock is not among them. Cost: reads the metadata of both.
  using PartVisitor = std::function<void(std::size_t offset, std::size_t size)>;
  void for_each_difference(const HeapState& other, const PartVisitor& visit) const;

  // Into a region whose metadata is zero.
  void write_to(std::byte* region) const;
  // Into a region that holds anything in the metadata of its first `spans` spans.
  void overwrite(std::byte* region, std::size_t spans) const;
  // A part alone: whole entries and lines as above, or the superblock.
  void write_part_to(std::byte* region, std::size_t offset, std::size_t size) const;
  void write_superblock_to(std::byte* region) const {
    write_part_to(region, 0, sizeof(layout::Superblock));
  }
  // Where these stand.
  std::size_t offset_of_root(std::size_t root) const {
    return geometry_.roots_offset + root * sizeof(layout::RootEntry);
  }
  std::size_t offset_of_entry(std::size_t span) const {
    return geometry_.spans_offset + span * sizeof(layout::SpanEntry);
  }
  std::size_t offset_of_line(std::size_t span, std::size_t group) const {
    return geometry_.bitmaps_offset + group * geometry_.group_bytes +
           span * layout::kBytesPerGroupLine;
  }

 private:
  class Writer;

  // The parts of the bytes that can differ from zero when so many spans were in use.
  std::vector<PageRange> used_pages(std::size_t spans) const;
  std::span<const std::byte> bytes_of(PageRange pages) const;

  layout::Geometry geometry_;
  VirtualArray<std::byte> bytes_;
};

}  // namespace pagetide
