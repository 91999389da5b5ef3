#include "pagetide/tracker/tracker.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <optional>
#include <vector>

#include "pagetide/base/lock_rank.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/any_backend.h"
#include "pagetide/tracker/backend_choice.h"
#include "pagetide/tracker/hot_pages.h"
#include "pagetide/tracker/kernel/mapping_query.h"
#include "pagetide/tracker/page_bits.h"

namespace pagetide {

namespace {

tl::unexpected<Error> forked_failure() {
  return failure(ErrorCode::forked,
                 "this tracker was opened by the parent process; open a new one after fork().");
}

// What one consumer has not seen of one watched range.
struct Epoch {
  explicit Epoch(std::size_t page_count) : pending(page_count), purged(page_count) {}
  PageBits pending;  // taken by others, marked dirty or put back
  PageBits purged;   // purge log since its last take
};

constexpr std::uint32_t kMaxConsumers = 8;

struct WatchedRange {
  WatchId id;
  ByteRange range;
  std::array<std::optional<Epoch>, kMaxConsumers> epochs;  // by consumer
  PageBits always;                                         // reported by every collect
  std::vector<ByteRange> not_anonymous;  // parts whose untouched and purged pages are not zero
  HotPages hot;
};

// The parts of a range that have a file or memfd behind them. Where the kernel cannot be asked (no
// /proc, memory of a test's fake back end), all counts as anonymous.
std::vector<ByteRange> file_parts_of(ByteRange range) {
  std::vector<ByteRange> parts;
  auto query = MappingQuery::open();
  if (!query) return parts;
  const auto mapped = query->parts_of(range);
  if (!mapped) return parts;
  for (const MappedPart& part : *mapped) {
    if (part.is_file || part.is_shared) parts.push_back(part.range);
  }
  return parts;
}

Result<void> discard(ByteRange range) {
  if (const int r = sys::advise(range, MADV_DONTNEED); r < 0) {
    return system_failure("purge memory (MADV_DONTNEED)", -r,
                          "Memory locked with mlock() cannot be purged; unlock it.");
  }
  return {};
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
      if (watched) backend.unwatch(watched->range);
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
  pid_t owner = ::getpid();

  bool forked() const { return ::getpid() != owner; }

  static std::size_t place_of(ConsumerId id) { return id.value % kMaxConsumers; }
  // The consumer's epoch; null when there is no such consumer.
  Epoch* epoch_of(WatchedRange& watched, ConsumerId id) const {
    const std::size_t place = place_of(id);
    return consumers.at(place) == id ? &*watched.epochs.at(place) : nullptr;
  }

  // A WatchId is the place in `watches` below how many watches there have been.
  static std::size_t place_of(WatchId id) { return id.value & 0xffff'ffffU; }
  WatchedRange* find(WatchId id) {
    const std::size_t place = place_of(id);
    if (place >= watches.size() || !watches[place] || watches[place]->id != id) return nullptr;
    return &*watches[place];
  }

  // Calls apply(watched range, its pages that `range` touches).
  template <typename Apply>
  void for_each_touched(ByteRange range, Apply&& apply) {
    for (auto& watched : watches) {
      if (!watched) continue;
      const ByteRange part = range.page_cover().intersect(watched->range);
      if (!part.empty()) apply(*watched, PageRange::covering(part, watched->range));
    }
  }

  void mark_pending(ByteRange range) {
    for_each_touched(range, [](WatchedRange& watched, PageRange pages) {
      for (auto& epoch : watched.epochs) {
        if (epoch) epoch->pending.set(pages);
      }
    });
  }

  void log_purge(ByteRange range) {
    backend.purged(range.page_cover());
    for_each_touched(range, [&](WatchedRange& watched, PageRange pages) {
      for (auto& epoch : watched.epochs) {
        if (epoch) epoch->purged.set(pages);
      }
      stats.pages_purged += pages.count;
    });
    // Their pages are what the file holds, not zeros: to be read.
    for_each_file_part(range, [&](ByteRange part) { mark_pending(part); });
  }

  template <typename Apply>
  void for_each_file_part(ByteRange range, Apply&& apply) {
    for (const auto& watched : watches) {
      if (!watched) continue;
      for (const ByteRange& part : watched->not_anonymous) {
        const ByteRange inside = part.intersect(range.page_cover());
        if (!inside.empty()) apply(inside);
      }
    }
  }

  // Prefilling what has a file behind it would hide what the file holds.
  template <typename Apply>
  void for_each_anonymous_part(ByteRange range, Apply&& apply) {
    for (const auto& watched : watches) {
      if (!watched) continue;
      ByteRange rest = range.page_cover().intersect(watched->range);
      for (const ByteRange& file_part : watched->not_anonymous) {
        const ByteRange inside = file_part.intersect(rest);
        if (inside.empty()) continue;
        if (inside.begin > rest.begin) apply(ByteRange{rest.begin, inside.begin - rest.begin});
        rest = {inside.end(), rest.end() - inside.end()};
      }
      if (!rest.empty()) apply(rest);
    }
  }

  bool is_anonymous(ByteRange range) {
    bool anonymous = true;
    for_each_file_part(range, [&](ByteRange) { anonymous = false; });
    return anonymous;
  }

  // Asks the back end. An error means that bits may have been consumed: all counts as written. So
  // it does when there is no memory for putting the error into words.
  void harvest(WatchedRange& watched, ByteRange part, CollectMode mode, Collected& out) {
    try {
      const auto r = backend.collect(watched.range, part, mode, out.written);
      if (r) return;
      poison(watched, part, out);
      out.cause = r.error().message();
    } catch (const std::bad_alloc&) {
      poison(watched, part, out);
    }
  }
  static void poison(WatchedRange& watched, ByteRange part, Collected& out) {
    out.written.set_range(PageRange::covering(part, watched.range));
    out.poisoned = true;
  }

  // Takes from the back end, and hands what it found to the other consumers too.
  void take_part(WatchedRange& watched, ByteRange part, ConsumerId consumer, Collected& out) {
    const PageRange pages = PageRange::covering(part, watched.range);
    // Hot blocks are only looked at: their pages stay unarmed and are found again next time.
    watched.hot.plan(part, [&](ByteRange run, bool arm) {
      harvest(watched, run, arm ? CollectMode::take : CollectMode::peek, out);
    });
    watched.hot.note_reported(pages, out.written);
    for (std::size_t i = 0; i < kMaxConsumers; ++i) {
      if (i == place_of(consumer) || !watched.epochs.at(i)) continue;
      watched.epochs.at(i)->pending.set_from(out.written, pages);
    }
  }

  void collect_part(WatchedRange& watched, ByteRange part, CollectMode mode, ConsumerId consumer,
                    Collected& out) {
    const PageRange pages = PageRange::covering(part, watched.range);
    if (mode == CollectMode::take) {
      take_part(watched, part, consumer, out);
    } else {
      harvest(watched, part, mode, out);
    }
    Epoch& epoch = *watched.epochs.at(place_of(consumer));
    epoch.pending.add_to(out.written, pages);
    watched.always.add_to(out.written, pages);
    epoch.purged.add_to(out.zeroed, pages);
    if (mode == CollectMode::take) {
      epoch.pending.reset(pages);
      epoch.purged.reset(pages);
    }
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
    if (watched && !watched->range.intersect(range).empty()) {
      return failure(ErrorCode::already_exists,
                     fmt::format("cannot watch {} bytes at {:#x}: a part is watched already.",
                                 range.size, range.begin));
    }
  }
  auto hot = HotPages::create(range, impl_->hot_pages);
  if (!hot) return propagate(hot);
  const std::size_t page_count = range.size / page_size();
  WatchedRange watched{{}, range, {}, PageBits(page_count), file_parts_of(range), std::move(*hot)};
  for (std::size_t i = 0; i < kMaxConsumers; ++i) {
    if (impl_->consumers.at(i)) watched.epochs.at(i).emplace(page_count);
  }
  if (auto r = impl_->backend.watch(range); !r) return propagate(r);
  // Places of ranges that are no longer watched are used again: a program may watch and unwatch
  // for ever.
  const auto free_place = std::find_if(impl_->watches.begin(), impl_->watches.end(),
                                       [](const auto& place) { return !place; });
  const auto place = static_cast<std::uint64_t>(free_place - impl_->watches.begin());
  if (free_place == impl_->watches.end()) impl_->watches.emplace_back();
  watched.id = WatchId{++impl_->watches_made << 32U | place};
  impl_->watches[place].emplace(std::move(watched));
  return impl_->watches[place]->id;
}

void Tracker::unwatch(WatchId id) {
  // A child may have been forked while another thread held the lock, which then stays held there.
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  WatchedRange* watched = impl_->find(id);
  if (watched == nullptr) return;
  impl_->backend.unwatch(watched->range);
  impl_->watches[Impl::place_of(id)].reset();
}

Result<ByteRange> Tracker::range(WatchId id) const {
  if (impl_->forked()) return forked_failure();
  const RankedLock lock(impl_->mutex);
  if (const WatchedRange* watched = impl_->find(id); watched != nullptr) return watched->range;
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
  out.written.reserve(watched->range.size / page_size());
  out.zeroed.reserve(watched->range.size / page_size());
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
  if (impl_->epoch_of(*watched, consumer) == nullptr) {
    return failure(ErrorCode::invalid_argument,
                   "cannot collect: no such consumer; it was removed.");
  }
  std::uintptr_t end = watched->range.begin;
  for (const ByteRange& part : parts) {
    if (!part.is_page_aligned() || !watched->range.contains(part)) {
      return failure(ErrorCode::invalid_argument,
                     "cannot collect: a part is not page-aligned or not inside the watched range.");
    }
    end = std::max(end, part.end());
  }
  const std::size_t pages = (end - watched->range.begin) / page_size();
  out.written.assign_clear(pages);
  out.zeroed.assign_clear(pages);
  out.poisoned = false;
  out.cause.clear();
  for (const ByteRange& part : parts) {
    if (!part.empty()) impl_->collect_part(*watched, part, mode, consumer, out);
  }
  if (mode == CollectMode::take) watched->hot.next_take();
  out.zeroed -= out.written;

  TrackerStats& stats = impl_->stats;
  stats.last_collect_ns = now_ns() - start_ns;
  stats.total_collect_ns += stats.last_collect_ns;
  if (mode == CollectMode::take) {
    ++stats.takes;
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
    if (watched) watched->epochs.at(place).emplace(watched->range.size / page_size());
  }
  free_place->emplace(ConsumerId{++impl_->consumers_made * kMaxConsumers + place});
  return **free_place;
}

void Tracker::remove_consumer(ConsumerId consumer) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  const std::size_t place = Impl::place_of(consumer);
  if (consumer == ConsumerId{} || impl_->consumers.at(place) != consumer) return;
  impl_->consumers.at(place).reset();
  for (auto& watched : impl_->watches) {
    if (watched) watched->epochs.at(place).reset();
  }
}

void Tracker::report_unchanged(WatchId id, const DirtyBitmap& unchanged) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  WatchedRange* watched = impl_->find(id);
  if (watched == nullptr) return;
  impl_->stats.pages_unchanged += unchanged.count();
  watched->hot.note_unchanged(unchanged);
}

void Tracker::mark_dirty(ByteRange range) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  impl_->mark_pending(range);
}

