#include "pagetide/allocator/heap.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "pagetide/allocator/heap_impl.h"

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

}  // namespace

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

// The bits of a small span that stand for no slot must be clear.
Result<void> Heap::Impl::check_bitmap(std::size_t span) const {
  const std::size_t slots = layout::slots_per_span(tables.entry(span).size_class);
  const std::size_t last = (slots - 1) / 64;
  if ((tables.word(span, last) & ~slot_bits(slots, last)) == 0) return {};
  return failure(ErrorCode::damaged,
                 fmt::format("the heap's slot bitmap is damaged at span {}.", span));
}

// Tells the supply what the span table says. Runs are joined: the supply takes a lock for each.
Result<void> Heap::Impl::rebuild_supply() {
  const std::size_t used = tables.superblock().spans_used;
  if (auto r = tables.supply.reset(used); !r) return r;
  std::size_t first = 0;
  for (std::size_t span = 0; span < used;) {
    if (auto r = check_span(span); !r) return r;
    const SpanEntry& e = tables.entry(span);
    if (e.kind == SpanKind::free) {
      if (first < span) tables.supply.mark_used(first, span - first);
      first = ++span;
    } else {
      span += e.run_spans;
    }
  }
  if (first < used) tables.supply.mark_used(first, used - first);
  return {};
}

Result<void> Heap::Impl::rebuild() {
  if (auto r = layout::check_superblock(tables.superblock(), tables.region.range()); !r) return r;
  return threads->reset([this](ThreadHeap& heir) -> Result<void> {
    if (auto r = rebuild_supply(); !r) return r;
    tables.forget_volatile();
    const std::size_t used = tables.superblock().spans_used;
    for (std::size_t span = 0; span < used; ++span) {
      if (tables.entry(span).kind != SpanKind::small) continue;
      if (auto r = check_bitmap(span); !r) return r;
      heir.adopt(tables, span);
    }
    return {};
  });
}

Result<void> Heap::Impl::refresh() {
  if (auto r = layout::check_superblock(tables.superblock(), tables.region.range()); !r) return r;
  return threads->refresh([this](ThreadHeap& heir) -> Result<void> {
    if (auto r = rebuild_supply(); !r) return r;
    Result<void> result;
    tables.changes.for_each([&](std::size_t span, std::uint8_t, bool) {
      if (result) result = refresh_span(span, heir);
    });
    return result;
  });
}

// What a span is now, whatever it was before. It stays with its owner, if it has one.
Result<void> Heap::Impl::refresh_span(std::size_t span, ThreadHeap& heir) {
  ThreadHeap* owner = &heir;
  if (const std::uint32_t number = owner_of(tables.heads[span]); number != 0) {
    owner = &threads->by_number(number);
    owner->forget_span(tables, span);
  }
  if (span >= tables.superblock().spans_used || tables.entry(span).kind != SpanKind::small) {
    return {};
  }
  if (auto r = check_bitmap(span); !r) return r;
  for (std::size_t i = 0; i * 64 < layout::slots_per_span(tables.entry(span).size_class); ++i) {
    tables.zero_word(span, i) = 0;
  }
  owner->adopt(tables, span);
  return {};
}

Heap::Heap(std::unique_ptr<Impl> impl) : impl_(std::move(impl)), id_(impl_->id) {}
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

Result<void> Heap::refresh() {
  const InHeap in_heap;
  return impl_->refresh();
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

std::string_view Heap::name() const {
  return impl_->tables.superblock().name.data();
}
void Heap::set_slack_percent(unsigned percent) {
  impl_->tables.slack_percent = percent;
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
              load_shared(impl_->tables.superblock().spans_used) * kSpanBytes});
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
