#include "pagetide/snapshot/snapshotter.h"

#include <fmt/format.h>

#include <algorithm>

#include "pagetide/snapshot/snapshotter_impl.h"

namespace pagetide {

Snapshotter::Snapshotter(Arena& arena, Store& store, SnapshotterOptions options)
    : impl_(std::make_unique<Impl>(arena, store, std::move(options))) {}
Snapshotter::~Snapshotter() = default;

SnapshotId Snapshotter::parent() const {
  const RankedLock lock(impl_->mutex);
  return {impl_->parent_id()};
}

TakeStats Snapshotter::last_take() const {
  const RankedLock lock(impl_->mutex);
  return impl_->last_take;
}

Result<void> Snapshotter::Impl::prepare() {
  if (::getpid() != owner) {
    return failure(
        ErrorCode::forked,
        fmt::format(
            "the arena '{}' belongs to the parent process: a forked child may use its "
            "memory, but neither takes snapshots of it nor rolls it back. Destroy it in the "
            "child and open it from a store there.",
            arena.name()));
  }
  if (!has_arena) {
    return failure(
        ErrorCode::busy,
        fmt::format("another Snapshotter has the arena '{}'; its changes can be consumed only "
                    "once. Use that one, or destroy it first.",
                    arena.name()));
  }
  if (!store.writable()) {
    return failure(
        ErrorCode::invalid_argument,
        fmt::format("{} was opened for reading; open it with StoreMode::write.", store.path));
  }
  if (!page_capture) {
    auto heap = HeapDraft::create(arena.heap().geometry().span_count);
    if (!heap) return propagate(heap);
    auto made = PageCapture::create(region_pages(), options.staging_bytes);
    if (!made) return propagate(made);
    arena.tracker().reserve(arena.region().watch(), collected);
    arena.tracker().reserve(arena.region().watch(), latest);
    zeroed.reserve(region_pages());
    heap_draft = std::move(*heap);
    page_capture = std::move(*made);
  }
  if (!page_copies && options.engine == SnapshotEngine::precopy && options.quiesce.pause &&
      sees_every_write(arena.tracker().backend())) {
    auto made = PageCopies::create(region_pages(), options.staging_bytes);
    if (!made) return propagate(made);
    page_copies = std::move(*made);
  }
  return load_base();
}

Result<void> Snapshotter::Impl::load_base() {
  const std::uint64_t wanted = parent_id();
  if (base && base_id == wanted) return {};
  auto image = wanted == 0 ? SnapshotImage::create(arena.range().size) : store.resolve(wanted);
  if (!image) return propagate(image);
  base = std::move(*image);
  base_id = wanted;
  return {};
}

Result<void> Snapshotter::Impl::collect(const UsedRanges& used, CollectMode mode) {
  if (auto r = arena.tracker().collect_into(arena.region().watch(), used.span(), mode, latest);
      !r) {
    return r;
  }
  if (!has_collected) widen_to_base(used);
  has_collected = true;
  const std::size_t pages = std::max(collected.written.size(), latest.written.size());
  collected.written.resize(pages);
  collected.zeroed.resize(pages);
  latest.written.resize(pages);
  latest.zeroed.resize(pages);
  // What was purged since it was written is zero, and the other way round.
  collected.written -= latest.zeroed;
  collected.zeroed -= latest.written;
  collected.written |= latest.written;
  collected.zeroed |= latest.zeroed;
  return {};
}

void Snapshotter::Impl::begin_collecting() {
  collected.written.assign_clear(0);
  collected.zeroed.assign_clear(0);
  has_collected = false;
}

// The tracker's epoch began when the arena was made, or with the snapshot it was last saved as.
// Where that is in another store, the pages that are clean since then are unknown to this one.
void Snapshotter::Impl::widen_to_base(const UsedRanges& used) {
  if (!is_base_elsewhere()) return;
  for (const ByteRange& range : used.span()) {
    latest.written.set_range(PageRange::covering(range, arena.region().tracked_range()));
  }
  latest.zeroed -= latest.written;
}

}  // namespace pagetide
