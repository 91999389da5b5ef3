#include <fmt/format.h>

#include <algorithm>

#include "pagetide/allocator/heap_change_log.h"
#include "pagetide/allocator/program_identity.h"
#include "pagetide/snapshot/freed_pages.h"
#include "pagetide/snapshot/snapshotter_impl.h"
#include "pagetide/snapshot/stop.h"

namespace pagetide {

namespace {

// A chain of manifests to read when opening stays this short, and the index bytes of a chain
// stay below those of one full index, so that full indexes at most double what is written.
constexpr std::uint32_t kMaxChainDepth = 64;
constexpr std::uint32_t kMinChainDepth = 8;

// What CollectedPages does, for what was taken out of the heap's change log.
class LoggedChanges {
 public:
  LoggedChanges(Arena& arena, const HeapDraft& draft) : arena_(arena), draft_(draft) {}
  LoggedChanges(const LoggedChanges&) = delete;
  LoggedChanges& operator=(const LoggedChanges&) = delete;
  ~LoggedChanges() {
    if (!used_) draft_.put_back(arena_.heap().changes());
  }
  void set_used() { used_ = true; }

 private:
  Arena& arena_;
  const HeapDraft& draft_;
  bool used_ = false;
};

}  // namespace

// One snapshot.
class Snapshotter::Impl::Take {
 public:
  // Once the snapshotter is prepared.
  explicit Take(Impl& snapshotter);
  Take(const Take&) = delete;
  Take& operator=(const Take&) = delete;
  ~Take();

  Result<SnapshotId> run();

 private:
  Result<void> capture();
  void find_zeroed();
  Result<std::uint64_t> commit();
  format::ManifestHeader header() const;
  Result<void> place_in_chain(format::Manifest& manifest) const;

