#include <array>
#include <atomic>
#include <cerrno>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/heap_impl.h"
#include "pagetide/allocator/heap_race_points.h"
#include "pagetide/base/fatal.h"

namespace pagetide {

using layout::kSlotBytes;
using layout::kSpanBytes;
using layout::SpanKind;

void Heap::Impl::deallocate_small(std::size_t span, std::byte* block) {
  SpanHead& head = tables.heads[span];
  const std::size_t size_class = head.size_class;
  const auto offset = static_cast<std::size_t>(block - tables.span_data(span));
  const std::size_t slot = slot_of(offset, size_class);
  if (offset != slot * kSlotBytes[size_class] || slot >= layout::slots_per_span(size_class)) {
    return refuse("heap corruption: invalid free of ", block,
                  ": not the start of an allocated block");
  }
  // Before the bytes are cleared, so that a double free does not clear what is not its own.
  if ((load_shared(tables.word(span, slot / 64)) >> (slot % 64) & 1U) == 0) {
    return refuse("heap corruption: double free of ", block, "");
  }
  ThreadHeap* const mine = my_heap();
  if (mine != nullptr && mine->number() == owner_of(head)) {
    return mine->free_local(tables, span, size_class, slot);
  }
  free_remotely(span, slot, block);
}

// Everything that deallocate() does not do itself.
void Heap::Impl::deallocate(void* block) noexcept {
  if (block == nullptr) return;
  const InHeap in_heap;
  if (!tables.owns(block))
    return refuse("heap corruption: invalid free of ", block, ": outside the arena's data");
  auto* address = static_cast<std::byte*>(block);
  const std::size_t span = tables.span_of(address);
  if (owner_of(tables.heads[span]) != 0) return deallocate_small(span, address);
  if (tables.entry(span).kind == SpanKind::large) return deallocate_large(span, address);
  refuse("heap corruption: invalid free of ", block, ": nothing is allocated there");
}

// Steps R0 to R2 of the protocol in docs/heap.md.
void Heap::Impl::free_remotely(std::size_t span, std::size_t slot, std::byte* block) {
  SpanHead& head = tables.heads[span];
  const std::size_t index = slot / 64;
  const std::uint64_t mask = std::uint64_t{1} << (slot % 64);
  std::atomic_ref remote(tables.remote_word(span, index));
  if ((remote.load(std::memory_order_relaxed) & mask) != 0) {
    return refuse("heap corruption: double free of ", block, "");
  }
  const std::size_t slot_bytes = kSlotBytes[head.size_class];
  if (tables.clears_on_free(is_written_in(head, tables.epoch(), slot * slot_bytes))) {
    clear_slot(block, slot_bytes);
  } else if (tables.clears) {
    std::atomic_ref(tables.uncleared_word(span, index)).fetch_or(mask, std::memory_order_relaxed);
  }
  ThreadHeap& owner = threads->by_number(owner_of(head));
  const std::uint64_t before = remote.fetch_or(mask, std::memory_order_acq_rel);
  if ((before & mask) != 0) return refuse("heap corruption: double free of ", block, "");
  if (before != 0) return;
  race_point();
  const std::uint64_t pending = std::atomic_ref(tables.mail[span].pending)
                                    .fetch_or(std::uint64_t{1} << index, std::memory_order_acq_rel);
  if (pending != 0) return;
  race_point();
  owner.push_freed(tables, span);
}

void Heap::Impl::deallocate_large(std::size_t span, std::byte* block) {
  const std::size_t count = tables.entry(span).run_spans;
  if (block != tables.span_data(span)) {
    return refuse("heap corruption: invalid free of ", block,
                  ": not the start of an allocated block");
  }
  tables.changes.note_entry(span);
  tables.entry(span) = {};
  tables.supply.release(span, count, RunContent::unknown);
}

// A free of what is not allocated. Nothing has been changed, and no lock is held.
void Heap::Impl::refuse(std::string_view what, const void* block, std::string_view why) const {
  if (on_corruption.report == nullptr) fatal_at(what, block, why);
  const int kept_errno = errno;
  std::array<char, 160> message;
  print_at(message, what, block, why);
  on_corruption.report(message.data(), block, on_corruption.context);
  errno = kept_errno;
}

// See Heap::allocate().
void Heap::deallocate(void* block) noexcept {
  Impl& impl = *impl_;
  HeapTables& tables = impl.tables;
  const std::size_t in_data = tables.data_offset_of(block);
  HeapThread& mine = detail::heap_thread;
  if (in_data < tables.data_bytes() && mine.heap_id == id_) [[likely]] {
    const std::size_t span = in_data / kSpanBytes;
    SpanHead& head = tables.heads[span];
    ThreadHeap& heap = *mine.thread_heap;
    enter_fast_path(mine.activity);
    if (heap.is_hot(tables, head, in_data)) [[likely]] {
      FreeStack& stack = heap.stack(head.size_class);
      const std::uint64_t place = slot_and_fraction(in_data % kSpanBytes, stack.reciprocal);
      const std::uint64_t bit = tables.bit_of_slot(span, place >> 32U);
      std::uint64_t& word = bit_word(bit);
      const std::uint64_t marked = load_shared(word);
      const std::uint64_t others = marked & ~bit_mask(bit);
      if (others != marked && is_slot_start(place, stack.reciprocal) && stack.has_room())
          [[likely]] {
        // Its line is noted as changed already: a slot of the page was handed out in this epoch.
        store_shared(word, others);
        stack.push({static_cast<std::byte*>(block), true, bit});
        if (tables.clears) {
          clear_and_leave(block, stack.slot_bytes);
          return;
        }
        if (leave_fast_path(mine.activity)) [[unlikely]]
          stop_before_return(block);
        return;
      }
    }
    turn_off_fast_path(mine.activity);
  }
  impl.deallocate(block);
}

void Heap::deallocate_batch(std::span<void* const> blocks) noexcept {
  const InHeap in_heap;
  for (void* block : blocks) deallocate(block);
}

}  // namespace pagetide
