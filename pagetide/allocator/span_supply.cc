#include "pagetide/allocator/span_supply.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdint>

#include "pagetide/base/hash.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace pagetide {

using layout::kSpanBytes;

std::uint64_t SpanSupply::coarse_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 +
         static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
}

SpanSupply::SpanSupply(Region& region, const layout::Geometry& geometry, ClearPolicy clear,
                       Clock clock, std::array<SpanBits, 5> bits)
    : region_(&region),
      geometry_(geometry),
      clear_(clear),
      clock_(clock),
      used_(std::move(bits[0])),
      zero_(std::move(bits[1])),
      given_back_(std::move(bits[2])),
      idle_(std::move(bits[3])),
      reserved_(std::move(bits[4])) {}

SpanSupply::SpanSupply(SpanSupply&& other) noexcept
    : region_(other.region_),
      geometry_(other.geometry_),
      clear_(other.clear_),
      clock_(other.clock_),
      used_(std::move(other.used_)),
      zero_(std::move(other.zero_)),
      given_back_(std::move(other.given_back_)),
      idle_(std::move(other.idle_)),
      reserved_(std::move(other.reserved_)),
      used_count_(other.used_count_),
      recently_used_(other.recently_used_),
      idle_count_(other.idle_count_),
      lowest_free_(other.lowest_free_),
      committed_(other.committed_),
      lowest_open_(other.lowest_open_),
      reserved_end_(other.reserved_end_),
      touched_(other.touched_) {}

Result<SpanSupply> SpanSupply::create(Region& region, const layout::Geometry& geometry,
                                      ClearPolicy clear, Clock clock) {
  std::array<SpanBits, 5> bits;
  for (SpanBits& each : bits) {
    auto made = SpanBits::create(divide_up(geometry.span_count, 64));
    if (!made) return propagate(made);
    each = std::move(*made);
  }
  return SpanSupply(region, geometry, clear, clock, std::move(bits));
}

ByteRange SpanSupply::bytes_of(std::size_t first, std::size_t count) const {
  return {region_->range().begin + geometry_.data_offset + first * kSpanBytes, count * kSpanBytes};
}

std::size_t SpanSupply::align_index(std::size_t index, std::size_t alignment) const {
  const std::uintptr_t origin = bytes_of(0, 0).begin;
  return (round_up(origin + index * kSpanBytes, alignment * kSpanBytes) - origin) / kSpanBytes;
}

// The first used span of [from, end), or end.
std::size_t SpanSupply::next_used(std::size_t from, std::size_t end, Reserved reserved) const {
  const bool by_reservation = reserved == Reserved::counts_as_used;
  while (from < end) {
    const std::uint64_t used = used_[from / 64] | (by_reservation ? reserved_[from / 64] : 0);
    const std::uint64_t word = used >> (from % 64);
    if (word != 0) return std::min(end, from + static_cast<std::size_t>(std::countr_zero(word)));
    from = round_down(from, 64) + 64;
  }
  return end;
}

// The lowest aligned run of free spans. None is used from `high_water` on.
std::optional<std::size_t> SpanSupply::find_free(std::size_t count, std::size_t alignment,
                                                 std::size_t high_water, Reserved reserved) const {
  const bool by_reservation = reserved == Reserved::counts_as_used;
  const std::size_t limit = by_reservation ? std::max(high_water, reserved_end_) : high_water;
  std::size_t first = align_index(by_reservation ? lowest_open_ : lowest_free_, alignment);
  while (first + count <= geometry_.span_count) {
    const std::size_t end = std::min(first + count, limit);
    std::size_t blocker = next_used(first, end, reserved);
    if (blocker >= end) return first;
    // Past the whole run of used spans: most are long.
    while (blocker < limit && (is_used(blocker) || (by_reservation && test(reserved_, blocker)))) {
      ++blocker;
    }
    first = align_index(blocker, alignment);
  }
  return std::nullopt;
}

// What is reserved is taken when there is nothing else.
std::optional<std::size_t> SpanSupply::find_free(std::size_t count, std::size_t alignment,
                                                 std::size_t high_water) const {
  const auto first = find_free(count, alignment, high_water, Reserved::counts_as_used);
  return first ? first : find_free(count, alignment, high_water, Reserved::is_free);
}

// As far as it lies in the region.
SpanSupply::SpanRange SpanSupply::block_of(std::size_t span) const {
  const std::size_t end = align_index(span + 1, kBlockSpans);
  const std::size_t first = end > kBlockSpans ? end - kBlockSpans : 0;
  return {first, std::min(end, geometry_.span_count) - first};
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
    if (was_given_back) (void)region_->prefill(bytes_of(span, next - span));
    span = next;
  }
  clear_bits(given_back_.span(), {first, end - first});
  for (std::size_t span = first; span < touched_end; ++span) idle_count_ -= is_idle(span);
  clear_bits(idle_.span(), {first, end - first});
}

std::optional<SpanRun> SpanSupply::allocate(std::size_t count, std::size_t alignment_spans,
                                            std::uint64_t& high_water) {
  const RankedLock lock(mutex_);
  const auto first = find_free(count, alignment_spans, high_water);
  if (!first) return std::nullopt;
  return take(*first, *first + count, high_water);
}

std::optional<SpanRun> SpanSupply::allocate_near(std::size_t neighbour, std::uint64_t& high_water) {
  {
    const RankedLock lock(mutex_);
    const SpanRange near = block_of(neighbour);
    for (std::size_t span = near.first; span < near.end(); ++span) {
      if (!is_used(span)) return take(span, span + 1, high_water);
    }
    const auto block = find_free(kBlockSpans, kBlockSpans, high_water, Reserved::counts_as_used);
    if (block) {
      set_bits(reserved_.span(), {*block, kBlockSpans});
      reserved_end_ = std::max(reserved_end_, *block + kBlockSpans);
      return take(*block, *block + 1, high_water);
    }
  }
  return allocate(1, 1, high_water);
}

