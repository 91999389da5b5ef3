#include "pagetide/snapshot/freed_pages.h"

#include <algorithm>
#include <cstdint>

#include "pagetide/allocator/free_mask.h"

namespace pagetide {

using layout::SpanEntry;
using layout::SpanKind;

namespace {

// Spans that an entry stands for.
std::size_t run_spans(const SpanEntry& entry) {
  switch (entry.kind) {
    case SpanKind::free:
      return 0;
    case SpanKind::small:
      return 1;
    case SpanKind::large:
      break;
  }
  return entry.run_spans;
}

}  // namespace

void add_freed_pages(const HeapDraft& changes, const HeapMetadata& before, const HeapMetadata& now,
                     DirtyBitmap& freed) {
  const std::size_t pages_per_span = layout::kSpanBytes / page_size();
  const std::size_t first_page = now.geometry().data_offset / page_size();
  const std::size_t span_end = freed.size() / pages_per_span;
  FreeMask mask(now);
  // Of the large blocks so far. One that reaches into an old run from before it is new too, so its
  // entry is among the changes.
  std::size_t taken_end = 0;
  changes.for_each_entry([&](std::size_t first) {
    const SpanEntry& head = now.entry(first);
    if (head.kind == SpanKind::large) taken_end = std::max(taken_end, first + head.run_spans);
    const std::size_t end = std::min(first + run_spans(before.entry(first)), span_end);
    for (std::size_t span = std::max(first, taken_end); span < end; ++span) {
      const PageRange pages{span * pages_per_span, pages_per_span};
      const SpanEntry& entry = now.entry(span);
      if (entry.kind == SpanKind::free) {
        freed.set_range(pages);
      } else if (entry.kind == SpanKind::small) {
        for (std::size_t page = pages.first; page < pages.end(); ++page) {
          if (mask.is_free(first_page + page)) freed.set(page);
        }
      } else {
        taken_end = span + std::max<std::size_t>(1, run_spans(entry));
        span = taken_end - 1;
      }
    }
  });
}

}  // namespace pagetide
