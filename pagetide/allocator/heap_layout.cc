#include "pagetide/allocator/heap_layout.h"

#include <fmt/format.h>

#include <algorithm>

namespace pagetide::layout {

Result<Geometry> geometry_for(std::size_t reserve_bytes) {
  const std::size_t page = page_size();
  Geometry g;
  g.runtime_offset = round_up(sizeof(Superblock), page);
  g.roots_offset = g.runtime_offset + page;
  g.spans_offset = g.roots_offset + round_up(kRootCapacity * sizeof(RootEntry), page);
  // Rounding each table up to pages, and the data to a span, costs at most this.
  const std::size_t fixed = g.spans_offset + (1 + kBitmapGroups) * page + kSpanBytes;
  constexpr std::size_t kPerSpan =
      kSpanBytes + sizeof(SpanEntry) + kBitmapGroups * kBytesPerGroupLine;
  if (reserve_bytes < fixed + kPerSpan) {
    return failure(
        ErrorCode::invalid_argument,
        fmt::format("a reservation of {} bytes is too small for a heap; reserve at least {}.",
                    reserve_bytes, fixed + kPerSpan));
  }
  g.span_count = (reserve_bytes - fixed) / kPerSpan;
  g.bitmaps_offset = g.spans_offset + round_up(g.span_count * sizeof(SpanEntry), page);
  g.group_bytes = round_up(g.span_count * kBytesPerGroupLine, page);
  g.data_offset = round_up(g.bitmaps_offset + kBitmapGroups * g.group_bytes, kSpanBytes);
  return g;
}

Result<void> check_superblock(const Superblock& s, ByteRange where) {
  if (s.magic != kMagic) {
    return failure(ErrorCode::damaged, "the region does not begin with a Pagetide heap.");
  }
  if (s.version > kVersion) {
    return failure(
        ErrorCode::version_too_new,
        fmt::format("the heap has layout version {}; this Pagetide reads up to {}. Use a newer "
                    "Pagetide.",
                    s.version, kVersion));
  }
  if (s.page_size != page_size() || s.span_bytes != kSpanBytes) {
    return failure(ErrorCode::unsupported,
                   fmt::format("the heap was made with pages of {} bytes; this machine has {}.",
                               s.page_size, page_size()));
  }
  if (s.base != where.begin || s.reserve_bytes != where.size) {
    return failure(
        ErrorCode::damaged,
        fmt::format("the heap says it lies at {:#x} with {} bytes, not at {:#x} with {}.", s.base,
                    s.reserve_bytes, where.begin, where.size));
  }
  auto expected = geometry_for(where.size);
  if (!expected) return propagate(expected);
  const Geometry found{s.runtime_offset, s.roots_offset, s.spans_offset, s.bitmaps_offset,
                       s.group_bytes,    s.data_offset,  s.span_count};
  const bool named = std::find(s.name.begin(), s.name.end(), '\0') != s.name.end();
  const bool known = s.version != 0 && (s.flags & ~kHoldsCodeAddresses) == 0;
  if (found != *expected || s.spans_used > s.span_count || !named || !known) {
    return failure(ErrorCode::damaged, "the heap's superblock contradicts itself.");
  }
  return {};
}

}  // namespace pagetide::layout
