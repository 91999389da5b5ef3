#include "pagetide/allocator/heap.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/heap_activity.h"
#include "pagetide/allocator/heap_race_points.h"
#include "pagetide/allocator/heap_tables.h"
#include "pagetide/allocator/run_zeroing.h"
#include "pagetide/allocator/thread_heap.h"
#include "pagetide/allocator/thread_heaps.h"
#include "pagetide/base/fatal.h"
#include "pagetide/base/hash.h"

namespace pagetide {

using layout::kSizeClasses;
using layout::kSlotBytes;
using layout::kSpanBytes;
using layout::SpanEntry;
using layout::SpanKind;

namespace {

bool is_free(const SpanEntry& entry) {
  return std::bit_cast<std::uint64_t>(entry) == 0;
}

// The ends of allocate() and deallocate() when there is something left to do.
[[gnu::noinline]] void* stop_before_return(void* block) noexcept {
  detail::run_pending_stop();
  return block;
}
[[gnu::noinline]] void* clear_and_leave(std::byte* block, std::size_t bytes) noexcept {
  clear_memory(block, bytes);
  return leave_heap() ? stop_before_return(block) : block;
}

// Most of what is looked at is zero, and need not get dirty.
void clear_unless_zero(std::byte* block, std::size_t bytes) {
  if (!is_all_zero(block, bytes)) clear_memory(block, bytes);
}

}  // namespace

struct Heap::Impl {
  explicit Impl(HeapTables t) : tables(std::move(t)) {}

  HeapTables tables;
  std::unique_ptr<ThreadHeaps> threads;
  std::uint64_t id = 0;  // of `threads`
  bool free_bytes_are_zero = false;
  OnCorruption on_corruption;

  static Result<std::unique_ptr<Impl>> create(Region& region, ClearPolicy clear);

  // The calling thread's; nullptr: see ThreadHeaps.
  ThreadHeap* my_heap() {
    const detail::ThreadHeapLink& last = detail::last_thread_heap;
    return last.heap_id == id ? last.thread_heap : threads->find_or_attach();
  }
  Allocated allocate(std::size_t bytes, std::size_t alignment);
  Allocated allocate_or_make_room(std::size_t bytes, std::size_t alignment);
  // The same; to be called at the end of a function.
  void* allocate_slowly(std::size_t bytes) noexcept {
    const InHeap in_heap;
    return allocate_or_make_room(bytes, layout::kMinSlotBytes).block;
  }
  Allocated allocate_small(std::size_t size_class);
  Allocated allocate_from(ThreadHeap& heap, std::size_t size_class);
  Allocated allocate_large(std::size_t bytes, std::size_t alignment, std::size_t overwritten = 0);
  bool clear_if_late(bool known_zero, std::size_t first, std::size_t count,
                     std::size_t overwritten);
  void clear_run(ByteRange run);
  std::size_t size_of_allocated(std::byte* block) const;
  std::size_t resize_large(std::size_t span, std::size_t bytes);
  void* move(std::byte* block, std::size_t usable, std::size_t bytes, std::size_t alignment);
  void deallocate(void* block) noexcept;
  void deallocate_small(std::size_t span, std::byte* block);
  void deallocate_large(std::size_t span, std::byte* block);
  void free_remotely(std::size_t span, std::size_t slot, std::byte* block);
  void refuse(std::string_view what, const void* block, std::string_view why) const;
  bool release_empty_spans();

