#include "pagetide/allocator/heap_tables.h"

#include <fmt/format.h>

#include <utility>

namespace pagetide {

HeapTables::HeapTables(Region& r, const layout::Geometry& g, SpanSupply s, ClearPolicy c)
    : region(r),
      geometry(g),
      supply(std::move(s)),
      clear(c),
      clears(c != ClearPolicy::never),
      base_(r.base()),
      entries_(reinterpret_cast<layout::SpanEntry*>(base_ + g.spans_offset)),
      bitmaps_(base_ + g.bitmaps_offset),
      first_bit_(reinterpret_cast<std::uintptr_t>(bitmaps_) * 8),
      group_bits_(g.group_bytes * 8),
      data_(base_ + g.data_offset),
      data_bytes_(g.span_count * layout::kSpanBytes),
      takes_(&r.tracker().take_count()) {}

Result<HeapTables> HeapTables::create(Region& region, ClearPolicy clear) {
  if (region.range().begin % layout::kSpanBytes != 0) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("a heap's base must be a multiple of {} bytes; {:#x} is not.",
                               layout::kSpanBytes, region.range().begin));
  }
  auto geometry = layout::geometry_for(region.range().size);
  if (!geometry) return propagate(geometry);
  auto supply = SpanSupply::create(region, *geometry, clear);
  if (!supply) return propagate(supply);
  HeapTables tables(region, *geometry, std::move(*supply), clear);
  auto heads = VirtualArray<SpanHead>::create(geometry->span_count);
  if (!heads) return propagate(heads);
  tables.heads = std::move(*heads);
  auto mail = VirtualArray<SpanMail>::create(geometry->span_count);
  if (!mail) return propagate(mail);
  tables.mail = std::move(*mail);
  auto changes = HeapChangeLog::create(geometry->span_count);
  if (!changes) return propagate(changes);
  tables.changes = std::move(*changes);
  auto states = VirtualArray<SpanState>::create(geometry->span_count);
  if (!states) return propagate(states);
  tables.states = std::move(*states);
  for (VirtualArray<std::uint64_t>* bits :
       {&tables.taken, &tables.zero, &tables.remote, &tables.uncleared}) {
    auto words = VirtualArray<std::uint64_t>::create(geometry->span_count * layout::kBitmapGroups *
                                                     layout::kWordsPerGroup);
    if (!words) return propagate(words);
    *bits = std::move(*words);
  }
  return tables;
}

void HeapTables::forget_volatile() {
  heads.reset();
  mail.reset();
  states.reset();
  for (VirtualArray<std::uint64_t>* bits : {&taken, &zero, &remote, &uncleared}) bits->reset();
}

}  // namespace pagetide
