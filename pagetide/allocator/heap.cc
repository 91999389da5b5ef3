#include "pagetide/allocator/heap.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <optional>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/run_zeroing.h"
#include "pagetide/allocator/span_supply.h"
#include "pagetide/base/fatal.h"
#include "pagetide/base/hash.h"
#include "pagetide/base/lock_rank.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide {

using layout::kSizeClasses;
using layout::kSlotBytes;
using layout::kSpanBytes;
using layout::SpanEntry;
using layout::SpanKind;

namespace {

// Most of what is looked at is zero, and need not get dirty.
void clear_unless_zero(std::byte* block, std::size_t bytes) {
  if (!is_all_zero(block, bytes)) clear_memory(block, bytes, InCache::likely);
}

constexpr std::uint32_t kNone = 0;  // list links hold span index + 1

// Volatile state of one span.
struct SpanState {
  std::uint32_t previous;
  std::uint32_t next;
  std::uint16_t free_slots;
  std::uint16_t hint;  // no free slot in words before this one
  bool listed;
  bool tail_is_zero;  // the bytes behind the last slot are known to be zero
};

struct Allocated {
  std::byte* block = nullptr;
  bool known_zero = false;
};

struct ClassState {
  RankedMutex mutex{LockRank::heap_class, "heap class"};
  std::uint32_t partial = kNone;  // spans with a free slot, most recently freed-into first
};

// offset / size for offsets inside a span, by multiplication.
constexpr std::array<std::uint32_t, kSizeClasses> kReciprocal = [] {
  std::array<std::uint32_t, kSizeClasses> values{};
  for (std::size_t c = 0; c < kSizeClasses; ++c) {
    values[c] = static_cast<std::uint32_t>((std::uint64_t{1} << 32) / kSlotBytes[c] + 1);
  }
  return values;
}();

constexpr std::size_t slot_of(std::size_t offset, std::size_t size_class) {
  return static_cast<std::size_t>(offset * std::uint64_t{kReciprocal[size_class]} >> 32);
}

constexpr bool reciprocals_are_exact() {
  for (std::size_t c = 0; c < kSizeClasses; ++c) {
    const std::size_t size = kSlotBytes[c];
    for (std::size_t slot = 0; slot < layout::slots_per_span(c); ++slot) {
      if (slot_of(slot * size, c) != slot || slot_of(slot * size + size - 1, c) != slot)
        return false;
    }
  }
  return true;
}
static_assert(reciprocals_are_exact());

std::atomic_ref<std::uint64_t> shared(std::uint64_t& word) {
  return std::atomic_ref(word);
}

bool is_all_zero(const SpanEntry& entry) {
  return std::bit_cast<std::uint64_t>(entry) == 0;
}

// The bits of word `index` of a bitmap that stand for slots.
constexpr std::uint64_t slot_bits(std::size_t slots, std::size_t index) {
  const std::size_t first = index * 64;
  if (slots >= first + 64) return ~std::uint64_t{0};
  return slots > first ? (std::uint64_t{1} << (slots - first)) - 1 : 0;
}

}  // namespace

struct Heap::Impl {
  Impl(Region& r, const layout::Geometry& g, SpanSupply s, VirtualArray<SpanState> st,
       VirtualArray<std::uint64_t> z, ClearPolicy c)
      : region(r),
        geometry(g),
        supply(std::move(s)),
        states(std::move(st)),
        zero_slots(std::move(z)),
        clear(c) {}

  Region& region;
  layout::Geometry geometry;
  SpanSupply supply;
  VirtualArray<SpanState> states;
  // A bit a slot, in the order of the slot bitmaps: free, and known to be zero because it was
  // cleared, or because its span was zero when it was taken. Under the lock of the span's class.
  VirtualArray<std::uint64_t> zero_slots;
  ClearPolicy clear;
  bool free_bytes_are_zero = false;
  std::array<ClassState, kSizeClasses> classes;

  static Result<std::unique_ptr<Impl>> create(Region& region, ClearPolicy clear);