  Impl& s_;
  PageCapture& pages_;
  HeapDraft& heap_draft_;
  SegmentWriter segment_;
  // What is seen of the heap inside the stop, besides its pages and metadata.
  std::uint64_t heap_bytes_ = 0;
  std::uint64_t image_pages_ = 0;
  bool holds_code_addresses_ = false;
  bool free_bytes_are_zero_ = false;
  std::uint64_t stop_ns_ = 0;
};

Snapshotter::Impl::Take::Take(Impl& snapshotter)
    : s_(snapshotter),
      pages_(*snapshotter.page_capture),
      heap_draft_(*snapshotter.heap_draft),
      segment_(snapshotter.store.new_segment()) {
  pages_.begin();
  heap_draft_.clear();
}

Snapshotter::Impl::Take::~Take() {
  pages_.tidy(s_.arena.heap().clear_policy() != ClearPolicy::never);
  heap_draft_.clear();
}

Result<SnapshotId> Snapshotter::Impl::Take::run() {
  CollectedPages pages(s_.arena, s_.collected);
  LoggedChanges changes(s_.arena, heap_draft_);
  Result<void> captured;
  {
    Stop stop(s_.options.quiesce);
    if (auto& held = stop.held(); !held) {
      pages.set_used();  // nothing was collected
      return propagate(held);
    }
    captured = capture();
    stop_ns_ = stop.end();
  }
  if (!captured) {
    segment_.discard();
    return propagate(captured);
  }
  auto id = commit();
  if (!id) {
    return tl::unexpected<Error>(std::move(id).error().with_context(
        fmt::format("cannot commit a snapshot to {}", s_.store.path)));
  }
  pages.set_used();
  changes.set_used();
  s_.base_id = *id;
  s_.arena.set_origin({s_.store.root.uuid, *id});
  s_.arena.tracker().report_unchanged(s_.arena.region().watch(), pages_.unchanged());
  return SnapshotId{*id};
}

// Inside the stop: allocates nothing, and takes no lock that a writer outside the arena's calls
// could hold. Writes to the disk only when the staging memory is full.
Result<void> Snapshotter::Impl::Take::capture() {
  const Heap& heap = s_.arena.heap();
  heap.settle();
  // All of it where there is nothing that the log is relative to in this store.
  heap_draft_.capture(heap.metadata(), heap.changes(), s_.base_id == 0);
  if (auto r = s_.collect(heap.used_ranges()); !r) return r;
  heap_bytes_ = heap.heap_bytes();
  image_pages_ = heap.image_bytes() / page_size();
  holds_code_addresses_ = heap.holds_code_addresses();
  free_bytes_are_zero_ = heap.free_bytes_are_zero();
  find_zeroed();
  FreeMask mask(heap.metadata());
  return pages_.capture({.region = s_.arena.range().data(),
                         .first_page = s_.first_page(),
                         .before = s_.base->pages,
                         .hash_seed = s_.store.root.seed,
                         .mask = s_.masks_free_bytes() ? &mask : nullptr},
                        s_.collected.written, s_.zeroed, segment_);
}

// What was freed is zero in snapshots from now on. Most of it nobody has written to, and it would
// stay as the parent has it.
void Snapshotter::Impl::Take::find_zeroed() {
  s_.zeroed.assign_clear(s_.collected.written.size());
  if (s_.masks_free_bytes() && s_.base_id != 0) {
    add_freed_pages(heap_draft_, s_.base->heap.metadata(), s_.arena.heap().metadata(), s_.zeroed);
  }
  s_.zeroed |= s_.collected.zeroed;
  s_.zeroed -= s_.collected.written;
}

Result<std::uint64_t> Snapshotter::Impl::Take::commit() {
  if (auto r = pages_.finish(segment_); !r) {
    segment_.discard();
    return propagate(r);
  }
  const SnapshotDraft& draft = pages_.draft();
  format::Manifest manifest;
  manifest.delta.assign(draft.extents().begin(), draft.extents().end());
  manifest.delta_hashes.assign(draft.hashes().begin(), draft.hashes().end());
  manifest.heap_delta = heap_draft_.encode_against(s_.base->heap);
  manifest.header = header();
  if (auto r = place_in_chain(manifest); !r) {
    segment_.discard();
    return propagate(r);
  }
  auto id = s_.store.commit(manifest, segment_);
  if (id) s_.base->apply_delta(manifest);
  return id;
}

format::ManifestHeader Snapshotter::Impl::Take::header() const {
  const SnapshotDraft& draft = pages_.draft();
  format::ManifestHeader h{};
  h.parent = s_.base_id;
  h.region_base = s_.region_begin();
  h.reserve_bytes = s_.arena.range().size;
  h.image_pages = image_pages_;
  h.flags = (holds_code_addresses_ ? format::kHoldsCodeAddresses : 0) |
            (free_bytes_are_zero_ ? format::kFreeBytesAreZero : 0) |
            (s_.masks_free_bytes() ? format::kFreeBytesMasked : 0);
  h.build_id = current_program().build_id;
  h.load_address = current_program().load_address;
  h.reported_pages = s_.collected.written.count() + s_.collected.zeroed.count();
  h.changed_pages = draft.data_pages() + draft.zero_pages();
  h.zero_pages = draft.zero_pages();
  h.stop_ns = stop_ns_;
  h.heap_bytes = heap_bytes_;
  h.segment_pages = draft.data_pages();
  s_.arena.name().copy(h.arena.data(), h.arena.size() - 1);
  return h;
}

// Decides whether this snapshot carries a full index, so that opening it or a descendant reads a
// bounded number of manifests, whatever the history.
Result<void> Snapshotter::Impl::Take::place_in_chain(format::Manifest& manifest) const {
  if (s_.base_id == 0) return {};
  auto parent = s_.store.read_header(s_.base_id);
  if (!parent) return propagate(parent);
  format::ManifestHeader& h = manifest.header;
  h.chain_depth = parent->chain_depth + 1;
  h.chain_bytes = parent->chain_bytes + manifest.heap_delta.size() +
                  format::manifest_bytes(manifest.delta.size(), manifest.delta_hashes.size());
  // Of the heap record, an entry and a few words a span.
  constexpr std::size_t kFullBytesPerSpan = 96;
  const std::size_t first = s_.first_page();
  const std::size_t full_bytes = (std::max(s_.base->pages.end(), first) - first) * sizeof(Hash128) +
                                 s_.base->heap.metadata().spans_used() * kFullBytesPerSpan;
  const bool deltas_outweigh = h.chain_depth >= kMinChainDepth && h.chain_bytes >= full_bytes;
  if (h.chain_depth < kMaxChainDepth && !deltas_outweigh) return {};
  auto image = s_.store.resolve(s_.base_id);
  if (!image) return propagate(image);
  image->apply_delta(manifest);
  image->pages.for_each_extent([&](const format::Extent& extent) {
    manifest.full.push_back(extent);
    for (std::uint32_t i = 0; i < extent.page_count; ++i) {
      manifest.full_hashes.push_back(image->pages.hash(extent.first_page + i));
    }
  });
  manifest.heap_full = image->heap.encode_full();
  h.chain_depth = 0;
  h.chain_bytes = 0;
  return {};
}

Result<SnapshotId> Snapshotter::take() {
  const RankedLock lock(impl_->mutex);
  if (auto r = impl_->prepare(); !r) return propagate(r);
  // Before a segment is created under a name that another store may use by now.
  if (auto r = impl_->store.check_still_ours(); !r) return propagate(r);
  return Impl::Take(*impl_).run();
}

}  // namespace pagetide