  std::size_t count_allocated(std::size_t span, std::size_t size_class);
  void clear_free_slots(std::size_t span, std::size_t size_class);
  Result<void> check_span(std::size_t span) const;
  Result<void> rebuild();
  Result<void> rebuild_for(ThreadHeap& heir);
};

Result<std::unique_ptr<Heap::Impl>> Heap::Impl::create(Region& region, ClearPolicy clear) {
  auto tables = HeapTables::create(region, clear);
  if (!tables) return propagate(tables);
  auto impl = std::make_unique<Impl>(std::move(*tables));
  auto threads = ThreadHeaps::create(impl->tables);
  if (!threads) return propagate(threads);
  impl->threads = std::move(*threads);
  impl->id = impl->threads->id();
  return impl;
}

Allocated Heap::Impl::allocate_small(std::size_t size_class) {
  ThreadHeap* const mine = my_heap();
  Allocated allocated = mine != nullptr ? allocate_from(*mine, size_class)
                                        : threads->with_shared([&](ThreadHeap& shared) {
                                            return allocate_from(shared, size_class);
                                          });
  if (allocated.block != nullptr && !allocated.known_zero && tables.clears_late()) {
    clear_memory(allocated.block, kSlotBytes[size_class]);
    allocated.known_zero = true;
  }
  return allocated;
}

Allocated Heap::Impl::allocate_from(ThreadHeap& heap, std::size_t size_class) {
  for (;;) {
    if (const FreeSlot* slot = heap.pop(size_class)) {
      slot->mark_allocated();
      return {slot->block(), slot->known_zero()};
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

// Of a block that is to be reallocated: it must be allocated.
std::size_t Heap::Impl::size_of_allocated(std::byte* block) const {
  if (!tables.owns(block)) {
    fatal_at("heap corruption: invalid reallocation of ", block, ": outside the arena's data");
  }
  const std::size_t span = tables.span_of(block);
  const auto offset = static_cast<std::size_t>(block - tables.span_data(span));
  const SpanEntry e = tables.entry(span);
  if (e.kind == SpanKind::small) {
    const std::size_t slot = slot_of(offset, e.size_class);
    if (offset == slot * kSlotBytes[e.size_class] &&
        (load_shared(tables.word(span, slot / 64)) >> (slot % 64) & 1U) != 0) {
      return kSlotBytes[e.size_class];
    }
  }
  if (e.kind == SpanKind::large && offset == 0) return std::size_t{e.run_spans} * kSpanBytes;
  fatal_at("heap corruption: invalid reallocation of ", block,
           ": not the start of an allocated block");
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

// Steps R1 and R2 of the protocol in docs/heap.md.
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
    clear_memory(block, slot_bytes);
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

// A free of what is not allocated. Nothing has been changed, and no lock is held.
void Heap::Impl::refuse(std::string_view what, const void* block, std::string_view why) const {
  if (on_corruption.report == nullptr) fatal_at(what, block, why);
  const int kept_errno = errno;
  std::array<char, 160> message;
  print_at(message, what, block, why);
  on_corruption.report(message.data(), block, on_corruption.context);
  errno = kept_errno;
}

bool Heap::Impl::release_empty_spans() {
  ThreadHeap* mine = my_heap();
  const bool any = mine != nullptr && mine->release_empty_spans(tables);
  return threads->with_shared([&](ThreadHeap& shared) {
    return shared.release_empty_spans(tables);
  }) || any;
}

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

std::size_t Heap::Impl::count_allocated(std::size_t span, std::size_t size_class) {
  std::size_t allocated = 0;
  for (std::size_t i = 0; i * 64 < layout::slots_per_span(size_class); ++i) {
    allocated += bit_count(load_shared(tables.word(span, i)));
  }
  return allocated;
}

Allocated Heap::Impl::allocate(std::size_t bytes, std::size_t alignment) {
  if (bytes <= layout::kMaxSlotBytes) {
    if (alignment <= layout::kMinSlotBytes) return allocate_small(layout::size_class_of(bytes));
    // Spans are aligned to their size, so a slot is as aligned as its size is.
    if (alignment <= layout::kMaxSlotBytes) {
      for (std::size_t c = layout::size_class_of(std::max(bytes, alignment)); c < kSizeClasses;
           ++c) {
        if (kSlotBytes[c] % alignment == 0) return allocate_small(c);
      }
    }
  }
  return allocate_large(bytes, alignment);
}

Allocated Heap::Impl::allocate_or_make_room(std::size_t bytes, std::size_t alignment) {
  if (!is_power_of_two(alignment) || alignment > kMaxAlignment) return {};
  const Allocated allocated = allocate(bytes, alignment);
  if (allocated.block != nullptr || !release_empty_spans()) return allocated;
  return allocate(bytes, alignment);
}

// Checks one head entry of the span table, which may come from a damaged store.
Result<void> Heap::Impl::check_span(std::size_t span) const {
  const SpanEntry& e = tables.entry(span);
  const std::size_t used = tables.superblock().spans_used;
  bool sound = false;
  if (e.kind == SpanKind::small) {
    sound = e.size_class < kSizeClasses && e.reserved == 0 && e.run_spans == 1;
  } else if (e.kind == SpanKind::large) {
    sound = e.size_class == 0 && e.reserved == 0 && e.run_spans >= 1 && e.run_spans <= used - span;
    for (std::size_t i = 1; sound && i < e.run_spans; ++i) sound = is_free(tables.entry(span + i));
  } else {
    sound = is_free(e);
  }
  if (sound) return {};
  return failure(ErrorCode::damaged,
                 fmt::format("the heap's span table is damaged at span {}.", span));
}

Result<void> Heap::Impl::rebuild() {
  if (auto r = layout::check_superblock(tables.superblock(), tables.region.range()); !r) return r;
  return threads->reset([this](ThreadHeap& heir) { return rebuild_for(heir); });
}

Result<void> Heap::Impl::rebuild_for(ThreadHeap& heir) {
  const std::size_t used = tables.superblock().spans_used;
  if (auto r = tables.supply.reset(used); !r) return r;
  tables.heads.reset();
  tables.mail.reset();
  tables.states.reset();
  tables.taken.reset();
  tables.zero.reset();
  tables.remote.reset();
  for (std::size_t span = 0; span < used;) {
    if (auto r = check_span(span); !r) return r;
    const SpanEntry& e = tables.entry(span);
    const std::size_t run = e.kind == SpanKind::large ? e.run_spans : 1;
    if (e.kind != SpanKind::free) tables.supply.mark_used(span, run);
    if (e.kind == SpanKind::small) {
      const std::size_t slots = layout::slots_per_span(e.size_class);
      const std::size_t last = (slots - 1) / 64;
      if ((tables.word(span, last) & ~slot_bits(slots, last)) != 0) {
        return failure(ErrorCode::damaged,
                       fmt::format("the heap's slot bitmap is damaged at span {}.", span));
      }
      heir.adopt(tables, span);
    }
    span += run;
  }
  return {};
}

Heap::Heap(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Heap::~Heap() = default;

Result<void> Heap::commit_image(Region& region, std::size_t bytes) {
  auto geometry = layout::geometry_for(region.range().size);
  if (!geometry) return propagate(geometry);
  const std::size_t end = std::max(geometry->data_offset, round_up(bytes, page_size()));
  return region.commit({region.range().begin, end});
}

Result<std::unique_ptr<Heap>> Heap::format(Region& region, std::string_view name,
                                           ClearPolicy clear) {
  if (name.size() >= layout::kArenaNameBytes) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("the arena's name has {} bytes; at most {} fit.", name.size(),
                               layout::kArenaNameBytes - 1));
  }
  auto impl = Impl::create(region, clear);
  if (!impl) return propagate(impl);
  const layout::Geometry& g = (*impl)->tables.geometry;
  if (auto r = commit_image(region, g.data_offset); !r) return propagate(r);
  layout::Superblock& s = (*impl)->tables.superblock();
  s.magic = layout::kMagic;
  s.version = layout::kVersion;
  s.page_size = static_cast<std::uint32_t>(page_size());
  s.span_bytes = kSpanBytes;
  s.base = region.range().begin;
  s.reserve_bytes = region.range().size;
  s.span_count = g.span_count;
  s.runtime_offset = g.runtime_offset;
  s.roots_offset = g.roots_offset;
  s.spans_offset = g.spans_offset;
  s.bitmaps_offset = g.bitmaps_offset;
  s.group_bytes = g.group_bytes;
  s.data_offset = g.data_offset;
  name.copy(s.name.data(), s.name.size() - 1);
  (*impl)->free_bytes_are_zero = clear == ClearPolicy::on_free;
  (*impl)->threads->begin_use();
  return std::unique_ptr<Heap>(new Heap(std::move(*impl)));
}

Result<std::unique_ptr<Heap>> Heap::attach(Region& region, ClearPolicy clear) {
  auto impl = Impl::create(region, clear);
  if (!impl) return propagate(impl);
  if (auto r = (*impl)->rebuild(); !r) return propagate(r);
  (*impl)->threads->begin_use();
  return std::unique_ptr<Heap>(new Heap(std::move(*impl)));
}

Result<void> Heap::rebuild() {
  const InHeap in_heap;
  return impl_->rebuild();
}

// What nearly all calls of allocate() and deallocate() come to is here, without a call to anything
// else but at the end, so that no register need be saved: what is longer begins anew elsewhere.
void* Heap::allocate(std::size_t bytes) noexcept {
  Impl& impl = *impl_;
  const detail::ThreadHeapLink& mine = detail::last_thread_heap;
  if (bytes <= layout::kMaxSlotBytes && mine.heap_id == impl.id) [[likely]] {
    const std::size_t size_class = layout::size_class_of(bytes);
    enter_heap();
    if (const FreeSlot* slot = mine.thread_heap->pop(size_class)) [[likely]] {
      slot->mark_allocated();
      std::byte* const block = slot->block();
      if (!slot->known_zero() && impl.tables.clears_late()) [[unlikely]] {
        return clear_and_leave(block, kSlotClasses[size_class].slot_bytes);
      }
      if (leave_heap()) [[unlikely]]
        return stop_before_return(block);
      return block;
    }
    // The slow way asks again.
    (void)leave_heap();
  }
  return impl.allocate_slowly(bytes);
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

void Heap::deallocate(void* block) noexcept {
  Impl& impl = *impl_;
  HeapTables& tables = impl.tables;
  const std::size_t in_data = tables.data_offset_of(block);
  const detail::ThreadHeapLink& mine = detail::last_thread_heap;
  if (in_data < tables.data_bytes() && mine.heap_id == impl.id) [[likely]] {
    const std::size_t span = in_data / kSpanBytes;
    const std::size_t offset = in_data % kSpanBytes;
    SpanHead& head = tables.heads[span];
    const std::size_t size_class = head.size_class;
    ThreadHeap& heap = *mine.thread_heap;
    enter_heap();
    if (heap.is_hot(tables, head, offset) && heap.has_room(size_class)) [[likely]] {
      const SlotClass& slots = kSlotClasses[size_class];
      const std::uint64_t place = slot_and_fraction(offset, slots);
      const std::size_t slot = place >> 32U;
      std::uint64_t& bits = tables.word(span, slot / 64);
      const std::uint64_t marked = load_shared(bits);
      if (is_slot_start(place, slots) && (marked >> (slot % 64) & 1U) != 0) [[likely]] {
        auto* const address = static_cast<std::byte*>(block);
        // Its line is noted as changed already: a slot of the page was handed out in this epoch.
        store_shared(bits, marked & ~(std::uint64_t{1} << (slot % 64)));
        heap.push(size_class, {address, tables.clears, bits, slot % 64});
        if (tables.clears) {
          clear_and_leave(address, slots.slot_bytes);
          return;
        }
        if (leave_heap()) [[unlikely]]
          stop_before_return(address);
        return;
      }
    }
    (void)leave_heap();
  }
  impl.deallocate(block);
}

void* Heap::reallocate(void* block, std::size_t bytes, std::size_t alignment) noexcept {
  const InHeap in_heap;
  if (block == nullptr) return allocate(bytes, alignment);
  auto* const address = static_cast<std::byte*>(block);
  std::size_t usable = impl_->size_of_allocated(address);
  const bool is_large = usable >= kSpanBytes;
  const bool stays_large = is_large && bytes > layout::kMaxSlotBytes;
  const bool is_aligned =
      is_power_of_two(alignment) && reinterpret_cast<std::uintptr_t>(block) % alignment == 0;
  if (is_aligned && stays_large) {
    usable = impl_->resize_large(impl_->tables.span_of(address), bytes);
    if (bytes <= usable) return block;
  }
  // A small block stays as long as more than half of it is used.
  if (is_aligned && !is_large && bytes <= usable && bytes >= usable / 2) return block;
  return impl_->move(address, usable, bytes, alignment);
}

std::size_t Heap::trim() noexcept {
  const InHeap in_heap;
  impl_->release_empty_spans();
  return impl_->tables.supply.trim() * kSpanBytes;
}

std::size_t Heap::allocate_batch(std::size_t bytes, std::span<void*> out) noexcept {
  const InHeap in_heap;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = impl_->allocate_or_make_room(bytes, layout::kMinSlotBytes).block;
    if (out[i] == nullptr) return i;
  }
  return out.size();
}

void Heap::deallocate_batch(std::span<void* const> blocks) noexcept {
  const InHeap in_heap;
  for (void* block : blocks) deallocate(block);
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

std::size_t Heap::usable_size(const void* block) const noexcept {
  if (!owns(block)) return 0;
  const SpanEntry e = impl_->tables.entry(impl_->tables.span_of(block));
  if (e.kind == SpanKind::small) return kSlotBytes[e.size_class];
  return e.kind == SpanKind::large ? std::size_t{e.run_spans} * kSpanBytes : 0;
}

bool Heap::owns(const void* address) const noexcept {
  return impl_->tables.owns(address);
}

void Heap::settle() const {
  const InHeap in_heap;
  impl_->threads->settle();
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

std::string_view Heap::name() const {
  return impl_->tables.superblock().name.data();
}
void Heap::set_on_corruption(const OnCorruption& on_corruption) {
  impl_->on_corruption = on_corruption;
}
ClearPolicy Heap::clear_policy() const {
  return impl_->tables.clear;
}
const layout::Geometry& Heap::geometry() const {
  return impl_->tables.geometry;
}

bool Heap::free_bytes_are_zero() const {
  return impl_->free_bytes_are_zero;
}
void Heap::inherit_free_bytes_are_zero(bool known) {
  impl_->free_bytes_are_zero = known && impl_->tables.clear == ClearPolicy::on_free;
}

bool Heap::holds_code_addresses() const {
  return (std::atomic_ref(impl_->tables.superblock().flags).load(std::memory_order_relaxed) &
          layout::kHoldsCodeAddresses) != 0;
}

void Heap::set_holds_code_addresses() {
  // Read first: most calls find it set, and need not dirty the page.
  if (holds_code_addresses()) return;
  std::atomic_ref(impl_->tables.superblock().flags)
      .fetch_or(layout::kHoldsCodeAddresses, std::memory_order_relaxed);
}

UsedRanges Heap::used_ranges() const {
  UsedRanges ranges;
  ranges.add({impl_->tables.region.range().begin + impl_->tables.geometry.data_offset,
              impl_->tables.superblock().spans_used * kSpanBytes});
  return ranges;
}

UsedRanges Heap::metadata_ranges() const {
  const layout::Geometry& g = impl_->tables.geometry;
  const std::size_t used = impl_->tables.superblock().spans_used;
  const std::uintptr_t base = impl_->tables.region.range().begin;
  UsedRanges ranges;
  const auto add = [&](std::size_t offset, std::size_t bytes) {
    ranges.add({base + offset, round_up(bytes, page_size())});
  };
  add(0, sizeof(layout::Superblock));
  add(g.roots_offset, layout::kRootCapacity * sizeof(layout::RootEntry));
  add(g.spans_offset, used * sizeof(SpanEntry));
  for (std::size_t group = 0; group < layout::kBitmapGroups; ++group) {
    add(g.bitmaps_offset + group * g.group_bytes, used * layout::kBytesPerGroupLine);
  }
  return ranges;
}

HeapMetadata Heap::metadata() const {
  return {impl_->tables.region.base(), impl_->tables.geometry};
}

std::size_t Heap::image_bytes() const {
  return impl_->tables.geometry.data_offset + impl_->tables.superblock().spans_used * kSpanBytes;
}

HeapChangeLog& Heap::changes() const {
  return impl_->tables.changes;
}

std::uint64_t Heap::heap_bytes() const {
  const std::size_t per_span =
      kSpanBytes + sizeof(SpanEntry) + layout::kBitmapGroups * layout::kBytesPerGroupLine;
  return impl_->tables.geometry.spans_offset + impl_->tables.supply.used_spans() * per_span;
}

}  // namespace pagetide
