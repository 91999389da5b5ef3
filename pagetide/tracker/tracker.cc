#include "pagetide/tracker/tracker.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <vector>

#include "pagetide/base/lock_rank.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/any_backend.h"
#include "pagetide/tracker/backend_choice.h"
#include "pagetide/tracker/watched_range.h"

namespace pagetide {

namespace {

tl::unexpected<Error> forked_failure() {
  return failure(ErrorCode::forked,
                 "this tracker was opened by the parent process; open a new one after fork().");
}

Result<void> discard(ByteRange range) {
  const int r = sys::advise(range, MADV_DONTNEED);
  if (r == 0) return {};
  if (r == -ENOMEM) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("cannot purge {} bytes at {:#x}: a part of it is not mapped.",
                               range.size, range.begin));
  }
  return system_failure("purge memory (MADV_DONTNEED)", -r,
                        "Memory locked with mlock() cannot be purged; unlock it.");
}

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

struct Tracker::Impl {
  explicit Impl(AnyBackend b) : backend(std::move(b)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    // In a forked child the descriptors would unregister the parent's memory.
    if (forked()) return;
    for (auto& watched : watches) {
      if (watched) backend.unwatch(watched->range());
    }
  }

  mutable RankedMutex mutex{LockRank::tracker, "tracker"};
  AnyBackend backend;
  std::string reason;
  HotPageOptions hot_pages;
  std::vector<std::optional<WatchedRange>> watches;
  std::uint64_t watches_made = 0;  // so far
  // The id of the consumer that has the place; none: free. Its low bits are the place.
  std::array<std::optional<ConsumerId>, kMaxConsumers> consumers{ConsumerId{}};
  std::uint32_t consumers_made = 0;
  TrackerStats stats;
  std::atomic<std::uint32_t> take_count = 0;
  pid_t owner = ::getpid();

  bool forked() const { return ::getpid() != owner; }

  static std::size_t place_of(ConsumerId id) { return id.value % kMaxConsumers; }
  bool has(ConsumerId id) const { return consumers.at(place_of(id)) == id; }