  std::byte* at(std::size_t offset) const { return region.base() + offset; }
  layout::Superblock& superblock() const { return *reinterpret_cast<layout::Superblock*>(at(0)); }
  SpanEntry& entry(std::size_t span) const {
    return reinterpret_cast<SpanEntry*>(at(geometry.spans_offset))[span];
  }
  std::uint64_t& word(std::size_t span, std::size_t index) const {
    const std::size_t line = geometry.bitmaps_offset +
                             index / layout::kWordsPerGroup * geometry.group_bytes +
                             span * layout::kBytesPerGroupLine;
    return reinterpret_cast<std::uint64_t*>(at(line))[index % layout::kWordsPerGroup];
  }
  std::uint64_t& zero_word(std::size_t span, std::size_t index) {
    const std::size_t group = index / layout::kWordsPerGroup;
    return zero_slots[(group * geometry.span_count + span) * layout::kWordsPerGroup +
                      index % layout::kWordsPerGroup];
  }
  std::byte* span_data(std::size_t span) const {
    return at(geometry.data_offset + span * kSpanBytes);
  }

  Allocated allocate(std::size_t bytes, std::size_t alignment);
  Allocated allocate_or_make_room(std::size_t bytes, std::size_t alignment);
  Allocated allocate_small(std::size_t size_class);
  Allocated allocate_large(std::size_t bytes, std::size_t alignment);
  std::uint32_t refill(std::size_t size_class);
  void deallocate_small(std::size_t span, std::size_t size_class, std::byte* block);
  void deallocate_large(std::size_t span, std::byte* block);
  RunContent take_empty(std::size_t size_class, std::size_t span);
  bool release_one_empty(std::size_t size_class);
  bool release_empty_spans();
  RunContent content_of_empty(std::size_t span, std::size_t size_class);

  void push_partial(ClassState& c, std::size_t span);
  void drop_partial(ClassState& c, std::size_t span);
  std::size_t count_allocated(std::size_t span, std::size_t size_class) const;
  void clear_free_slots(std::size_t span, std::size_t size_class);
  Result<void> check_span(std::size_t span) const;
  Result<void> rebuild();
};

Result<std::unique_ptr<Heap::Impl>> Heap::Impl::create(Region& region, ClearPolicy clear) {
  if (region.range().begin % kSpanBytes != 0) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("a heap's base must be a multiple of {} bytes; {:#x} is not.",
                               kSpanBytes, region.range().begin));
  }
  auto geometry = layout::geometry_for(region.range().size);
  if (!geometry) return propagate(geometry);
  auto supply = SpanSupply::create(region, *geometry);
  if (!supply) return propagate(supply);
  auto states = VirtualArray<SpanState>::create(geometry->span_count);
  if (!states) return propagate(states);
  auto zero_slots = VirtualArray<std::uint64_t>::create(
      geometry->span_count * layout::kBitmapGroups * layout::kWordsPerGroup);
  if (!zero_slots) return propagate(zero_slots);
  return std::make_unique<Impl>(region, *geometry, std::move(*supply), std::move(*states),
                                std::move(*zero_slots), clear);
}

void Heap::Impl::push_partial(ClassState& c, std::size_t span) {
  SpanState& state = states[span];
  state.previous = kNone;
  state.next = c.partial;
  state.listed = true;
  if (c.partial != kNone) states[c.partial - 1].previous = static_cast<std::uint32_t>(span + 1);
  c.partial = static_cast<std::uint32_t>(span + 1);
}

void Heap::Impl::drop_partial(ClassState& c, std::size_t span) {
  SpanState& state = states[span];
  if (state.previous != kNone) {
    states[state.previous - 1].next = state.next;
  } else {
    c.partial = state.next;
  }
  if (state.next != kNone) states[state.next - 1].previous = state.previous;
  state.listed = false;
}

// A fresh span for the class, on its list. kNone when exhausted.
std::uint32_t Heap::Impl::refill(std::size_t size_class) {
  const auto run = supply.allocate(1, 1, superblock().spans_used);
  if (!run) return kNone;
  const std::size_t span = run->first;
  // Zero already, unless the heap's bytes came from a damaged store: rebuild() looks only at the
  // words of slots, and a stray bit here would lead beyond the span.
  for (std::size_t i = 0; i * 64 < layout::slots_per_span(size_class); ++i) {
    if (word(span, i) != 0) word(span, i) = 0;
    zero_word(span, i) = run->known_zero ? ~std::uint64_t{0} : 0;
  }
  entry(span) = {SpanKind::small, static_cast<std::uint8_t>(size_class), 0, 1};
  states[span] = {.previous = kNone,
                  .next = kNone,
                  .free_slots = static_cast<std::uint16_t>(layout::slots_per_span(size_class)),
                  .hint = 0,
                  .listed = false,
                  .tail_is_zero = run->known_zero};
  push_partial(classes[size_class], span);
  return classes[size_class].partial;
}

