#include "pagetide/allocator/fork_repair.h"

#include <algorithm>
#include <bit>

namespace pagetide {

using layout::kSizeClasses;
using layout::SpanEntry;
using layout::SpanKind;

namespace {

constexpr std::size_t kWords = layout::kBitmapGroups * layout::kWordsPerGroup;

// Only the bits in `mask` stay. Most words are right: they need not be copied for the child.
void keep_bits(HeapTables& tables, std::size_t span, std::size_t index, std::uint64_t mask) {
  std::uint64_t& bits = tables.word(span, index);
  if ((bits & ~mask) != 0) bits &= mask;
}

bool is_sound_large(const HeapTables& tables, std::size_t span, std::size_t used) {
  const SpanEntry& e = tables.entry(span);
  if (e.size_class != 0 || e.reserved != 0 || e.run_spans < 1 || e.run_spans > used - span) {
    return false;
  }
  for (std::size_t i = 1; i < e.run_spans; ++i) {
    if (std::bit_cast<std::uint64_t>(tables.entry(span + i)) != 0) return false;
  }
  return true;
}

bool is_sound_small(const SpanEntry& e) {
  return e.kind == SpanKind::small && e.size_class < kSizeClasses && e.reserved == 0 &&
         e.run_spans == 1;
}

// Makes the layout agree with itself at a span; how many spans that settles.
std::size_t repair_layout(HeapTables& tables, std::size_t span, std::size_t used) {
  SpanEntry& e = tables.entry(span);
  std::size_t slots = 0;
  std::size_t run = 1;
  if (is_sound_small(e)) {
    slots = layout::slots_per_span(e.size_class);
  } else if (e.kind == SpanKind::large && is_sound_large(tables, span, used)) {
    run = e.run_spans;
  } else if (std::bit_cast<std::uint64_t>(e) != 0) {
    e = {};
  }
  for (std::size_t i = 0; i < run; ++i) {
    for (std::size_t index = 0; index < kWords; ++index) {
      // What was freed by others than the owner is free, though nobody will take it in any more.
      keep_bits(tables, span + i, index,
                slot_bits(slots, index) & ~tables.remote_word(span + i, index));
    }
  }
  return run;
}

}  // namespace

void repair_after_fork(HeapTables& tables, ThreadHeap& heir) {
  const std::size_t used =
      std::min<std::size_t>(tables.superblock().spans_used, tables.geometry.span_count);
  for (std::size_t span = 0; span < used;) span += repair_layout(tables, span, used);
  // Commits nothing: so many spans were in use before.
  (void)tables.supply.reset(used);
  tables.forget_volatile();
  for (std::size_t span = 0; span < used;) {
    const SpanEntry& e = tables.entry(span);
    const std::size_t run = e.kind == SpanKind::large ? e.run_spans : 1;
    if (e.kind != SpanKind::free) tables.supply.mark_used(span, run);
    if (e.kind == SpanKind::small) heir.adopt(tables, span);
    span += run;
  }
}

}  // namespace pagetide