  // A WatchId is the place in `watches` below how many watches there have been.
  static std::size_t place_of(WatchId id) { return id.value & 0xffff'ffffU; }
  WatchedRange* find(WatchId id) {
    const std::size_t place = place_of(id);
    if (place >= watches.size() || !watches[place] || watches[place]->id != id) return nullptr;
    return &*watches[place];
  }

  // Places of ranges that are no longer watched are used again: a program may watch and unwatch
  // for ever.
  std::size_t free_place() {
    const auto found =
        std::find_if(watches.begin(), watches.end(), [](const auto& place) { return !place; });
    const auto place = static_cast<std::size_t>(found - watches.begin());
    if (place == watches.size()) watches.emplace_back();
    return place;
  }

  // Calls apply(watched range, its pages that `range` touches).
  template <typename Apply>
  void for_each_touched(ByteRange range, Apply&& apply) {
    for (auto& watched : watches) {
      if (!watched) continue;
      const ByteRange part = range.page_cover().intersect(watched->range());
      if (!part.empty()) apply(*watched, PageRange::covering(part, watched->range()));
    }
  }

  Result<void> check_purge(ByteRange range) {
    std::size_t pages = 0;
    bool anonymous = true;
    for_each_touched(range, [&](const WatchedRange& watched, PageRange touched) {
      pages += touched.count;
      anonymous = anonymous && watched.is_anonymous(range);
    });
    if (pages * page_size() != range.size) {
      return failure(ErrorCode::invalid_argument,
                     fmt::format("cannot purge {} bytes at {:#x}: a part of it is not watched.",
                                 range.size, range.begin));
    }
    if (anonymous) return {};
    return failure(ErrorCode::unsupported,
                   "cannot purge memory that has a file or memfd behind it: what the file holds "
                   "would come back. Clear it with memset(), or map anonymous memory over it and "
                   "watch that.");
  }

  // Of a purge that failed nobody knows how far it came: its pages are to be read.
  void log_purge(ByteRange range, bool whole) {
    backend.purged(range.page_cover());
    for_each_touched(range, [&](WatchedRange& watched, PageRange pages) {
      if (whole) {
        watched.note_purged(pages);
        stats.pages_purged += pages.count;
      } else {
        watched.mark_pending(pages);
      }
    });
  }
};

Tracker::Tracker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tracker::Tracker(Tracker&&) noexcept = default;
Tracker& Tracker::operator=(Tracker&&) noexcept = default;
Tracker::~Tracker() = default;

Tracker Tracker::over(AnyBackend backend, const HotPageOptions& hot_pages) {
  auto impl = std::make_unique<Impl>(std::move(backend));
  // Comparing costs the same for armed and unarmed pages.
  impl->hot_pages = hot_pages;
  if (impl->backend.kind() == BackendKind::compare) impl->hot_pages.enabled = false;
  return Tracker(std::move(impl));
}

Result<Tracker> Tracker::create(const TrackerOptions& options) {
  BackendChoice choice{options.backend, {}};
  if (choice.kind == BackendKind::automatic) {
    choice = choose_backend({.never_syscall_target = options.never_syscall_target,
                             .writers_held_in_takes = options.writers_held_in_takes});
  }
  auto backend = open_backend(choice.kind, options.settings);
  if (!backend) return propagate(backend);
  Tracker tracker = over(std::move(*backend), options.hot_pages);
  tracker.impl_->reason = std::move(choice.reason);
  return tracker;
}

BackendKind Tracker::backend() const {
  return impl_->backend.kind();
}
const std::string& Tracker::reason() const {
  return impl_->reason;
}

Result<WatchId> Tracker::watch(ByteRange range) {
  const bool wraps = range.end() < range.begin;
  if (range.empty() || wraps || !range.is_page_aligned()) {
    return failure(
        ErrorCode::invalid_argument,
        fmt::format("cannot watch {} bytes at {:#x}: the range must be whole pages of {} bytes.",
                    range.size, range.begin, page_size()));
  }
  if (impl_->forked()) return forked_failure();
  const RankedLock lock(impl_->mutex);
  for (const auto& watched : impl_->watches) {
    if (watched && !watched->range().intersect(range).empty()) {
      return failure(ErrorCode::already_exists,
                     fmt::format("cannot watch {} bytes at {:#x}: a part is watched already.",
                                 range.size, range.begin));
    }
  }
  auto watched = WatchedRange::create(range, impl_->hot_pages);
  if (!watched) return propagate(watched);
  for (std::size_t place = 0; place < kMaxConsumers; ++place) {
    if (impl_->consumers.at(place)) watched->add_consumer(place);
  }
  // Before the back end watches, so that nothing can fail after it.
  const std::size_t place = impl_->free_place();
  if (auto r = impl_->backend.watch(range); !r) return propagate(r);
  watched->id = WatchId{++impl_->watches_made << 32U | place};
  impl_->watches[place].emplace(std::move(*watched));
  return impl_->watches[place]->id;
}

void Tracker::unwatch(WatchId id) {
  // A child may have been forked while another thread held the lock, which then stays held there.
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  WatchedRange* watched = impl_->find(id);
  if (watched == nullptr) return;
  impl_->backend.unwatch(watched->range());
  impl_->watches[Impl::place_of(id)].reset();
}

Result<ByteRange> Tracker::range(WatchId id) const {
  if (impl_->forked()) return forked_failure();
  const RankedLock lock(impl_->mutex);
  if (const WatchedRange* watched = impl_->find(id); watched != nullptr) return watched->range();
  return failure(ErrorCode::invalid_argument, "no such watch; it was unwatched.");
}

Result<Collected> Tracker::collect(WatchId id, CollectMode mode, ConsumerId consumer) {
  Collected out;
  if (auto r = collect_into(id, mode, out, consumer); !r) return propagate(r);
  return out;
}

Result<void> Tracker::collect_into(WatchId id, CollectMode mode, Collected& out,
                                   ConsumerId consumer) {
  // Unwatched in between is found out below.
  const auto whole = range(id);
  const ByteRange part = whole ? *whole : ByteRange{};
  return collect_into(id, {&part, 1}, mode, out, consumer);
}

Result<Collected> Tracker::collect(WatchId id, std::span<const ByteRange> parts, CollectMode mode,
                                   ConsumerId consumer) {
  Collected out;
  if (auto r = collect_into(id, parts, mode, out, consumer); !r) return propagate(r);
  return out;
}

void Tracker::reserve(WatchId id, Collected& out) const {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  const WatchedRange* watched = impl_->find(id);
  if (watched == nullptr) return;
  out.written.reserve(watched->page_count());
  out.zeroed.reserve(watched->page_count());
}

Result<void> Tracker::collect_into(WatchId id, std::span<const ByteRange> parts, CollectMode mode,
                                   Collected& out, ConsumerId consumer) {
  if (impl_->forked()) return forked_failure();
  const std::uint64_t start_ns = now_ns();
  const RankedLock lock(impl_->mutex);
  WatchedRange* watched = impl_->find(id);
  if (watched == nullptr) {
    return failure(ErrorCode::invalid_argument, "cannot collect: no such watch; it was unwatched.");
  }
  if (!impl_->has(consumer)) {
    return failure(ErrorCode::invalid_argument,
                   "cannot collect: no such consumer; it was removed.");
  }
  const ByteRange whole = watched->range();
  std::uintptr_t end = whole.begin;
  for (const ByteRange& part : parts) {
    if (!part.is_page_aligned() || !whole.contains(part)) {
      return failure(ErrorCode::invalid_argument,
                     "cannot collect: a part is not page-aligned or not inside the watched range.");
    }
    end = std::max(end, part.end());
  }
  const std::size_t pages = (end - whole.begin) / page_size();
  out.written.assign_clear(pages);
  out.zeroed.assign_clear(pages);
  out.poisoned = false;
  out.cause.clear();
  for (const ByteRange& part : parts) {
    if (part.empty()) continue;
    watched->collect(impl_->backend, part, mode, Impl::place_of(consumer), out);
  }
  if (mode == CollectMode::take) watched->hot().next_take();
  out.zeroed -= out.written;

  TrackerStats& stats = impl_->stats;
  stats.last_collect_ns = now_ns() - start_ns;
  stats.total_collect_ns += stats.last_collect_ns;
  if (mode != CollectMode::peek) {
    ++stats.takes;
    impl_->take_count.fetch_add(1, std::memory_order_relaxed);
    stats.pages_reported += out.written.count() + out.zeroed.count();
    stats.poisoned_takes += out.poisoned ? 1 : 0;
  } else {
    ++stats.peeks;
  }
  return {};
}

Result<ConsumerId> Tracker::add_consumer() {
  if (impl_->forked()) return forked_failure();
  const RankedLock lock(impl_->mutex);
  auto& consumers = impl_->consumers;
  auto* const free_place = std::find(consumers.begin(), consumers.end(), std::nullopt);
  if (free_place == consumers.end()) {
    return failure(ErrorCode::out_of_memory,
                   fmt::format("a tracker has at most {} consumers; remove one.", kMaxConsumers));
  }
  const auto place = static_cast<std::uint32_t>(free_place - consumers.begin());
  for (auto& watched : impl_->watches) {
    if (watched) watched->add_consumer(place);
  }
  free_place->emplace(ConsumerId{++impl_->consumers_made * kMaxConsumers + place});
  return **free_place;
}

void Tracker::remove_consumer(ConsumerId consumer) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  const std::size_t place = Impl::place_of(consumer);
  if (consumer == ConsumerId{} || !impl_->has(consumer)) return;
  impl_->consumers.at(place).reset();
  for (auto& watched : impl_->watches) {
    if (watched) watched->remove_consumer(place);
  }
}

