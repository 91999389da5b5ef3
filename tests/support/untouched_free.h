#pragma once

#include <cstddef>
#include <cstdint>

#include "pagetide/allocator/arena.h"
#include "pagetide/allocator/heap_change_log.h"
#include "tests/support/must.h"

namespace pagetide {

// Frees a small block by its bit alone: no byte of its page is written, as ClearPolicy::deferred
// does where a page is clean. While no other thread uses the arena.
inline void free_untouched(Arena& arena, void* block) {
  Heap& heap = arena.heap();
  const layout::Geometry& g = heap.geometry();
  heap.settle();
  std::byte* const base = arena.range().data();
  const auto at = static_cast<std::size_t>(static_cast<std::byte*>(block) - base) - g.data_offset;
  const std::size_t span = at / layout::kSpanBytes;
  const layout::SpanEntry& entry = heap.metadata().entry(span);
  const std::size_t slot = at % layout::kSpanBytes / layout::kSlotBytes[entry.size_class];
  const std::size_t group = slot / 64 / layout::kWordsPerGroup;
  heap.changes().note_line(span, group);
  auto* const line = const_cast<std::uint64_t*>(heap.metadata().line(span, group));
  line[slot / 64 % layout::kWordsPerGroup] &= ~(std::uint64_t{1} << (slot % 64));
  must(heap.rebuild());
}

}  // namespace pagetide