Allocated Heap::Impl::allocate_small(std::size_t size_class) {
  ClassState& c = classes[size_class];
  const RankedLock lock(c.mutex);
  if (c.partial == kNone && refill(size_class) == kNone) return {};
  const std::size_t span = c.partial - 1;
  SpanState& state = states[span];
  // The span has a free slot, and none before the hint; bits beyond the last slot are never
  // reached, because they come after it.
  std::size_t index = state.hint;
  while (word(span, index) == ~std::uint64_t{0}) ++index;
  std::uint64_t& bits = word(span, index);
  const auto bit = static_cast<std::size_t>(std::countr_one(bits));
  const std::uint64_t mask = std::uint64_t{1} << bit;
  shared(bits).store(bits | mask, std::memory_order_relaxed);
  state.hint = static_cast<std::uint16_t>(index);
  if (--state.free_slots == 0) drop_partial(c, span);
  std::uint64_t& zeros = zero_word(span, index);
  const bool known_zero = (zeros & mask) != 0;
  zeros &= ~mask;
  return {span_data(span) + (index * 64 + bit) * kSlotBytes[size_class], known_zero};
}

Allocated Heap::Impl::allocate_large(std::size_t bytes, std::size_t alignment) {
  // No bytes at a large alignment are a block of their own too.
  const std::size_t count = divide_up(std::max<std::size_t>(bytes, 1), kSpanBytes);
  if (count > geometry.span_count) return {};
  const std::size_t alignment_spans = std::max<std::size_t>(1, alignment / kSpanBytes);
  const auto run = supply.allocate(count, alignment_spans, superblock().spans_used);
  if (!run) return {};
  entry(run->first) = {SpanKind::large, 0, 0, static_cast<std::uint32_t>(count)};
  return {span_data(run->first), run->known_zero};
}

void Heap::Impl::deallocate_small(std::size_t span, std::size_t size_class, std::byte* block) {
  const auto offset = static_cast<std::size_t>(block - span_data(span));
  const std::size_t slot = slot_of(offset, size_class);
  if (offset != slot * kSlotBytes[size_class] || slot >= layout::slots_per_span(size_class)) {
    fatal_at("heap corruption: invalid free of ", block, ": not the start of an allocated block");
  }
  std::uint64_t& bits = word(span, slot / 64);
  const std::uint64_t mask = std::uint64_t{1} << (slot % 64);
  // Looked at before the bytes are cleared, so that a double free does not clear a live block
  // that happens to be a neighbour in time; decided again under the lock.
  if ((shared(bits).load(std::memory_order_relaxed) & mask) == 0) {
    fatal_at("heap corruption: double free of ", block, "");
  }
  if (clear == ClearPolicy::on_free) clear_memory(block, kSlotBytes[size_class]);

  std::optional<RunContent> emptied;
  {
    ClassState& c = classes[size_class];
    const RankedLock lock(c.mutex);
    if ((bits & mask) == 0) fatal_at("heap corruption: double free of ", block, "");
    shared(bits).store(bits & ~mask, std::memory_order_relaxed);
    if (clear == ClearPolicy::on_free) zero_word(span, slot / 64) |= mask;
    SpanState& state = states[span];
    state.hint = std::min(state.hint, static_cast<std::uint16_t>(slot / 64));
    ++state.free_slots;
    if (!state.listed) push_partial(c, span);
    const bool others = c.partial != span + 1 || state.next != kNone;
    if (state.free_slots == layout::slots_per_span(size_class) && others) {
      // One empty span a class stays, so that a single block that comes and goes costs no system
      // call.
      emptied = take_empty(size_class, span);
    }
  }
  if (emptied) supply.release(span, 1, *emptied);
}

// What an empty span holds. Its class is locked.
RunContent Heap::Impl::content_of_empty(std::size_t span, std::size_t size_class) {
  const std::size_t slots = layout::slots_per_span(size_class);
  const bool has_tail = slots * kSlotBytes[size_class] != kSpanBytes;
  if (has_tail && !states[span].tail_is_zero) return RunContent::unknown;
  for (std::size_t i = 0; i * 64 < slots; ++i) {
    if ((~zero_word(span, i) & slot_bits(slots, i)) != 0) return RunContent::unknown;
  }
  return RunContent::zero;
}

// Takes an empty span from its class, which is locked. To be released when it no longer is: making
// a span zero takes time.
RunContent Heap::Impl::take_empty(std::size_t size_class, std::size_t span) {
  const RunContent content = content_of_empty(span, size_class);
  drop_partial(classes[size_class], span);
  entry(span) = {};
  return content;
}