void Tracker::report_unchanged(WatchId id, const DirtyBitmap& unchanged) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  WatchedRange* watched = impl_->find(id);
  if (watched == nullptr) return;
  impl_->stats.pages_unchanged += unchanged.count();
  watched->hot().note_unchanged(unchanged);
}

void Tracker::mark_dirty(ByteRange range) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  impl_->for_each_touched(
      range, [](WatchedRange& watched, PageRange pages) { watched.mark_pending(pages); });
}

void Tracker::put_back(WatchId id, const Collected& collected, ConsumerId consumer) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  WatchedRange* watched = impl_->find(id);
  if (watched == nullptr || !impl_->has(consumer)) return;
  const std::size_t place = Impl::place_of(consumer);
  const auto add = [&](PageRange run) { watched->mark_pending(run, place); };
  collected.written.for_each_run(add);
  collected.zeroed.for_each_run(add);
}

void Tracker::mark_always_dirty(ByteRange range) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  impl_->for_each_touched(
      range, [](WatchedRange& watched, PageRange pages) { watched.mark_always(pages); });
}

Result<void> Tracker::purge(ByteRange range) {
  const bool wraps = range.end() < range.begin;
  if (wraps || !range.is_page_aligned()) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("cannot purge {} bytes at {:#x}: the range must be whole pages of "
                               "{} bytes.",
                               range.size, range.begin, page_size()));
  }
  if (impl_->forked()) return discard(range);
  const RankedLock lock(impl_->mutex);
  if (auto r = impl_->check_purge(range); !r) return r;
  auto r = discard(range);
  impl_->log_purge(range, r.has_value());
  return r;
}

void Tracker::note_purged(ByteRange range) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  impl_->log_purge(range, true);
}

Result<void> Tracker::prefill(ByteRange range, Prefill policy) {
  // A child that allocates on in a forked heap must not prefill the parent's memory.
  if (impl_->forked()) return {};
  const RankedLock lock(impl_->mutex);
  Result<void> result;
  // Prefilling what has a file behind it would hide what the file holds.
  impl_->for_each_touched(range, [&](const WatchedRange& watched, PageRange) {
    watched.for_each_anonymous_part(range, [&](ByteRange part) {
      if (result) result = impl_->backend.prefill(part, policy);
    });
  });
  return result;
}

std::size_t Tracker::count_armed(ByteRange range) const {
  if (impl_->forked()) return 0;
  const RankedLock lock(impl_->mutex);
  std::size_t count = 0;
  impl_->for_each_touched(range, [&](const WatchedRange& watched, PageRange pages) {
    count += impl_->backend.count_armed(watched.range(), pages.bytes_from(watched.range().begin));
  });
  return count;
}

const std::atomic<std::uint32_t>& Tracker::take_count() const {
  return impl_->take_count;
}

TrackerStats Tracker::stats() const {
  if (impl_->forked()) return {};
  const RankedLock lock(impl_->mutex);
  TrackerStats stats = impl_->stats;
  for (const auto& watched : impl_->watches) {
    if (watched) stats.hot_blocks += watched->hot().blocks_left_unarmed();
  }
  return stats;
}

}  // namespace pagetide
