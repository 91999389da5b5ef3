#include "pagetide/tracker/tracker.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <vector>

#include "pagetide/base/lock_rank.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/any_backend.h"
#include "pagetide/tracker/capabilities.h"
#include "pagetide/tracker/compare_backend.h"
#include "pagetide/tracker/uffd_async_backend.h"

namespace pagetide {

namespace {

// One bit a page of a watched range; only words that were touched cost memory.
using PageBits = VirtualArray<std::uint64_t>;

Result<PageBits> page_bits(ByteRange range) {
  return PageBits::create(divide_up(range.size / page_size(), 64));
}

struct WatchedRange {
  ByteRange range;
  PageBits pending;  // reported by the next collect whatever the back end says
  PageBits purged;   // purge log since the last take
  PageBits always;   // reported by every collect
};

// Adds the bits of `pages` that are set in `source`.
void add_bits(DirtyBitmap& target, const PageBits& source, PageRange pages) {
  const auto words = target.words();
  for (std::size_t i = pages.first / 64; i * 64 < pages.end(); ++i) {
    std::uint64_t word = source[i];
    if (word == 0) continue;
    // Only the pages that were asked for.
    if (i * 64 < pages.first) word &= ~std::uint64_t{0} << (pages.first % 64);
    if (pages.end() - i * 64 < 64) word &= (std::uint64_t{1} << (pages.end() % 64)) - 1;
    words[i] |= word;
  }
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
  std::vector<std::optional<WatchedRange>> watches;
  TrackerStats stats;
  pid_t owner = ::getpid();

  bool forked() const { return ::getpid() != owner; }

  WatchedRange* find(WatchId id) {
    return id.value < watches.size() && watches[id.value] ? &*watches[id.value] : nullptr;
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

  void log_purge(ByteRange range) {
    for_each_touched(range, [&](WatchedRange& watched, PageRange pages) {
      set_bits(watched.purged.span(), pages);
      stats.pages_purged += pages.count;
    });
  }

  void collect_part(WatchedRange& watched, ByteRange part, CollectMode mode, Collected& out) {
    const PageRange pages = PageRange::covering(part, watched.range);
    if (auto r = backend.collect(watched.range, part, mode, out.written); !r) {
      // Bits may have been consumed before the error: the whole part counts as written.
      out.written.set_range(pages);
      out.poisoned = true;
      out.cause = r.error().message();
    }
    add_bits(out.written, watched.pending, pages);
    add_bits(out.written, watched.always, pages);
    add_bits(out.zeroed, watched.purged, pages);
    if (mode == CollectMode::take) {
      clear_bits(watched.pending.span(), pages);
      clear_bits(watched.purged.span(), pages);
    }
  }
};

Tracker::Tracker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tracker::Tracker(Tracker&&) noexcept = default;
Tracker& Tracker::operator=(Tracker&&) noexcept = default;
Tracker::~Tracker() = default;

Tracker Tracker::over(AnyBackend backend) {
  return Tracker(std::make_unique<Impl>(std::move(backend)));
}

Result<Tracker> Tracker::create(const TrackerOptions& options) {
  BackendKind kind = options.backend;
  std::string reason;
  if (kind != BackendKind::compare) {
    auto usable = check_uffd_async();
    if (!usable && kind == BackendKind::uffd_async) return propagate(usable);
    if (kind == BackendKind::automatic) {
      kind = usable ? BackendKind::uffd_async : BackendKind::compare;
      reason =
          usable ? "asynchronous write protection passed its round trip" : usable.error().message();
    }
  }
  if (kind == BackendKind::uffd_async) {
    auto backend = UffdAsyncBackend::open();
    if (!backend) return propagate(backend);
    Tracker tracker = over(AnyBackend(std::move(*backend)));
    tracker.impl_->reason = std::move(reason);
    return tracker;
  }
  auto backend = CompareBackend::open();
  if (!backend) return propagate(backend);
  Tracker tracker = over(AnyBackend(std::move(*backend)));
  tracker.impl_->reason = std::move(reason);
  return tracker;
}

BackendKind Tracker::backend() const {
  return impl_->backend.kind();
}
const std::string& Tracker::reason() const {
  return impl_->reason;
}

Result<WatchId> Tracker::watch(ByteRange range) {
  if (range.empty() || !range.is_page_aligned()) {
    return failure(
        ErrorCode::invalid_argument,
        fmt::format("cannot watch {} bytes at {:#x}: the range must be whole pages of {} bytes.",
                    range.size, range.begin, page_size()));
  }
  auto pending = page_bits(range);
  if (!pending) return propagate(pending);
  auto purged = page_bits(range);
  if (!purged) return propagate(purged);
  auto always = page_bits(range);
  if (!always) return propagate(always);
  const RankedLock lock(impl_->mutex);
  if (impl_->forked()) {
    return failure(ErrorCode::forked,
                   "this tracker was opened by the parent process; open a new one after fork().");
  }
  for (const auto& watched : impl_->watches) {
    if (watched && !watched->range.intersect(range).empty()) {
      return failure(ErrorCode::already_exists,
                     fmt::format("cannot watch {} bytes at {:#x}: a part is watched already.",
                                 range.size, range.begin));
    }
  }
  if (auto r = impl_->backend.watch(range); !r) return propagate(r);
  const WatchId id{static_cast<std::uint32_t>(impl_->watches.size())};
  impl_->watches.emplace_back(
      WatchedRange{range, std::move(*pending), std::move(*purged), std::move(*always)});
  return id;
}

void Tracker::unwatch(WatchId id) {
  const RankedLock lock(impl_->mutex);
  WatchedRange* watched = impl_->find(id);
  if (watched == nullptr) return;
  if (!impl_->forked()) impl_->backend.unwatch(watched->range);
  impl_->watches[id.value].reset();
}

Result<Collected> Tracker::collect(WatchId id, CollectMode mode) {
  ByteRange whole;
  {
    const RankedLock lock(impl_->mutex);
    if (WatchedRange* watched = impl_->find(id); watched != nullptr) whole = watched->range;
  }
  return collect(id, {&whole, 1}, mode);
}

Result<Collected> Tracker::collect(WatchId id, std::span<const ByteRange> parts, CollectMode mode) {
  Collected out;
  if (auto r = collect_into(id, parts, mode, out); !r) return propagate(r);
  return out;
}

void Tracker::reserve(WatchId id, Collected& out) const {
  const RankedLock lock(impl_->mutex);
  const WatchedRange* watched = impl_->find(id);
  if (watched == nullptr) return;
  out.written.reserve(watched->range.size / page_size());
  out.zeroed.reserve(watched->range.size / page_size());
}

Result<void> Tracker::collect_into(WatchId id, std::span<const ByteRange> parts, CollectMode mode,
                                   Collected& out) {
  const std::uint64_t start_ns = now_ns();
  const RankedLock lock(impl_->mutex);
  WatchedRange* watched = impl_->find(id);
  if (watched == nullptr) {
    return failure(ErrorCode::invalid_argument, "cannot collect: no such watch; it was unwatched.");
  }
  if (impl_->forked()) {
    return failure(ErrorCode::forked,
                   "this tracker was opened by the parent process; open a new one after fork().");
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
    if (!part.empty()) impl_->collect_part(*watched, part, mode, out);
  }
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

void Tracker::mark_dirty(ByteRange range) {
  const RankedLock lock(impl_->mutex);
  impl_->for_each_touched(range, [](WatchedRange& watched, PageRange pages) {
    set_bits(watched.pending.span(), pages);
  });
}

void Tracker::put_back(WatchId id, const Collected& collected) {
  const RankedLock lock(impl_->mutex);
  WatchedRange* watched = impl_->find(id);
  if (watched == nullptr) return;
  const auto add = [&](PageRange run) { set_bits(watched->pending.span(), run); };
  collected.written.for_each_run(add);
  collected.zeroed.for_each_run(add);
}

void Tracker::mark_always_dirty(ByteRange range) {
  const RankedLock lock(impl_->mutex);
  impl_->for_each_touched(range, [](WatchedRange& watched, PageRange pages) {
    set_bits(watched.always.span(), pages);
  });
}

Result<void> Tracker::purge(ByteRange range) {
  const RankedLock lock(impl_->mutex);
  if (const int r = sys::advise(range, MADV_DONTNEED); r < 0) {
    return system_failure("purge memory (MADV_DONTNEED)", -r,
                          "Memory locked with mlock() cannot be purged; unlock it.");
  }
  impl_->log_purge(range);
  return {};
}

void Tracker::note_purged(ByteRange range) {
  const RankedLock lock(impl_->mutex);
  impl_->log_purge(range);
}

Result<void> Tracker::prefill_zero(ByteRange range) {
  const RankedLock lock(impl_->mutex);
  // A child that allocates on in a forked heap must not prefill the parent's memory.
  if (impl_->forked()) return {};
  return impl_->backend.prefill_zero(range);
}

TrackerStats Tracker::stats() const {
  const RankedLock lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace pagetide
