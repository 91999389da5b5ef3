#include <algorithm>
#include <optional>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/clear/slot_kernels.h"
#include "pagetide/allocator/heap_impl.h"
#include "pagetide/allocator/run_zeroing.h"

namespace pagetide {

using layout::kSizeClasses;
using layout::kSlotBytes;
using layout::kSpanBytes;
using layout::SpanKind;

Allocated Heap::Impl::allocate_small(std::size_t size_class) {
  ThreadHeap* const mine = my_heap();
  const Allocated allocated = mine != nullptr ? allocate_from(*mine, size_class)
                                              : threads->with_shared([&](ThreadHeap& shared) {
                                                  return allocate_from(shared, size_class);
                                                });
  return clear_late(allocated, size_class);
}

// What the policy wants to be cleared before it is handed out.
Allocated Heap::Impl::clear_late(Allocated allocated, std::size_t size_class) const {
  if (allocated.block != nullptr && !allocated.known_zero && tables.clears_late()) {
    clear_slot(allocated.block, kSlotBytes[size_class]);
    allocated.known_zero = true;
  }
  return allocated;
}

Allocated Heap::Impl::allocate_from(ThreadHeap& heap, std::size_t size_class) {
  for (;;) {
    FreeStack& stack = heap.stack(size_class);
    if (!stack.empty()) {
      const FreeSlot slot = *--stack.top;
      slot.mark_allocated();
      return {slot.block(), slot.ordinary() == tables.clears};
    }
    if (!heap.refill(tables, size_class)) return {};
  }
}

Allocated Heap::Impl::allocate_large(std::size_t bytes, std::size_t alignment,
                                     std::size_t overwritten) {
  // No bytes at a large alignment are a block of their own too.
  const std::size_t count = divide_up(std::max<std::size_t>(bytes, 1), kSpanBytes);
  if (count > tables.geometry.span_count) return {};
  const std::size_t alignment_spans = std::max<std::size_t>(1, alignment / kSpanBytes);
  const auto run = tables.supply.allocate(count, alignment_spans, tables.superblock().spans_used);
  if (!run) return {};
  const bool known_zero = clear_if_late(run->known_zero, run->first, count, overwritten);
  tables.changes.note_entry(run->first);
  tables.entry(run->first) = {SpanKind::large, 0, 0, static_cast<std::uint32_t>(count)};
  return {tables.span_data(run->first), known_zero};
}

// What was freed is cleared before it is used again, less what is about to be written anyway.
// Whether the run is zero.
bool Heap::Impl::clear_if_late(bool known_zero, std::size_t first, std::size_t count,
                               std::size_t overwritten) {
  if (known_zero || !tables.clears_late()) return known_zero;
  const std::size_t kept = round_down(overwritten, page_size());
  clear_run({reinterpret_cast<std::uintptr_t>(tables.span_data(first)) + kept,
             count * kSpanBytes - kept});
  return kept == 0;
}

// Of memory that is in use from now on.
void Heap::Impl::clear_run(ByteRange run) {
  if (zero_run(tables.region, run) == ZeroedBy::purge) (void)tables.region.prefill(run);
}

// Those of the calling thread, and of threads that have ended.
bool Heap::Impl::release_empty_spans() {
  bool any = false;
  if (ThreadHeap* mine = my_heap()) {
    mine->drain(tables);
    any = mine->release_empty_spans(tables);
  }
  any = threads->release_unowned() || any;
  return threads->with_shared([&](ThreadHeap& shared) {
    shared.drain(tables);
    return shared.release_empty_spans(tables);
  }) || any;
}

// Of a small block; nullopt: it is none.
std::optional<std::size_t> Heap::Impl::size_class_for(std::size_t bytes, std::size_t alignment) {
  if (bytes > layout::kMaxSlotBytes || alignment > layout::kMaxSlotBytes) return std::nullopt;
  if (alignment <= layout::kMinSlotBytes) return layout::size_class_of(bytes);
  // Spans are aligned to their size, so a slot is as aligned as its size is.
  std::size_t c = layout::size_class_of(std::max(bytes, alignment));
  while (c < kSizeClasses && kSlotBytes[c] % alignment != 0) ++c;
  return c < kSizeClasses ? std::optional(c) : std::nullopt;
}

Allocated Heap::Impl::allocate(std::size_t bytes, std::size_t alignment) {
  if (const auto size_class = size_class_for(bytes, alignment)) return allocate_small(*size_class);
  return allocate_large(bytes, alignment);
}

Allocated Heap::Impl::allocate_or_make_room(std::size_t bytes, std::size_t alignment) {
  if (!is_power_of_two(alignment) || alignment > kMaxAlignment) return {};
  Allocated allocated = allocate(bytes, alignment);
  if (allocated.block != nullptr) return allocated;
  if (release_empty_spans()) allocated = allocate(bytes, alignment);
  if (allocated.block == nullptr) allocated = allocate_from_unowned(bytes, alignment);
  return allocated;
}

// Not to be inlined: then the fast path would have to save registers for it.
[[gnu::noinline]] void* Heap::Impl::allocate_slowly(std::size_t bytes) noexcept {
  const InHeap in_heap;
  return allocate_or_make_room(bytes, layout::kMinSlotBytes).block;
}

// The last resort: slots in spans of threads that have ended.
Allocated Heap::Impl::allocate_from_unowned(std::size_t bytes, std::size_t alignment) {
  const std::optional<std::size_t> size_class = size_class_for(bytes, alignment);
  if (!size_class) return {};
  Allocated allocated;
  (void)threads->with_unowned([&](ThreadHeap& heap) {
    allocated = allocate_from(heap, *size_class);
    return allocated.block != nullptr;
  });
  return clear_late(allocated, *size_class);
}

[[gnu::noinline]] void* stop_before_return(void* block) noexcept {
  detail::run_pending_stop();
  return block;
}

#if defined(__x86_64__)
__attribute__((target("avx2"), noinline)) static void* clear_by_avx2_and_leave(
    void* block, std::size_t bytes) noexcept {
  clear_kernels::store_zeros_in_slot(block, bytes);
  return leave_fast_path(detail::heap_thread.activity) ? stop_before_return(block) : block;
}
#endif

[[gnu::noinline]] void* clear_and_leave(void* block, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  if (detail::clear_slots_by_avx2.load(std::memory_order_relaxed)) [[likely]]
    return clear_by_avx2_and_leave(block, bytes);
#endif
  clear_slot(block, bytes);
  return leave_fast_path(detail::heap_thread.activity) ? stop_before_return(block) : block;
}

namespace {

// A slot that is not ordinary: under deferred it is cleared now.
[[gnu::noinline]] void* hand_out(const FreeSlot& slot, bool clears, std::size_t bytes) noexcept {
  if (clears) return clear_and_leave(slot.block(), bytes);
  return leave_fast_path(detail::heap_thread.activity) ? stop_before_return(slot.block())
                                                       : slot.block();
}

}  // namespace

// What nearly all calls of allocate() and deallocate() come to is here, without a call to anything
// else but at the end, so that no register need be saved: what is longer begins anew elsewhere.
// Instructions count: while a program waits for memory, the CPU goes on with what comes next only
// as far as its window reaches.
void* Heap::allocate(std::size_t bytes) noexcept {
  HeapThread& mine = detail::heap_thread;
  if (bytes <= layout::kTabledBytes && mine.heap_id == id_) [[likely]] {
    FreeStack& stack = mine.thread_heap->stack(layout::tabled_size_class_of(bytes));
    enter_fast_path(mine.activity);
    if (!stack.empty()) [[likely]] {
      const FreeSlot& slot = *--stack.top;
      slot.mark_allocated();
      if (!slot.ordinary()) [[unlikely]]
        return hand_out(slot, impl_->tables.clears_late(), stack.slot_bytes);
      std::byte* const block = slot.ordinary_block();
      if (leave_fast_path(mine.activity)) [[unlikely]]
        return stop_before_return(block);
      return block;
    }
    turn_off_fast_path(mine.activity);
  }
  return impl_->allocate_slowly(bytes);
}

void* Heap::allocate(std::size_t bytes, std::size_t alignment) noexcept {
  const InHeap in_heap;
  return impl_->allocate_or_make_room(bytes, alignment).block;
}

void* Heap::allocate_zeroed(std::size_t bytes, std::size_t alignment) noexcept {
  const InHeap in_heap;
  const Allocated allocated = impl_->allocate_or_make_room(bytes, alignment);
  if (allocated.block == nullptr || allocated.known_zero) return allocated.block;
  const std::size_t usable = usable_size(allocated.block);
  if (usable <= layout::kMaxSlotBytes) {
    clear_memory(allocated.block, usable);
    return allocated.block;
  }
  impl_->clear_run({reinterpret_cast<std::uintptr_t>(allocated.block), usable});
  return allocated.block;
}

std::size_t Heap::allocate_batch(std::size_t bytes, std::span<void*> out) noexcept {
  const InHeap in_heap;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = impl_->allocate_or_make_room(bytes, layout::kMinSlotBytes).block;
    if (out[i] == nullptr) return i;
  }
  return out.size();
}

std::size_t Heap::trim() noexcept {
  const InHeap in_heap;
  impl_->release_empty_spans();
  return impl_->tables.supply.trim() * kSpanBytes;
}

}  // namespace pagetide
