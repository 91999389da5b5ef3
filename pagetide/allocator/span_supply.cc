#include "pagetide/allocator/span_supply.h"

#include <algorithm>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace pagetide {

using layout::kSpanBytes;

SpanSupply::SpanSupply(Region& region, const layout::Geometry& geometry,
                       VirtualArray<std::uint64_t> used)
    : region_(&region), geometry_(geometry), used_(std::move(used)) {}

SpanSupply::SpanSupply(SpanSupply&& other) noexcept
    : region_(other.region_),
      geometry_(other.geometry_),
      used_(std::move(other.used_)),
      used_count_(other.used_count_),
      lowest_free_(other.lowest_free_),
      committed_(other.committed_),
      touched_(other.touched_) {}

Result<SpanSupply> SpanSupply::create(Region& region, const layout::Geometry& geometry) {
  auto used = VirtualArray<std::uint64_t>::create(divide_up(geometry.span_count, 64));
  if (!used) return propagate(used);
  return SpanSupply(region, geometry, std::move(*used));
}

ByteRange SpanSupply::bytes_of(std::size_t first, std::size_t count) const {
  return {region_->range().begin + geometry_.data_offset + first * kSpanBytes, count * kSpanBytes};
}

std::size_t SpanSupply::align_index(std::size_t index, std::size_t alignment) const {
  const std::uintptr_t origin = bytes_of(0, 0).begin;
  return (round_up(origin + index * kSpanBytes, alignment * kSpanBytes) - origin) / kSpanBytes;
}

// The lowest aligned run of free spans that lies below `limit` or reaches beyond its end.
std::optional<std::size_t> SpanSupply::find_free(std::size_t count, std::size_t alignment,
                                                 std::size_t limit) const {
  std::size_t first = align_index(lowest_free_, alignment);
  while (first + count <= geometry_.span_count) {
    std::size_t blocker = first;
    const std::size_t end = std::min(first + count, limit);
    while (blocker < end && !is_used(blocker)) ++blocker;
    if (blocker >= end) return first;
    first = align_index(blocker + 1, alignment);
  }
  return std::nullopt;
}

Result<void> SpanSupply::commit_to(std::size_t end) {
  if (end <= committed_) return {};
  const std::size_t target = std::min(round_up(end, kCommitSpans), geometry_.span_count);
  if (auto r = region_->commit(bytes_of(committed_, target - committed_)); !r) return r;
  // Without prefill tracking stays right, only less exact: nothing to fail for.
  (void)region_->prefill(bytes_of(committed_, target - committed_));
  committed_ = target;
  return {};
}

std::optional<std::size_t> SpanSupply::allocate(std::size_t count, std::size_t alignment_spans,
                                                std::uint64_t& high_water) {
  const RankedLock lock(mutex_);
  const auto first = find_free(count, alignment_spans, high_water);
  if (!first) return std::nullopt;
  const std::size_t end = *first + count;
  if (!commit_to(end)) return std::nullopt;
  if (*first < touched_) {
    // These were purged when they came back.
    (void)region_->prefill(bytes_of(*first, std::min(end, touched_) - *first));
  }
  touched_ = std::max(touched_, end);
  if (end > high_water) high_water = end;
  set_bits(used_.span(), {*first, count});
  used_count_ += count;
  if (*first <= lowest_free_) {
    while (lowest_free_ < end && is_used(lowest_free_)) ++lowest_free_;
  }
  return first;
}

void SpanSupply::release(std::size_t first, std::size_t count) {
  const RankedLock lock(mutex_);
  const ByteRange bytes = bytes_of(first, count);
  // Locked memory cannot be purged; a free span must read as zero all the same.
  if (auto r = region_->purge(bytes); !r) clear_memory(bytes.data(), bytes.size);
  clear_bits(used_.span(), {first, count});
  used_count_ -= count;
  lowest_free_ = std::min(lowest_free_, first);
}

Result<void> SpanSupply::reset(std::size_t high_water) {
  const RankedLock lock(mutex_);
  used_.reset();
  used_count_ = 0;
  lowest_free_ = 0;
  touched_ = std::max(touched_, high_water);
  if (high_water <= committed_) return {};
  if (auto r = region_->commit(bytes_of(committed_, high_water - committed_)); !r) return r;
  committed_ = high_water;
  return {};
}

void SpanSupply::mark_used(std::size_t first, std::size_t count) {
  const RankedLock lock(mutex_);
  set_bits(used_.span(), {first, count});
  used_count_ += count;
  while (lowest_free_ < geometry_.span_count && is_used(lowest_free_)) ++lowest_free_;
}

std::size_t SpanSupply::used_spans() const {
  const RankedLock lock(mutex_);
  return used_count_;
}

}  // namespace pagetide