bool Heap::Impl::release_one_empty(std::size_t size_class) {
  ClassState& c = classes[size_class];
  std::optional<RunContent> content;
  std::size_t span = 0;
  {
    const RankedLock lock(c.mutex);
    for (std::uint32_t link = c.partial; link != kNone && !content; link = states[span].next) {
      span = link - 1;
      if (states[span].free_slots == layout::slots_per_span(size_class)) {
        content = take_empty(size_class, span);
      }
    }
  }
  if (content) supply.release(span, 1, *content);
  return content.has_value();
}

// Gives back the empty spans that classes keep; whether there was one. One class is locked at a
// time.
bool Heap::Impl::release_empty_spans() {
  bool any = false;
  for (std::size_t size_class = 0; size_class < kSizeClasses; ++size_class) {
    while (release_one_empty(size_class)) any = true;
  }
  return any;
}

void Heap::Impl::deallocate_large(std::size_t span, std::byte* block) {
  const std::size_t count = entry(span).run_spans;
  if (block != span_data(span)) {
    fatal_at("heap corruption: invalid free of ", block, ": not the start of an allocated block");
  }
  entry(span) = {};
  supply.release(span, count, RunContent::unknown);
}

// Its class is locked.
void Heap::Impl::clear_free_slots(std::size_t span, std::size_t size_class) {
  const std::size_t slot_bytes = kSlotBytes[size_class];
  const std::size_t slots = layout::slots_per_span(size_class);
  for (std::size_t slot = 0; slot < slots; ++slot) {
    const std::uint64_t mask = std::uint64_t{1} << (slot % 64);
    if ((word(span, slot / 64) & mask) != 0) continue;
    clear_unless_zero(span_data(span) + slot * slot_bytes, slot_bytes);
    zero_word(span, slot / 64) |= mask;
  }
  clear_unless_zero(span_data(span) + slots * slot_bytes, kSpanBytes - slots * slot_bytes);
  states[span].tail_is_zero = true;
}

std::size_t Heap::Impl::count_allocated(std::size_t span, std::size_t size_class) const {
  std::size_t allocated = 0;
  for (std::size_t i = 0; i * 64 < layout::slots_per_span(size_class); ++i) {
    const std::uint64_t bits = shared(word(span, i)).load(std::memory_order_relaxed);
    allocated += static_cast<std::size_t>(std::popcount(bits));
  }
  return allocated;
}

