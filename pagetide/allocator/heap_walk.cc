#include <fmt/format.h>

#include <array>
#include <vector>

#include "pagetide/allocator/heap_impl.h"

namespace pagetide {

using layout::kSizeClasses;
using layout::kSlotBytes;
using layout::kSpanBytes;
using layout::SpanEntry;
using layout::SpanKind;

std::size_t Heap::Impl::count_allocated(std::size_t span, std::size_t size_class) {
  std::size_t allocated = 0;
  for (std::size_t i = 0; i * 64 < layout::slots_per_span(size_class); ++i) {
    allocated += bit_count(load_shared(tables.word(span, i)));
  }
  return allocated;
}

void Heap::for_each_allocation(const std::function<void(void*, std::size_t)>& visit) const {
  const InHeap in_heap;
  settle();
  const std::size_t used = impl_->tables.superblock().spans_used;
  for (std::size_t span = 0; span < used;) {
    const SpanEntry e = impl_->tables.entry(span);
    if (e.kind == SpanKind::large) {
      visit(impl_->tables.span_data(span), std::size_t{e.run_spans} * kSpanBytes);
      span += e.run_spans;
      continue;
    }
    if (e.kind == SpanKind::small) {
      for (std::size_t slot = 0; slot < layout::slots_per_span(e.size_class); ++slot) {
        if ((impl_->tables.word(span, slot / 64) >> (slot % 64) & 1U) == 0) continue;
        visit(impl_->tables.span_data(span) + slot * kSlotBytes[e.size_class],
              kSlotBytes[e.size_class]);
      }
    }
    ++span;
  }
}

// That every thread heap counts what its spans have.
Result<void> Heap::Impl::check_totals() {
  using Totals = std::array<ThreadHeap::Totals, kSizeClasses>;
  std::vector<Totals> counted(threads->count());
  for (std::size_t span = 0; span < tables.superblock().spans_used; ++span) {
    const SpanEntry e = tables.entry(span);
    if (e.kind != SpanKind::small) continue;
    const std::uint32_t owner = owner_of(tables.heads[span]);
    if (owner == 0 || owner > counted.size()) {
      return failure(ErrorCode::damaged, fmt::format("span {} belongs to nobody.", span));
    }
    ThreadHeap::Totals& totals = counted[owner - 1].at(e.size_class);
    totals.slots += layout::slots_per_span(e.size_class);
    totals.free_slots += tables.states[span].free_slots;
  }
  for (std::size_t i = 0; i < counted.size(); ++i) {
    const ThreadHeap& heap = threads->by_number(static_cast<std::uint32_t>(i + 1));
    for (std::size_t c = 0; c < kSizeClasses; ++c) {
      if (heap.totals(c) == counted[i][c]) continue;
      return failure(
          ErrorCode::damaged,
          fmt::format("thread heap {} miscounts its slots of {} bytes.", i + 1, kSlotBytes[c]));
    }
  }
  return {};
}

Result<HeapStats> Heap::check() const {
  const InHeap in_heap;
  if (auto r = layout::check_superblock(impl_->tables.superblock(), impl_->tables.region.range());
      !r) {
    return propagate(r);
  }
  settle();
  const std::size_t used = impl_->tables.superblock().spans_used;
  std::size_t in_use = 0;
  for (std::size_t span = 0; span < used;) {
    if (auto r = impl_->check_span(span); !r) return propagate(r);
    const SpanEntry e = impl_->tables.entry(span);
    const std::size_t run = e.kind == SpanKind::large ? e.run_spans : 1;
    if (e.kind != SpanKind::free) in_use += run;
    // Bits stand only where there are slots: none in free and large spans.
    const std::size_t slots = e.kind == SpanKind::small ? layout::slots_per_span(e.size_class) : 0;
    for (std::size_t i = 0; i < layout::kBitmapGroups * layout::kWordsPerGroup; ++i) {
      if ((impl_->tables.word(span, i) & ~slot_bits(slots, i)) != 0) {
        return failure(
            ErrorCode::damaged,
            fmt::format("the heap's slot bitmap of span {} has bits without slots.", span));
      }
    }
    if (e.kind == SpanKind::small) {
      for (std::size_t i = 0; i * 64 < slots; ++i) {
        if (impl_->tables.word(span, i) == impl_->tables.taken_word(span, i)) continue;
        return failure(ErrorCode::damaged,
                       fmt::format("slots of span {} are free, and not to be had.", span));
      }
      const std::size_t free_slots = slots - impl_->count_allocated(span, e.size_class);
      if (free_slots != impl_->tables.states[span].free_slots) {
        return failure(ErrorCode::damaged,
                       fmt::format("span {} counts {} free slots; its bitmap has {}.", span,
                                   impl_->tables.states[span].free_slots, free_slots));
      }
    }
    span += run;
  }
  if (auto r = impl_->check_totals(); !r) return propagate(r);
  if (in_use != impl_->tables.supply.used_spans()) {
    return failure(ErrorCode::damaged,
                   fmt::format("{} spans are in use, but the span supply counts {}.", in_use,
                               impl_->tables.supply.used_spans()));
  }
  return stats();
}

HeapStats Heap::stats() const {
  const InHeap in_heap;
  settle();
  HeapStats s;
  const std::size_t used = impl_->tables.superblock().spans_used;
  for (std::size_t span = 0; span < used;) {
    const SpanEntry e = impl_->tables.entry(span);
    if (e.kind == SpanKind::small) {
      const std::size_t allocated = impl_->count_allocated(span, e.size_class);
      s.live_blocks += allocated;
      s.live_bytes += allocated * kSlotBytes[e.size_class];
    } else if (e.kind == SpanKind::large) {
      s.live_blocks += 1;
      s.live_bytes += std::uint64_t{e.run_spans} * kSpanBytes;
    }
    span += e.kind == SpanKind::large ? e.run_spans : 1;
  }
  s.spans_in_use = impl_->tables.supply.used_spans();
  s.heap_bytes = heap_bytes();
  s.idle_bytes = impl_->tables.supply.idle_spans() * kSpanBytes;
  s.reserve_bytes = impl_->tables.region.range().size;
  return s;
}

std::array<ClassStats, kSizeClasses> Heap::class_stats() const {
  const InHeap in_heap;
  settle();
  std::array<ClassStats, kSizeClasses> stats{};
  for (std::size_t c = 0; c < kSizeClasses; ++c) stats[c].slot_bytes = kSlotBytes[c];
  const std::size_t used = impl_->tables.superblock().spans_used;
  for (std::size_t span = 0; span < used;) {
    const SpanEntry e = impl_->tables.entry(span);
    if (e.kind == SpanKind::small) {
      ClassStats& of_class = stats.at(e.size_class);
      of_class.slots += layout::slots_per_span(e.size_class);
      of_class.live += impl_->count_allocated(span, e.size_class);
      of_class.spans += 1;
    }
    span += e.kind == SpanKind::large ? e.run_spans : 1;
  }
  return stats;
}

}  // namespace pagetide
