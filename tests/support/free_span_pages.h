#pragma once

#include <cstddef>

#include "pagetide/allocator/heap_metadata.h"
#include "pagetide/snapshot/store_impl.h"

namespace pagetide {

// Calls visit(page) for each page of the spans that are not in use in a snapshot, numbered from the
// region's start; by a walk over its whole span table.
template <typename Visit>
void for_each_page_of_free_spans(const SnapshotImage& image, Visit visit) {
  const HeapMetadata heap = image.heap.metadata();
  const std::size_t first_page = heap.geometry().data_offset / page_size();
  const std::size_t pages_per_span = layout::kSpanBytes / page_size();
  for (std::size_t span = 0; span < heap.spans_used();) {
    const layout::SpanEntry& entry = heap.entry(span);
    if (entry.kind == layout::SpanKind::free) {
      for (std::size_t i = 0; i < pages_per_span; ++i)
        visit(first_page + span * pages_per_span + i);
      ++span;
    } else {
      span += entry.run_spans;
    }
  }
}

inline std::size_t count_pages_of_free_spans(const SnapshotImage& image) {
  std::size_t pages = 0;
  for_each_page_of_free_spans(image, [&](std::size_t) { ++pages; });
  return pages;
}

// Of these, those that the snapshot refers to a segment for.
inline std::size_t count_stored_pages_of_free_spans(const SnapshotImage& image) {
  std::size_t pages = 0;
  for_each_page_of_free_spans(
      image, [&](std::size_t page) { pages += image.pages.is_zero(page) ? 0U : 1U; });
  return pages;
}

}  // namespace pagetide