Allocated Heap::Impl::allocate(std::size_t bytes, std::size_t alignment) {
  if (bytes <= layout::kMaxSlotBytes && alignment <= layout::kMaxSlotBytes) {
    // Spans are aligned to their size, so a slot is as aligned as its size is.
    for (std::size_t c = layout::size_class_of(std::max(bytes, alignment)); c < kSizeClasses; ++c) {
      if (kSlotBytes[c] % alignment == 0) return allocate_small(c);
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
  const SpanEntry& e = entry(span);
  const std::size_t used = superblock().spans_used;
  bool sound = false;
  if (e.kind == SpanKind::small) {
    sound = e.size_class < kSizeClasses && e.reserved == 0 && e.run_spans == 1;
  } else if (e.kind == SpanKind::large) {
    sound = e.size_class == 0 && e.reserved == 0 && e.run_spans >= 1 && e.run_spans <= used - span;
    for (std::size_t i = 1; sound && i < e.run_spans; ++i) sound = is_all_zero(entry(span + i));
  } else {
    sound = is_all_zero(e);
  }
  if (sound) return {};
  return failure(ErrorCode::damaged,
                 fmt::format("the heap's span table is damaged at span {}.", span));
}

Result<void> Heap::Impl::rebuild() {
  if (auto r = layout::check_superblock(superblock(), region.range()); !r) return r;
  const std::size_t used = superblock().spans_used;
  if (auto r = supply.reset(used); !r) return r;
  states.reset();
  zero_slots.reset();
  for (ClassState& c : classes) c.partial = kNone;
  for (std::size_t span = 0; span < used;) {
    if (auto r = check_span(span); !r) return r;
    const SpanEntry& e = entry(span);
    const std::size_t run = e.kind == SpanKind::large ? e.run_spans : 1;
    if (e.kind != SpanKind::free) supply.mark_used(span, run);
    if (e.kind == SpanKind::small) {
      const std::size_t slots = layout::slots_per_span(e.size_class);
      const std::size_t last = (slots - 1) / 64;
      if ((word(span, last) & ~slot_bits(slots, last)) != 0) {
        return failure(ErrorCode::damaged,
                       fmt::format("the heap's slot bitmap is damaged at span {}.", span));
      }
      const std::size_t allocated = count_allocated(span, e.size_class);
      states[span].free_slots = static_cast<std::uint16_t>(slots - allocated);
      if (allocated < slots) push_partial(classes[e.size_class], span);
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
  const layout::Geometry& g = (*impl)->geometry;
  if (auto r = commit_image(region, g.data_offset); !r) return propagate(r);
  layout::Superblock& s = (*impl)->superblock();
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
  return std::unique_ptr<Heap>(new Heap(std::move(*impl)));
}

Result<std::unique_ptr<Heap>> Heap::attach(Region& region, ClearPolicy clear) {
  auto impl = Impl::create(region, clear);
  if (!impl) return propagate(impl);
  if (auto r = (*impl)->rebuild(); !r) return propagate(r);
  return std::unique_ptr<Heap>(new Heap(std::move(*impl)));
}

Result<void> Heap::rebuild() {
  return impl_->rebuild();
}

void* Heap::allocate(std::size_t bytes, std::size_t alignment) noexcept {
  return impl_->allocate_or_make_room(bytes, alignment).block;
}

void* Heap::allocate_zeroed(std::size_t bytes, std::size_t alignment) noexcept {
  const Allocated allocated = impl_->allocate_or_make_room(bytes, alignment);
  if (allocated.block == nullptr || allocated.known_zero) return allocated.block;
  const std::size_t usable = usable_size(allocated.block);
  if (usable <= layout::kMaxSlotBytes) {
    clear_memory(allocated.block, usable);
    return allocated.block;
  }
  const ByteRange run{reinterpret_cast<std::uintptr_t>(allocated.block), usable};
  if (zero_run(impl_->region, run) == ZeroedBy::purge) (void)impl_->region.prefill(run);
  return allocated.block;
}

void Heap::deallocate(void* block) noexcept {
  if (block == nullptr) return;
  if (!owns(block))
    fatal_at("heap corruption: invalid free of ", block, ": outside the arena's data");
  auto* address = static_cast<std::byte*>(block);
  const auto span = static_cast<std::size_t>(address - impl_->span_data(0)) / kSpanBytes;
  const SpanEntry e = impl_->entry(span);
  switch (e.kind) {
    case SpanKind::small:
      return impl_->deallocate_small(span, e.size_class, address);
    case SpanKind::large:
      return impl_->deallocate_large(span, address);
    case SpanKind::free:
      break;
  }
  fatal_at("heap corruption: invalid free of ", block, ": nothing is allocated there");
}

Result<void> Heap::clear_free_memory() {
  if (impl_->clear != ClearPolicy::on_free) {
    return failure(
        ErrorCode::invalid_argument,
        "free memory is not cleared for an arena under ClearPolicy::never: what is freed "
        "next would not be. Open it with ClearPolicy::on_free.");
  }
  const std::size_t used = impl_->superblock().spans_used;
  for (std::size_t span = 0; span < used;) {
    const SpanEntry e = impl_->entry(span);
    if (e.kind == SpanKind::small) {
      const RankedLock lock(impl_->classes[e.size_class].mutex);
      impl_->clear_free_slots(span, e.size_class);
    }
    span += e.kind == SpanKind::large ? e.run_spans : 1;
  }
  impl_->supply.clear_free_spans();
  impl_->free_bytes_are_zero = true;
  return {};
}

std::size_t Heap::usable_size(const void* block) const noexcept {
  if (!owns(block)) return 0;
  const auto* address = static_cast<const std::byte*>(block);
  const auto span = static_cast<std::size_t>(address - impl_->span_data(0)) / kSpanBytes;
  const SpanEntry e = impl_->entry(span);
  if (e.kind == SpanKind::small) return kSlotBytes[e.size_class];
  return e.kind == SpanKind::large ? std::size_t{e.run_spans} * kSpanBytes : 0;
}

bool Heap::owns(const void* address) const noexcept {
  const ByteRange data{impl_->region.range().begin + impl_->geometry.data_offset,
                       impl_->geometry.span_count * kSpanBytes};
  return data.contains(reinterpret_cast<std::uintptr_t>(address));
}

void Heap::for_each_allocation(const std::function<void(void*, std::size_t)>& visit) const {
  const std::size_t used = impl_->superblock().spans_used;
  for (std::size_t span = 0; span < used;) {
    const SpanEntry e = impl_->entry(span);
    if (e.kind == SpanKind::large) {
      visit(impl_->span_data(span), std::size_t{e.run_spans} * kSpanBytes);
      span += e.run_spans;
      continue;
    }
    if (e.kind == SpanKind::small) {
      for (std::size_t slot = 0; slot < layout::slots_per_span(e.size_class); ++slot) {
        if ((impl_->word(span, slot / 64) >> (slot % 64) & 1U) == 0) continue;
        visit(impl_->span_data(span) + slot * kSlotBytes[e.size_class], kSlotBytes[e.size_class]);
      }
    }
    ++span;
  }
}

Result<HeapStats> Heap::check() const {
  if (auto r = layout::check_superblock(impl_->superblock(), impl_->region.range()); !r) {
    return propagate(r);
  }
  const std::size_t used = impl_->superblock().spans_used;
  std::size_t in_use = 0;
  for (std::size_t span = 0; span < used;) {
    if (auto r = impl_->check_span(span); !r) return propagate(r);
    const SpanEntry e = impl_->entry(span);
    const std::size_t run = e.kind == SpanKind::large ? e.run_spans : 1;
    if (e.kind != SpanKind::free) in_use += run;
    // Bits stand only where there are slots: none in free and large spans.
    const std::size_t slots = e.kind == SpanKind::small ? layout::slots_per_span(e.size_class) : 0;
    for (std::size_t i = 0; i < layout::kBitmapGroups * layout::kWordsPerGroup; ++i) {
      if ((impl_->word(span, i) & ~slot_bits(slots, i)) != 0) {
        return failure(
            ErrorCode::damaged,
            fmt::format("the heap's slot bitmap of span {} has bits without slots.", span));
      }
    }
    if (e.kind == SpanKind::small) {
      const std::size_t free_slots = slots - impl_->count_allocated(span, e.size_class);
      if (free_slots != impl_->states[span].free_slots) {
        return failure(ErrorCode::damaged,
                       fmt::format("span {} counts {} free slots; its bitmap has {}.", span,
                                   impl_->states[span].free_slots, free_slots));
      }
    }
    span += run;
  }
  if (in_use != impl_->supply.used_spans()) {
    return failure(ErrorCode::damaged,
                   fmt::format("{} spans are in use, but the span supply counts {}.", in_use,
                               impl_->supply.used_spans()));
  }
  return stats();
}

HeapStats Heap::stats() const {
  HeapStats s;
  const std::size_t used = impl_->superblock().spans_used;
  for (std::size_t span = 0; span < used;) {
    const SpanEntry e = impl_->entry(span);
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
  s.spans_in_use = impl_->supply.used_spans();
  s.heap_bytes = heap_bytes();
  s.idle_bytes = impl_->supply.idle_spans() * kSpanBytes;
  s.reserve_bytes = impl_->region.range().size;
  return s;
}

std::string_view Heap::name() const {
  return impl_->superblock().name.data();
}
ClearPolicy Heap::clear_policy() const {
  return impl_->clear;
}
const layout::Geometry& Heap::geometry() const {
  return impl_->geometry;
}

bool Heap::free_bytes_are_zero() const {
  return impl_->free_bytes_are_zero;
}
void Heap::inherit_free_bytes_are_zero(bool known) {
  impl_->free_bytes_are_zero = known && impl_->clear == ClearPolicy::on_free;
}

bool Heap::holds_code_addresses() const {
  return (std::atomic_ref(impl_->superblock().flags).load(std::memory_order_relaxed) &
          layout::kHoldsCodeAddresses) != 0;
}

void Heap::set_holds_code_addresses() {
  // Read first: most calls find it set, and need not dirty the page.
  if (holds_code_addresses()) return;
  std::atomic_ref(impl_->superblock().flags)
      .fetch_or(layout::kHoldsCodeAddresses, std::memory_order_relaxed);
}

UsedRanges Heap::used_ranges() const {
  const layout::Geometry& g = impl_->geometry;
  const std::size_t used = impl_->superblock().spans_used;
  const std::uintptr_t base = impl_->region.range().begin;
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
  add(g.data_offset, used * kSpanBytes);
  return ranges;
}

std::uint64_t Heap::heap_bytes() const {
  const std::size_t per_span =
      kSpanBytes + sizeof(SpanEntry) + layout::kBitmapGroups * layout::kBytesPerGroupLine;
  return impl_->geometry.spans_offset + impl_->supply.used_spans() * per_span;
}

}  // namespace pagetide
