#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

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

std::uint64_t ns_since(std::chrono::steady_clock::time_point start) {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
}

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
  void copy_in_rounds();
  bool copy_latest();
  Result<void> capture();
  Result<void> capture_copies();
  PageCapture::Source source(FreeMask& mask) const;
  void find_zeroed();
  void mark_what_memory_has_otherwise();
  Result<std::uint64_t> commit();
  format::ManifestHeader header() const;
  Result<void> place_in_chain(format::Manifest& manifest) const;

  Impl& s_;
  PageCapture& pages_;
  HeapDraft& heap_draft_;
  SegmentWriter segment_;
  bool has_copies_ = false;  // of all pages collected so far
  std::vector<std::byte> heap_delta_;
  bool base_is_ahead_ = false;  // its heap is that of this snapshot already
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  TakeStats stats_;
  // What is seen of the heap inside the stop, besides its pages and metadata.
  std::uint64_t heap_bytes_ = 0;
  std::uint64_t image_pages_ = 0;
  bool holds_code_addresses_ = false;
  bool free_bytes_are_zero_ = false;
};

Snapshotter::Impl::Take::Take(Impl& snapshotter)
    : s_(snapshotter),
      pages_(*snapshotter.page_capture),
      heap_draft_(*snapshotter.heap_draft),
      segment_(snapshotter.store.new_segment()) {
  pages_.begin();
  heap_draft_.clear();
  s_.begin_collecting();
}

Snapshotter::Impl::Take::~Take() {
  const bool clear = s_.arena.heap().clear_policy() != ClearPolicy::never;
  pages_.tidy(clear);
  if (s_.page_copies) s_.page_copies->tidy(clear);
  heap_draft_.clear();
  // It is read anew from the store.
  if (base_is_ahead_) s_.base.reset();
}

Result<SnapshotId> Snapshotter::Impl::Take::run() {
  CollectedPages pages(s_.arena, s_.collected);
  LoggedChanges changes(s_.arena, heap_draft_);
  if (s_.page_copies) copy_in_rounds();
  Result<void> captured;
  {
    Stop stop(s_.options.quiesce);
    if (auto& held = stop.held(); !held) return propagate(held);
    captured = capture();
    stats_.stop_ns = stop.end();
  }
  if (captured && has_copies_) captured = capture_copies();
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
  base_is_ahead_ = false;
  s_.base_id = *id;
  s_.arena.set_origin({s_.store.root.uuid, *id});
  s_.arena.tracker().report_unchanged(s_.arena.region().watch(), pages_.unchanged());
  mark_what_memory_has_otherwise();
  stats_.engine = has_copies_ ? SnapshotEngine::precopy : SnapshotEngine::stop;
  stats_.total_ns = ns_since(start_);
  s_.last_take = stats_;
  return SnapshotId{*id};
}

// While writers run. An error, or too many pages for the memory, leaves everything to the stop.
void Snapshotter::Impl::Take::copy_in_rounds() {
  // A scan costs more than the copies of so few pages.
  constexpr std::size_t kHardlyAny = 256;
  std::size_t before = SIZE_MAX;
  for (unsigned round = 0; round < s_.options.max_rounds; ++round) {
    const CollectMode mode = round == 0 ? CollectMode::take : CollectMode::take_again;
    if (!s_.collect(s_.arena.heap().used_ranges(), mode)) return;
    const std::size_t pages = s_.latest.written.count();
    ++stats_.rounds;
    has_copies_ = copy_latest();
    if (!has_copies_) return;
    stats_.copied_pages += pages;
    if (pages <= kHardlyAny || pages > before / 2) return;
    before = pages;
  }
}

bool Snapshotter::Impl::Take::copy_latest() {
  return s_.page_copies->copy(s_.arena.region().tracked_range().data(), s_.latest.written);
}

// Inside the stop: allocates nothing, and takes no lock that a writer outside the arena's calls
// could hold. Writes to the disk only when the memory for copies is full.
Result<void> Snapshotter::Impl::Take::capture() {
  const Heap& heap = s_.arena.heap();
  heap.settle();
  // All of it where there is nothing that the log is relative to in this store.
  heap_draft_.capture(heap.metadata(), heap.changes(), s_.base_id == 0);
  const CollectMode mode = has_copies_ ? CollectMode::take_unarmed : CollectMode::take;
  if (auto r = s_.collect(heap.used_ranges(), mode); !r) return r;
  heap_bytes_ = heap.heap_bytes();
  image_pages_ = heap.image_bytes() / page_size();
  holds_code_addresses_ = heap.holds_code_addresses();
  free_bytes_are_zero_ = heap.free_bytes_are_zero();
  find_zeroed();
  has_copies_ = has_copies_ && copy_latest();
  stats_.stop_pages = has_copies_ ? s_.latest.written.count() : s_.collected.written.count();
  if (has_copies_) return {};
  FreeMask mask(heap.metadata());
  return pages_.capture(source(mask), s_.collected.written, s_.zeroed, segment_);
}

PageCapture::Source Snapshotter::Impl::Take::source(FreeMask& mask) const {
  return {.region = s_.arena.range().data(),
          .first_page = s_.first_page(),
          .before = s_.base->pages,
          .hash_seed = s_.store.root.seed,
          .mask = s_.masks_free_bytes() ? &mask : nullptr};
}

// After the stop. What is free is what was free in it, so the heap of that moment is made first.
Result<void> Snapshotter::Impl::Take::capture_copies() {
  heap_delta_ = heap_draft_.encode_against(s_.base->heap);
  base_is_ahead_ = true;
  s_.base->heap.apply(heap_delta_, format::HeapRecordKind::delta);
  FreeMask mask(s_.base->heap.metadata());
  return pages_.capture_copies(source(mask), s_.collected.written, s_.zeroed, *s_.page_copies,
                               segment_);
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

// Back end compare looks for pages that are not what they were in memory. Of those that the
// snapshot has otherwise, because what is free in them is zero there, that says nothing: what is
// free can be allocated again and get the same bytes.
void Snapshotter::Impl::Take::mark_what_memory_has_otherwise() {
  Tracker& tracker = s_.arena.tracker();
  if (tracker.backend() != BackendKind::compare) return;
  s_.zeroed -= s_.collected.zeroed;
  DirtyBitmap pages = pages_.masked();
  pages |= s_.zeroed;
  pages.for_each_run([&](PageRange run) {
    tracker.mark_dirty(run.bytes_from(s_.arena.region().tracked_range().begin));
  });
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
  manifest.heap_delta =
      has_copies_ ? std::move(heap_delta_) : heap_draft_.encode_against(s_.base->heap);
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
  h.stop_ns = stats_.stop_ns;
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
