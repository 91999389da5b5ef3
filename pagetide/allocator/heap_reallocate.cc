#include <algorithm>
#include <cstring>

#include "pagetide/allocator/heap_impl.h"

namespace pagetide {

using layout::kSlotBytes;
using layout::kSpanBytes;
using layout::SpanEntry;
using layout::SpanKind;

// 0: it is not the start of an allocated block.
std::size_t Heap::Impl::size_of_allocated(const std::byte* block) const {
  if (!tables.owns(block)) return 0;
  const std::size_t span = tables.span_of(block);
  const auto offset = static_cast<std::size_t>(block - tables.span_data(span));
  const SpanEntry e = tables.entry(span);
  if (e.kind == SpanKind::large) return offset == 0 ? std::size_t{e.run_spans} * kSpanBytes : 0;
  if (e.kind != SpanKind::small) return 0;
  const std::size_t slot = slot_of(offset, e.size_class);
  const bool is_allocated = offset == slot * kSlotBytes[e.size_class] &&
                            (load_shared(tables.word(span, slot / 64)) >> (slot % 64) & 1U) != 0;
  return is_allocated ? kSlotBytes[e.size_class] : 0;
}

bool Heap::is_allocated(const void* block) const noexcept {
  return impl_->size_of_allocated(static_cast<const std::byte*>(block)) != 0;
}

// Makes a block of whole spans larger or smaller where it is; the bytes it has then, which are what
// it had if the spans behind it are in use.
std::size_t Heap::Impl::resize_large(std::size_t span, std::size_t bytes) {
  const std::size_t count = tables.entry(span).run_spans;
  const std::size_t wanted = divide_up(bytes, kSpanBytes);
  if (wanted > count) {
    const auto known_zero =
        tables.supply.extend(span, count, wanted, tables.superblock().spans_used);
    if (!known_zero) return count * kSpanBytes;
    clear_if_late(*known_zero, span + count, wanted - count, 0);
  }
  if (wanted != count) {
    tables.changes.note_entry(span);
    tables.entry(span).run_spans = static_cast<std::uint32_t>(wanted);
  }
  if (wanted < count) tables.supply.release(span + wanted, count - wanted, RunContent::unknown);
  return wanted * kSpanBytes;
}

// To another place. What has grown once will grow again: large blocks get a quarter more, which
// costs no memory until it is written to.
void* Heap::Impl::move(std::byte* block, std::size_t usable, std::size_t bytes,
                       std::size_t alignment) {
  const std::size_t kept = std::min(usable, bytes);
  Allocated allocated;
  if (bytes > usable && bytes > kSpanBytes && is_power_of_two(alignment) &&
      alignment <= kMaxAlignment) {
    allocated = allocate_large(bytes + bytes / 4, alignment, kept);
  }
  if (allocated.block == nullptr) allocated = allocate_or_make_room(bytes, alignment);
  if (allocated.block == nullptr) return nullptr;
  std::memcpy(allocated.block, block, kept);
  deallocate(block);
  return allocated.block;
}

void* Heap::reallocate(void* block, std::size_t bytes, std::size_t alignment) noexcept {
  const InHeap in_heap;
  if (block == nullptr) return allocate(bytes, alignment);
  auto* const address = static_cast<std::byte*>(block);
  std::size_t usable = impl_->size_of_allocated(address);
  if (usable == 0) {
    impl_->refuse(
        "heap corruption: invalid reallocation of ", block,
        owns(block) ? ": not the start of an allocated block" : ": outside the arena's data");
    return nullptr;
  }
  if (bytes > impl_->tables.data_bytes()) return nullptr;
  const bool is_large = usable >= kSpanBytes;
  const bool stays_large = is_large && bytes > layout::kMaxSlotBytes;
  const bool is_aligned =
      is_power_of_two(alignment) && reinterpret_cast<std::uintptr_t>(block) % alignment == 0;
  if (is_aligned && stays_large) {
    usable = impl_->resize_large(impl_->tables.span_of(address), bytes);
    if (bytes <= usable) return block;
  }
  // A small block stays as long as half of it is used, or there is no smaller one.
  const bool stays_small =
      !is_large && bytes <= usable && (bytes >= usable / 2 || usable == layout::kMinSlotBytes);
  if (is_aligned && stays_small) return block;
  return impl_->move(address, usable, bytes, alignment);
}

}  // namespace pagetide
