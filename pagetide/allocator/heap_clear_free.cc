#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/heap_impl.h"
#include "pagetide/base/hash.h"

namespace pagetide {

using layout::kSlotBytes;
using layout::kSpanBytes;
using layout::SpanEntry;
using layout::SpanKind;

namespace {

// Most of what is looked at is zero, and need not get dirty.
void clear_unless_zero(std::byte* block, std::size_t bytes) {
  if (!is_all_zero(block, bytes)) clear_memory(block, bytes);
}

}  // namespace

void Heap::Impl::clear_free_slots(std::size_t span, std::size_t size_class) {
  const std::size_t slot_bytes = kSlotBytes[size_class];
  const std::size_t slots = layout::slots_per_span(size_class);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const std::uint64_t mask = std::uint64_t{1} << (slot % 64);
    if ((tables.word(span, slot / 64) & mask) != 0) continue;
    clear_unless_zero(tables.span_data(span) + slot * slot_bytes, slot_bytes);
    tables.zero_word(span, slot / 64) |= mask;
  }
  clear_unless_zero(tables.span_data(span) + slots * slot_bytes, kSpanBytes - slots * slot_bytes);
  tables.heads[span].tail_is_zero = true;
}

Result<void> Heap::clear_free_memory() {
  const InHeap in_heap;
  if (impl_->tables.clear == ClearPolicy::never) {
    return failure(
        ErrorCode::invalid_argument,
        "free memory is not cleared for an arena under ClearPolicy::never: what is freed "
        "next would not be. Open it with ClearPolicy::on_free.");
  }
  settle();
  const std::size_t used = impl_->tables.superblock().spans_used;
  for (std::size_t span = 0; span < used;) {
    const SpanEntry e = impl_->tables.entry(span);
    if (e.kind == SpanKind::small) impl_->clear_free_slots(span, e.size_class);
    span += e.kind == SpanKind::large ? e.run_spans : 1;
  }
  impl_->tables.supply.clear_free_spans();
  impl_->free_bytes_are_zero = impl_->tables.clear == ClearPolicy::on_free;
  return {};
}

}  // namespace pagetide
