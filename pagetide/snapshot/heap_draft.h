#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pagetide/allocator/heap_change_log.h"
#include "pagetide/allocator/heap_metadata.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/snapshot/heap_state.h"

namespace pagetide {

// What a snapshot under way has found changed in the heap's metadata: copies, in tables whose
// address space is there before writers are stopped, so that adding to them never allocates.
class HeapDraft {
 public:
  static Result<HeapDraft> create(std::size_t span_count);

  void clear();
  // Copies what is logged, or all that is not zero, and empties the log. While no thread is inside
  // the heap. Cost: what is logged, or the spans.
  void capture(const HeapMetadata& heap, HeapChangeLog& log, bool everything);
  // Notes again what the log held. Any time.
  void put_back(HeapChangeLog& log) const;

  // Calls visit(span) for each whose entry in the span table was captured, ascending.
  template <typename Visit>
  void for_each_entry(Visit&& visit) const {
    for (const Change& change : copied_.span().first(copied_count_)) {
      if (change.entry) visit(std::size_t{change.span});
    }
  }

  // The record of what was captured, as far as it differs from the parent.
  std::vector<std::byte> encode_against(const HeapState& parent) const;

  std::size_t captured_lines() const { return line_count_; }

 private:
  struct Change {
    std::uint32_t span;
    std::uint8_t lines;  // bit g: that of group g
    bool entry;
  };
  // Of the root table the index, and its content.
  struct RootChange {
    std::size_t root;
    layout::RootEntry entry;
  };

  void copy_span(const HeapMetadata& heap, const Change& change);

  layout::Superblock superblock_{};
  VirtualArray<Change> logged_;
  std::size_t logged_count_ = 0;
  VirtualArray<std::size_t> logged_roots_;
  std::size_t logged_root_count_ = 0;
  // What was copied, and the content of their entries and lines one after the other.
  VirtualArray<Change> copied_;
  std::size_t copied_count_ = 0;
  VirtualArray<layout::SpanEntry> entries_;
  std::size_t entry_count_ = 0;
  VirtualArray<format::BitmapLine> lines_;
  std::size_t line_count_ = 0;
  VirtualArray<RootChange> roots_;
  std::size_t root_count_ = 0;
};

}  // namespace pagetide