void Tracker::put_back(WatchId id, const Collected& collected, ConsumerId consumer) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  WatchedRange* watched = impl_->find(id);
  Epoch* epoch = watched == nullptr ? nullptr : impl_->epoch_of(*watched, consumer);
  if (epoch == nullptr) return;
  const PageRange all{0, watched->range.size / page_size()};
  const auto add = [&](PageRange run) { epoch->pending.set(run.intersect(all)); };
  collected.written.for_each_run(add);
  collected.zeroed.for_each_run(add);
}

void Tracker::mark_always_dirty(ByteRange range) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  impl_->for_each_touched(
      range, [](WatchedRange& watched, PageRange pages) { watched.always.set(pages); });
}

Result<void> Tracker::purge(ByteRange range) {
  if (!range.is_page_aligned()) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("cannot purge {} bytes at {:#x}: the range must be whole pages of "
                               "{} bytes.",
                               range.size, range.begin, page_size()));
  }
  if (impl_->forked()) return discard(range);
  const RankedLock lock(impl_->mutex);
  if (!impl_->is_anonymous(range)) {
    return failure(ErrorCode::unsupported,
                   "cannot purge memory that has a file or memfd behind it: what the file holds "
                   "would come back. Clear it with memset(), or map anonymous memory over it and "
                   "watch that.");
  }
  if (auto r = discard(range); !r) return r;
  impl_->log_purge(range);
  return {};
}

void Tracker::note_purged(ByteRange range) {
  if (impl_->forked()) return;
  const RankedLock lock(impl_->mutex);
  impl_->log_purge(range);
}

Result<void> Tracker::prefill(ByteRange range, Prefill policy) {
  // A child that allocates on in a forked heap must not prefill the parent's memory.
  if (impl_->forked()) return {};
  const RankedLock lock(impl_->mutex);
  Result<void> result;
  impl_->for_each_anonymous_part(range, [&](ByteRange part) {
    if (result) result = impl_->backend.prefill(part, policy);
  });
  return result;
}

TrackerStats Tracker::stats() const {
  if (impl_->forked()) return {};
  const RankedLock lock(impl_->mutex);
  TrackerStats stats = impl_->stats;
  for (const auto& watched : impl_->watches) {
    if (watched) stats.hot_blocks += watched->hot.blocks_left_unarmed();
  }
  return stats;
}

}  // namespace pagetide
