#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "pagetide/allocator/heap.h"
#include "pagetide/allocator/region.h"
#include "tests/support/must.h"

namespace pagetide {

inline std::string name_of(ClearPolicy policy) {
  switch (policy) {
    case ClearPolicy::deferred:
      return "deferred";
    case ClearPolicy::on_free:
      return "on_free";
    case ClearPolicy::never:
      break;
  }
  return "never";
}

// A heap in a region of its own.
class TestHeap {
 public:
  explicit TestHeap(std::size_t reserve_bytes = std::size_t{32} << 20,
                    ClearPolicy clear = ClearPolicy::on_free)
      : region_(must(Region::reserve(options(reserve_bytes)))),
        heap_(must(Heap::format(region_, "test heap", clear))) {}

  Heap& operator*() const { return *heap_; }
  Heap* operator->() const { return heap_.get(); }
  Region& region() { return region_; }
  std::byte* data() { return region_.base() + heap_->geometry().data_offset; }
  layout::Superblock& superblock() {
    return *reinterpret_cast<layout::Superblock*>(region_.base());
  }
  layout::SpanEntry& entry(std::size_t span) {
    return reinterpret_cast<layout::SpanEntry*>(region_.base() +
                                                heap_->geometry().spans_offset)[span];
  }
  // Word `index` of a span's slot bitmap, by the rule in heap_layout.h.
  std::uint64_t& bitmap_word(std::size_t span, std::size_t index) {
    const layout::Geometry& g = heap_->geometry();
    return reinterpret_cast<std::uint64_t*>(
        region_.base() + g.bitmaps_offset + index / layout::kWordsPerGroup * g.group_bytes +
        span * layout::kBytesPerGroupLine)[index % layout::kWordsPerGroup];
  }

 private:
  static RegionOptions options(std::size_t reserve_bytes) {
    RegionOptions result;
    result.reserve_bytes = reserve_bytes;
    result.tracked_from =
        must(layout::geometry_for(round_up(reserve_bytes, page_size()))).data_offset;
    return result;
  }

  Region region_;
  std::unique_ptr<Heap> heap_;
};

}  // namespace pagetide