std::optional<bool> SpanSupply::extend(std::size_t first, std::size_t count, std::size_t wanted,
                                       std::uint64_t& high_water) {
  const RankedLock lock(mutex_);
  const std::size_t begin = first + count;
  const std::size_t end = first + wanted;
  if (end > geometry_.span_count) return std::nullopt;
  const std::size_t known_end = std::min<std::size_t>(end, high_water);
  if (next_used(begin, known_end, Reserved::is_free) < known_end) return std::nullopt;
  const auto run = take(begin, end, high_water);
  if (!run) return std::nullopt;
  return run->known_zero;
}

// Hands out spans that are free.
std::optional<SpanRun> SpanSupply::take(std::size_t first, std::size_t end,
                                        std::uint64_t& high_water) {
  if (!commit_to(end)) return std::nullopt;
  const bool known_zero = take_known_zero(first, end);
  take_from_system(first, end);
  touched_ = std::max(touched_, end);
  // A snapshot looks at it while this goes on.
  if (end > high_water) std::atomic_ref(high_water).store(end, std::memory_order_relaxed);
  set_bits(used_.span(), {first, end - first});
  used_count_ += end - first;
  recently_used_.grow_to(used_count_);
  if (first <= lowest_free_) {
    while (lowest_free_ < end && is_used(lowest_free_)) ++lowest_free_;
  }
  while (lowest_open_ < std::max(touched_, reserved_end_) &&
         (is_used(lowest_open_) || test(reserved_, lowest_open_))) {
    ++lowest_open_;
  }
  return SpanRun{first, known_zero};
}

// When so many are in use.
std::size_t SpanSupply::most_idle(std::size_t used) {
  const std::size_t lately = recently_used_.at(clock_(), used_count_);
  return std::max({kMinIdleSpans, used / kIdlePart, lately + lately / kRecentPart - used});
}

bool SpanSupply::has_room_for_idle(std::size_t count) {
  const RankedLock lock(mutex_);
  return idle_count_ + count <= most_idle(used_count_ - count);
}

// The highest run of idle spans, as much of it as is too much; nullopt: there is no excess. It
// counts as used until note_free().
std::optional<SpanSupply::SpanRange> SpanSupply::take_idle_beyond(std::size_t most) {
  const RankedLock lock(mutex_);
  if (idle_count_ <= most) return std::nullopt;
  std::size_t end = touched_;
  while (end > 0 && !is_idle(end - 1)) --end;
  const std::size_t excess = std::min(idle_count_ - most, end);
  std::size_t first = end;
  while (first > end - excess && is_idle(first - 1)) --first;
  const SpanRange run{first, end - first};
  set_bits(used_.span(), run);
  clear_bits(idle_.span(), run);
  idle_count_ -= run.count;
  used_count_ += run.count;
  return run.empty() ? std::nullopt : std::optional(run);
}

std::size_t SpanSupply::give_back_idle_beyond(std::size_t most) {
  std::size_t given_back = 0;
  while (const auto excess = take_idle_beyond(most)) {
    const auto zeroed = zero_run_and_give_back(*region_, bytes_of(excess->first, excess->count));
    note_free(*excess, zeroed == ZeroedBy::purge ? Came::given_back : Came::zero);
    if (zeroed != ZeroedBy::purge) break;  // locked memory: it stays
    given_back += excess->count;
  }
  return given_back;
}

std::size_t SpanSupply::trim() {
  return give_back_idle_beyond(0);
}

void SpanSupply::note_free(SpanRange run, Came came) {
  const RankedLock lock(mutex_);
  if (came == Came::given_back) {
    set_bits(given_back_.span(), run);
  } else {
    set_bits(idle_.span(), run);
    idle_count_ += run.count;
  }
  if (came != Came::unknown) set_bits(zero_.span(), run);
  clear_bits(used_.span(), run);
  used_count_ -= run.count;
  lowest_free_ = std::min(lowest_free_, run.first);
  // A reservation is for spans that were never used since: what comes back is for everybody.
  const std::size_t first = block_of(run.first).first;
  clear_bits(reserved_.span(), {first, block_of(run.end() - 1).end() - first});
  lowest_open_ = std::min(lowest_open_, first);
}

void SpanSupply::release(std::size_t first, std::size_t count, RunContent content) {
  const int kept_errno = errno;  // free() leaves it alone
  const ByteRange bytes = bytes_of(first, count);
  Came came = content == RunContent::zero ? Came::zero : Came::unknown;
  if (!has_room_for_idle(count)) {
    const auto zeroed = zero_run_and_give_back(*region_, bytes);
    came = zeroed == ZeroedBy::purge ? Came::given_back : Came::zero;
  } else if (came == Came::unknown && clear_ == ClearPolicy::on_free) {
    came = zero_run(*region_, bytes) == ZeroedBy::purge ? Came::given_back : Came::zero;
  }
  note_free({first, count}, came);
  // The bound falls with what is in use.
  std::size_t most = 0;
  {
    const RankedLock lock(mutex_);
    most = most_idle(used_count_);
    if (idle_count_ <= most) most = SIZE_MAX;
  }
  if (most != SIZE_MAX) give_back_idle_beyond(most);
  errno = kept_errno;
}

Result<void> SpanSupply::reset(std::size_t high_water) {
  const RankedLock lock(mutex_);
  used_.reset();
  zero_.reset();
  idle_.reset();
  reserved_.reset();
  lowest_open_ = reserved_end_ = 0;
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
