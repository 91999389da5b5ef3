#include "pagetide/allocator/span_supply.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "pagetide/base/hash.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace pagetide {

using layout::kSpanBytes;

SpanSupply::SpanSupply(Region& region, const layout::Geometry& geometry, SpanBits used,
                       SpanBits zero, SpanBits given_back)
    : region_(&region),
      geometry_(geometry),
      used_(std::move(used)),
      zero_(std::move(zero)),
      given_back_(std::move(given_back)) {}

SpanSupply::SpanSupply(SpanSupply&& other) noexcept
    : region_(other.region_),
      geometry_(other.geometry_),
      used_(std::move(other.used_)),
      zero_(std::move(other.zero_)),
      given_back_(std::move(other.given_back_)),
      used_count_(other.used_count_),
      idle_count_(other.idle_count_),
      lowest_free_(other.lowest_free_),
      committed_(other.committed_),
      touched_(other.touched_) {}

Result<SpanSupply> SpanSupply::create(Region& region, const layout::Geometry& geometry) {
  std::array<SpanBits, 3> bits;
  for (SpanBits& each : bits) {
    auto made = SpanBits::create(divide_up(geometry.span_count, 64));
    if (!made) return propagate(made);
    each = std::move(*made);
  }
  return SpanSupply(region, geometry, std::move(bits[0]), std::move(bits[1]), std::move(bits[2]));
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
  // As in take_from_system().
  (void)region_->prefill(bytes_of(committed_, target - committed_));
  committed_ = target;
  return {};
}

// Whether all of these, which are handed out now, are known to be zero. Nobody knows from now on.
bool SpanSupply::take_known_zero(std::size_t first, std::size_t end) {
  bool all = true;
  for (std::size_t span = first; span < std::min(end, touched_); ++span) {
    all = all && test(zero_, span);
  }
  clear_bits(zero_.span(), {first, end - first});
  return all;
}

// Prefills what was given back; the rest of the run is no longer idle. Without prefill tracking
// stays right, only less exact: nothing to fail for.
void SpanSupply::take_from_system(std::size_t first, std::size_t end) {
  const std::size_t touched_end = std::min(end, touched_);
  for (std::size_t span = first; span < touched_end;) {
    const bool was_given_back = test(given_back_, span);
    std::size_t next = span;
    while (next < touched_end && test(given_back_, next) == was_given_back) ++next;
    if (was_given_back) {
      (void)region_->prefill(bytes_of(span, next - span));
    } else {
      idle_count_ -= std::min(idle_count_, next - span);
    }
    span = next;
  }
  clear_bits(given_back_.span(), {first, end - first});
}

std::optional<SpanRun> SpanSupply::allocate(std::size_t count, std::size_t alignment_spans,
                                            std::uint64_t& high_water) {
  const RankedLock lock(mutex_);
  const auto first = find_free(count, alignment_spans, high_water);
  if (!first) return std::nullopt;
  const std::size_t end = *first + count;
  if (!commit_to(end)) return std::nullopt;
  const bool known_zero = take_known_zero(*first, end);
  take_from_system(*first, end);
  touched_ = std::max(touched_, end);
  if (end > high_water) high_water = end;
  set_bits(used_.span(), {*first, count});
  used_count_ += count;
  if (*first <= lowest_free_) {
    while (lowest_free_ < end && is_used(lowest_free_)) ++lowest_free_;
  }
  return SpanRun{*first, known_zero};
}

std::size_t SpanSupply::most_idle() const {
  return std::max(kMinIdleSpans, used_count_ / kIdlePart);
}

bool SpanSupply::has_room_for_idle(std::size_t count) const {
  const RankedLock lock(mutex_);
  return idle_count_ + count <= most_idle();
}

// The highest run of idle spans, as much of it as is too much; nullopt: there is no excess. It
// counts as used until note_free().
std::optional<SpanSupply::SpanRange> SpanSupply::take_excess_idle() {
  const RankedLock lock(mutex_);
  if (idle_count_ <= most_idle()) return std::nullopt;
  const auto is_idle = [this](std::size_t span) {
    return !is_used(span) && !test(given_back_, span) && test(zero_, span);
  };
  std::size_t end = touched_;
  while (end > 0 && !is_idle(end - 1)) --end;
  const std::size_t excess = std::min(idle_count_ - most_idle(), end);
  std::size_t first = end;
  while (first > end - excess && is_idle(first - 1)) --first;
  const SpanRange run{first, end - first};
  set_bits(used_.span(), run);
  idle_count_ -= run.count;
  used_count_ += run.count;
  return run.empty() ? std::nullopt : std::optional(run);
}

void SpanSupply::note_free(SpanRange run, ZeroedBy zeroed_by) {
  const RankedLock lock(mutex_);
  if (zeroed_by == ZeroedBy::purge) {
    set_bits(given_back_.span(), run);
  } else {
    idle_count_ += run.count;
  }
  set_bits(zero_.span(), run);
  clear_bits(used_.span(), run);
  used_count_ -= run.count;
  lowest_free_ = std::min(lowest_free_, run.first);
}

void SpanSupply::release(std::size_t first, std::size_t count, RunContent content) {
  const int kept_errno = errno;  // free() leaves it alone
  const ByteRange bytes = bytes_of(first, count);
  ZeroedBy zeroed_by = ZeroedBy::stores;
  if (!has_room_for_idle(count)) {
    zeroed_by = zero_run_and_give_back(*region_, bytes);
  } else if (content != RunContent::zero) {
    zeroed_by = zero_run(*region_, bytes);
  }
  note_free({first, count}, zeroed_by);
  // The bound falls with what is in use.
  while (const auto excess = take_excess_idle()) {
    const ZeroedBy given = zero_run_and_give_back(*region_, bytes_of(excess->first, excess->count));
    note_free(*excess, given);
    if (given != ZeroedBy::purge) break;  // locked memory: it stays
  }
  errno = kept_errno;
}

Result<void> SpanSupply::reset(std::size_t high_water) {
  const RankedLock lock(mutex_);
  used_.reset();
  zero_.reset();
  used_count_ = 0;
  idle_count_ = 0;
  lowest_free_ = 0;
  touched_ = std::max(touched_, high_water);
  // What of these has no page is not known; prefilling leaves alone what has one.
  given_back_.reset();
  set_bits(given_back_.span(), {0, touched_});
  if (high_water <= committed_) return {};
  if (auto r = region_->commit(bytes_of(committed_, high_water - committed_)); !r) return r;
  committed_ = high_water;
  return {};
}

void SpanSupply::clear_free_spans() {
  for (std::size_t span = 0; span < touched_; ++span) {
    if (is_used(span) || test(zero_, span)) continue;
    const ByteRange bytes = bytes_of(span, 1);
    if (!is_all_zero(bytes.data(), bytes.size)) zero_run(*region_, bytes);
    set_bits(zero_.span(), {span, 1});
  }
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

std::size_t SpanSupply::idle_spans() const {
  const RankedLock lock(mutex_);
  return idle_count_;
}

}  // namespace pagetide
