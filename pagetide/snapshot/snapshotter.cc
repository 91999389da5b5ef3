#include "pagetide/snapshot/snapshotter.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/free_mask.h"
#include "pagetide/allocator/heap_change_log.h"
#include "pagetide/allocator/program_identity.h"
#include "pagetide/allocator/run_zeroing.h"
#include "pagetide/base/lock_rank.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/snapshot/draft.h"
#include "pagetide/snapshot/heap_draft.h"
#include "pagetide/snapshot/store_impl.h"

namespace pagetide {

namespace {

// A chain of manifests to read when opening stays this short, and the index bytes of a chain
// stay below those of one full index, so that full indexes at most double what is written.
constexpr std::uint32_t kMaxChainDepth = 64;
constexpr std::uint32_t kMinChainDepth = 8;
constexpr std::size_t kLeastStagingKept = std::size_t{4} << 20;

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

// Holds the caller's writers, and lets them go on whatever happens.
class Stop {
 public:
  explicit Stop(const Quiesce& quiesce) : quiesce_(quiesce) {
    if (quiesce_.pause) held_ = quiesce_.pause();
    ended_ = !held_;
    start_ns_ = now_ns();
  }
  Stop(const Stop&) = delete;
  Stop& operator=(const Stop&) = delete;
  ~Stop() { end(); }

  // Why the writers could not be held; they go on then.
  Result<void>& held() { return held_; }
  // How long the stop took. Ends it when it has not ended yet.
  std::uint64_t end() {
    if (!ended_) {
      stop_ns_ = now_ns() - start_ns_;
      ended_ = true;
      if (quiesce_.resume) quiesce_.resume();
    }
    return stop_ns_;
  }

 private:
  const Quiesce& quiesce_;
  Result<void> held_;
  std::uint64_t start_ns_ = 0;
  std::uint64_t stop_ns_ = 0;
  bool ended_ = false;
};

// Gives back to the tracker what was collected, unless it came to its use: also where memory runs
// out on the way.
class CollectedPages {
 public:
  CollectedPages(Arena& arena, const Collected& collected) : arena_(arena), collected_(collected) {}
  CollectedPages(const CollectedPages&) = delete;
  CollectedPages& operator=(const CollectedPages&) = delete;
  ~CollectedPages() {
    if (!used_) arena_.tracker().put_back(arena_.region().watch(), collected_);
  }
  void set_used() { used_ = true; }

 private:
  Arena& arena_;
  const Collected& collected_;
  bool used_ = false;
};

// The same for what was taken out of the heap's change log.
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

// What is seen of the heap inside the stop, besides its pages.
struct HeapFacts {
  std::uint64_t heap_bytes = 0;
  std::uint64_t image_pages = 0;
  bool holds_code_addresses = false;
  bool free_bytes_are_zero = false;
  bool free_bytes_masked = false;

  std::uint32_t flags() const {
    return (holds_code_addresses ? format::kHoldsCodeAddresses : 0) |
           (free_bytes_are_zero ? format::kFreeBytesAreZero : 0) |
           (free_bytes_masked ? format::kFreeBytesMasked : 0);
  }
};

// A part of the heap's metadata, by offset from the region's start: a root, an entry of the span
// table or a line of slot bitmaps.
struct HeapPart {
  std::size_t offset;
  std::size_t size;
};

}  // namespace

struct Snapshotter::Impl {
  Impl(Arena& a, Store& s, SnapshotterOptions o)
      : arena(a), store(s.impl()), options(std::move(o)), has_arena(a.acquire_consumer()) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (has_arena) arena.release_consumer();
  }

  mutable RankedMutex mutex{LockRank::snapshotter, "snapshotter"};
  Arena& arena;
  Store::Impl& store;
  SnapshotterOptions options;
  bool has_arena;
  const pid_t owner = ::getpid();

  // The image that the tracker's epoch and the heap's change log are relative to.
  std::optional<SnapshotImage> base;
  std::uint64_t base_id = 0;

  Collected collected;
  DirtyBitmap unchanged;  // of these, what the hash dropped
  std::optional<SnapshotDraft> draft;
  std::optional<HeapDraft> heap_draft;
  VirtualArray<std::byte> staging;
  std::size_t staged_bytes = 0;
  std::size_t most_staged_bytes = 0;   // by this snapshot
  std::size_t staging_kept_bytes = 0;  // that can have pages

  std::uintptr_t region_begin() const { return arena.range().begin; }
  std::size_t region_pages() const { return arena.range().size / page_size(); }
  // Page 0 of the tracker's watch: the first one of the heap's data.
  std::size_t first_page() const { return arena.heap().geometry().data_offset / page_size(); }
  // Whether bytes that are free count as zero, whatever the memory holds.
  bool masks_free_bytes() const { return arena.heap().clear_policy() == ClearPolicy::deferred; }

  std::uint64_t parent_id() const {
    const ArenaOrigin& origin = arena.origin();
    return origin.store_uuid == store.root.uuid ? origin.snapshot : 0;
  }

  Result<void> prepare();
  Result<void> load_base();
  bool is_base_elsewhere() const { return base_id == 0 && arena.origin().snapshot != 0; }
  void widen_to_base(const UsedRanges& used);
  Result<void> capture(SegmentWriter& segment, HeapFacts& facts);
  Result<void> capture_pages(PageRange run, FreeMask* mask, SegmentWriter& segment);
  Result<void> flush(SegmentWriter& segment);
  void tidy_staging();
  Result<void> place_in_chain(format::Manifest& manifest) const;
  Result<std::uint64_t> commit(const HeapFacts& facts, std::uint64_t stop_ns,
                               SegmentWriter& segment);

  Result<format::ManifestHeader> read_target(std::uint64_t id);
  DirtyBitmap differing_pages(const SnapshotImage& target,
                              std::span<const HeapPart> heap_parts) const;
  void add_revived_bytes(const SnapshotImage& target, const HeapPart& part,
                         DirtyBitmap& differing) const;
  Result<DirtyBitmap> put_back(const SnapshotImage& target, std::span<const HeapPart> heap_parts,
                               RollbackStats& stats);
  Result<void> put_back_heap(const HeapState& target, std::span<const HeapPart> heap_parts);
  void note(const HeapPart& part);
};

// Everything that may allocate, fail or take time, before writers are stopped.
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
  if (!draft) {
    auto made = SnapshotDraft::create(region_pages());
    if (!made) return propagate(made);
    auto heap = HeapDraft::create(arena.heap().geometry().span_count);
    if (!heap) return propagate(heap);
    const std::size_t wanted = std::max(options.staging_bytes, page_size());
    auto buffer = VirtualArray<std::byte>::create(round_down(wanted, page_size()));
    if (!buffer) return propagate(buffer);
    staging = std::move(*buffer);
    heap_draft = std::move(*heap);
    draft = std::move(*made);
    arena.tracker().reserve(arena.region().watch(), collected);
    unchanged.reserve(region_pages());
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

// The tracker's epoch began when the arena was made, or with the snapshot it was last saved as.
// Where that is in another store, the pages that are clean since then are unknown to this one.
void Snapshotter::Impl::widen_to_base(const UsedRanges& used) {
  if (!is_base_elsewhere()) return;
  for (const ByteRange& range : used.span()) {
    collected.written.set_range(PageRange::covering(range, arena.region().tracked_range()));
  }
  collected.zeroed -= collected.written;
}

// Inside the stop: allocates nothing, and takes no lock that a writer outside the arena's calls
// could hold. Writes to the disk only when the staging memory is full.
Result<void> Snapshotter::Impl::capture(SegmentWriter& segment, HeapFacts& facts) {
  const Heap& heap = arena.heap();
  heap.settle();
  // All of it where there is nothing that the log is relative to in this store.
  heap_draft->capture(heap.metadata(), heap.changes(), base_id == 0);
  const UsedRanges used = heap.used_ranges();
  if (auto r = arena.tracker().collect_into(arena.region().watch(), used.span(), CollectMode::take,
                                            collected);
      !r) {
    return r;
  }
  widen_to_base(used);
  unchanged.assign_clear(collected.written.size());
  facts.heap_bytes = heap.heap_bytes();
  facts.image_pages = heap.image_bytes() / page_size();
  facts.holds_code_addresses = heap.holds_code_addresses();
  facts.free_bytes_are_zero = heap.free_bytes_are_zero();
  facts.free_bytes_masked = masks_free_bytes();

  FreeMask free_mask(heap.metadata());
  FreeMask* const mask = masks_free_bytes() ? &free_mask : nullptr;
  const std::size_t first = first_page();
  // Both sets in one ascending walk.
  PageRange written = collected.written.next_run(0);
  PageRange zeroed = collected.zeroed.next_run(0);
  while (!written.empty() || !zeroed.empty()) {
    const bool take_written = zeroed.empty() || (!written.empty() && written.first < zeroed.first);
    if (take_written) {
      if (auto r = capture_pages(written, mask, segment); !r) return r;
      written = collected.written.next_run(written.end());
    } else {
      for (std::size_t page = first + zeroed.first; page < first + zeroed.end(); ++page) {
        if (!base->pages.is_zero(page)) draft->add_zero(page);
      }
      zeroed = collected.zeroed.next_run(zeroed.end());
    }
  }
  return {};
}

// Pages of the tracker's watch.
Result<void> Snapshotter::Impl::capture_pages(PageRange run, FreeMask* mask,
                                              SegmentWriter& segment) {
  const std::size_t page_bytes = page_size();
  const PageMap& before = base->pages;
  for (std::size_t tracked = run.first; tracked < run.end(); ++tracked) {
    const std::size_t page = first_page() + tracked;
    const auto note_zero = [&] {
      if (before.is_zero(page)) {
        unchanged.set(tracked);
      } else {
        draft->add_zero(page);
      }
    };
    const std::byte* content = arena.range().data() + page * page_bytes;
    if (is_all_zero(content, page_bytes)) {
      note_zero();
      continue;
    }
    if (staged_bytes == staging.size()) {
      if (auto r = flush(segment); !r) return r;
    }
    // One pass: the hash reads the copy while it is still in the first-level cache.
    std::byte* copy = staging.span().data() + staged_bytes;
    std::memcpy(copy, content, page_bytes);
    if (mask != nullptr && mask->apply(page, copy) && is_all_zero(copy, page_bytes)) {
      note_zero();
      continue;
    }
    const Hash128 hash = hash128(copy, page_bytes, store.root.seed);
    if (!before.is_zero(page) && before.hash(page) == hash) {
      unchanged.set(tracked);
      continue;
    }
    draft->add_data(page, store.root.next_id, hash);
    staged_bytes += page_bytes;
  }
  return {};
}

Result<void> Snapshotter::Impl::flush(SegmentWriter& segment) {
  auto r = segment.append(staging.span().first(staged_bytes));
  most_staged_bytes = std::max(most_staged_bytes, staged_bytes);
  staged_bytes = 0;
  return r;
}

// Copies must not outlive what they were made of: that may be freed, and cleared, any time. Memory
// that a like snapshot will not need goes back to the system, by halves, so that a few small ones
// in between do not make the next stop wait for pages.
void Snapshotter::Impl::tidy_staging() {
  const std::span<std::byte> all = staging.span();
  // Behind the staged pages there is the copy of one that was dropped by its hash.
  const std::size_t used =
      std::min(std::max(most_staged_bytes, staged_bytes) + page_size(), all.size());
  most_staged_bytes = staged_bytes = 0;
  const std::size_t has_pages = std::max(used, staging_kept_bytes);
  const std::size_t wanted = std::max({2 * used, staging_kept_bytes / 2, kLeastStagingKept});
  const std::size_t kept = std::min(round_down(wanted, page_size()), has_pages);
  if (kept < has_pages) {
    (void)sys::advise(ByteRange::of(all.data() + kept, has_pages - kept), MADV_DONTNEED);
  }
  staging_kept_bytes = kept;
  if (arena.heap().clear_policy() == ClearPolicy::never) return;
  clear_memory(all.data(), std::min(used, kept), InCache::unlikely);
}

// Decides whether this snapshot carries a full index, so that opening it or a descendant reads a
// bounded number of manifests, whatever the history.
Result<void> Snapshotter::Impl::place_in_chain(format::Manifest& manifest) const {
  if (base_id == 0) return {};
  auto parent = store.read_header(base_id);
  if (!parent) return propagate(parent);
  format::ManifestHeader& h = manifest.header;
  h.chain_depth = parent->chain_depth + 1;
  h.chain_bytes = parent->chain_bytes + manifest.heap_delta.size() +
                  format::manifest_bytes(manifest.delta.size(), manifest.delta_hashes.size());
  // Of the heap record, an entry and a few words a span.
  constexpr std::size_t kFullBytesPerSpan = 96;
  const std::size_t full_bytes =
      (std::max(base->pages.end(), first_page()) - first_page()) * sizeof(Hash128) +
      base->heap.metadata().spans_used() * kFullBytesPerSpan;
  const bool deltas_outweigh = h.chain_depth >= kMinChainDepth && h.chain_bytes >= full_bytes;
  if (h.chain_depth < kMaxChainDepth && !deltas_outweigh) return {};
  auto image = store.resolve(base_id);
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

Result<std::uint64_t> Snapshotter::Impl::commit(const HeapFacts& facts, std::uint64_t stop_ns,
                                                SegmentWriter& segment) {
  if (auto r = flush(segment); !r) {
    segment.discard();
    return propagate(r);
  }
  format::Manifest manifest;
  manifest.delta.assign(draft->extents().begin(), draft->extents().end());
  manifest.delta_hashes.assign(draft->hashes().begin(), draft->hashes().end());
  manifest.heap_delta = heap_draft->encode_against(base->heap);
  format::ManifestHeader& h = manifest.header;
  h.parent = base_id;
  h.region_base = region_begin();
  h.reserve_bytes = arena.range().size;
  h.image_pages = facts.image_pages;
  h.flags = facts.flags();
  h.build_id = current_program().build_id;
  h.load_address = current_program().load_address;
  h.reported_pages = collected.written.count() + collected.zeroed.count();
  h.changed_pages = draft->data_pages() + draft->zero_pages();
  h.zero_pages = draft->zero_pages();
  h.stop_ns = stop_ns;
  h.heap_bytes = facts.heap_bytes;
  h.segment_pages = draft->data_pages();
  arena.name().copy(h.arena.data(), h.arena.size() - 1);

  if (auto r = place_in_chain(manifest); !r) {
    segment.discard();
    return propagate(r);
  }
  auto id = store.commit(manifest, segment);
  if (id) base->apply_delta(manifest);
  return id;
}

// Whatever becomes of a take.
struct Snapshotter::TidyStaging {
  Impl& snapshotter;
  ~TidyStaging() {
    snapshotter.tidy_staging();
    snapshotter.heap_draft->clear();
  }
};

Snapshotter::Snapshotter(Arena& arena, Store& store, SnapshotterOptions options)
    : impl_(std::make_unique<Impl>(arena, store, std::move(options))) {}
Snapshotter::~Snapshotter() = default;

SnapshotId Snapshotter::parent() const {
  const RankedLock lock(impl_->mutex);
  return {impl_->parent_id()};
}

Result<SnapshotId> Snapshotter::take() {
  const RankedLock lock(impl_->mutex);
  Impl& s = *impl_;
  if (auto r = s.prepare(); !r) return propagate(r);
  // Before a segment is created under a name that another store may use by now.
  if (auto r = s.store.check_still_ours(); !r) return propagate(r);
  s.draft->clear();
  s.heap_draft->clear();
  s.staged_bytes = 0;
  const TidyStaging tidy{s};
  CollectedPages pages(s.arena, s.collected);
  LoggedChanges changes(s.arena, *s.heap_draft);
  SegmentWriter segment = s.store.new_segment();
  HeapFacts facts;
  Result<void> captured;
  std::uint64_t stop_ns = 0;
  {
    Stop stop(s.options.quiesce);
    if (auto& held = stop.held(); !held) {
      pages.set_used();  // nothing was collected
      return propagate(held);
    }
    captured = s.capture(segment, facts);
    stop_ns = stop.end();
  }
  if (!captured) {
    segment.discard();
    return propagate(captured);
  }
  auto id = s.commit(facts, stop_ns, segment);
  if (!id) {
    return tl::unexpected<Error>(std::move(id).error().with_context(
        fmt::format("cannot commit a snapshot to {}", s.store.path)));
  }
  pages.set_used();
  changes.set_used();
  s.base_id = *id;
  s.arena.set_origin({s.store.root.uuid, *id});
  s.arena.tracker().report_unchanged(s.arena.region().watch(), s.unchanged);
  return SnapshotId{*id};
}

// The header of a snapshot that the arena can go back to.
Result<format::ManifestHeader> Snapshotter::Impl::read_target(std::uint64_t id) {
  if (auto r = store.check_committed(id); !r) return propagate(r);
  auto header = store.read_header(id);
  if (!header) return header;
  if (header->region_base == region_begin() && header->reserve_bytes == arena.range().size)
    return header;
  return failure(
      ErrorCode::identity_mismatch,
      fmt::format("snapshot {} is of an arena at {:#x} with {} bytes; this arena is at {:#x} "
                  "with {}. Open it with Store::open_arena() instead.",
                  id, header->region_base, header->reserve_bytes, region_begin(),
                  arena.range().size));
}

// What the memory may differ in from the target, in pages of the watch: what was written since the
// base, and where the base itself differs.
DirtyBitmap Snapshotter::Impl::differing_pages(const SnapshotImage& target,
                                               std::span<const HeapPart> heap_parts) const {
  const std::size_t first = first_page();
  const std::size_t mapped_end = std::max({base->pages.end(), target.pages.end(), first}) - first;
  DirtyBitmap differing = collected.written;
  differing |= collected.zeroed;
  differing.resize(std::max(collected.written.size(), mapped_end));
  if (&target == &*base) return differing;
  for (std::size_t page = 0; page < mapped_end; ++page) {
    if (!base->pages.same_content(target.pages, first + page)) differing.set(page);
  }
  if (!masks_free_bytes()) return differing;
  for (const HeapPart& part : heap_parts) add_revived_bytes(target, part, differing);
  return differing;
}

// What was free in a snapshot was stored as zero, whatever the memory held there. So where
// something is free in the base and not in the target, equal hashes do not tell that memory is
// right.
void Snapshotter::Impl::add_revived_bytes(const SnapshotImage& target, const HeapPart& part,
                                          DirtyBitmap& differing) const {
  const layout::Geometry& g = target.heap.geometry();
  if (part.offset < g.spans_offset) return;
  const bool is_entry = part.offset < g.bitmaps_offset;
  const std::size_t group = is_entry ? 0 : (part.offset - g.bitmaps_offset) / g.group_bytes;
  const std::size_t span =
      is_entry ? (part.offset - g.spans_offset) / sizeof(layout::SpanEntry)
               : (part.offset - g.bitmaps_offset) % g.group_bytes / layout::kBytesPerGroupLine;
  const HeapMetadata then = target.heap.metadata();
  if (!is_entry) {
    const std::uint64_t* words = then.line(span, group);
    const std::uint64_t* base_words = base->heap.metadata().line(span, group);
    bool revived = false;
    for (std::size_t i = 0; i < layout::kWordsPerGroup; ++i) {
      revived = revived || (words[i] & ~base_words[i]) != 0;
    }
    if (!revived) return;
  }
  const layout::SpanEntry& entry = then.entry(span);
  if (entry.kind == layout::SpanKind::free) return;
  const std::size_t spans = entry.kind == layout::SpanKind::large ? entry.run_spans : 1;
  const std::size_t pages_per_span = layout::kSpanBytes / page_size();
  differing.set_range(
      PageRange{span * pages_per_span, spans * pages_per_span}.intersect({0, differing.size()}));
}

// Reads everything that is needed before it touches the arena's memory. Returns the pages that are
// not what the store has for them.
Result<DirtyBitmap> Snapshotter::Impl::put_back(const SnapshotImage& target,
                                                std::span<const HeapPart> heap_parts,
                                                RollbackStats& stats) {
  const std::size_t page_bytes = page_size();
  const std::size_t first = first_page();
  const DirtyBitmap differing = differing_pages(target, heap_parts);
  std::vector<format::Extent> sources;
  std::size_t data_pages = 0;
  differing.for_each_run([&](PageRange run) {
    for (std::size_t page = first + run.first; page < first + run.end(); ++page) {
      if (target.pages.is_zero(page)) continue;
      const PageLocation at = target.pages.location(page);
      if (!sources.empty() && sources.back().segment == at.segment &&
          sources.back().first_page + sources.back().page_count == page &&
          sources.back().segment_page + sources.back().page_count == at.page) {
        ++sources.back().page_count;
      } else {
        sources.push_back({page, 1, format::ExtentKind::data, at.segment, at.page});
      }
      ++data_pages;
    }
  });
  auto content = VirtualArray<std::byte>::create(data_pages * page_bytes);
  if (!content) return propagate(content);
  SegmentReader reader = store.segments();
  FreeMask mask(target.heap.metadata());
  DirtyBitmap masked(differing.size());
  std::size_t at = 0;
  for (const format::Extent& extent : sources) {
    std::byte* const pages = content->span().data() + at;
    auto r = reader.read(extent, pages, [&](std::size_t i) -> const Hash128& {
      return target.pages.hash(extent.first_page + i);
    });
    if (!r) return propagate(r);
    for (std::size_t i = 0; i < extent.page_count && target.free_bytes_masked; ++i) {
      const std::size_t page = extent.first_page + i;
      if (mask.apply(page, pages + i * page_bytes)) masked.set(page - first);
    }
    at += extent.page_count * page_bytes;
  }
  if (auto r = Heap::commit_image(arena.region(), target.pages.end() * page_bytes); !r) {
    return propagate(r);
  }

  DirtyBitmap zeros = differing;
  for (const format::Extent& extent : sources)
    zeros.reset_range({extent.first_page - first, extent.page_count});
  stats.restored_pages = differing.count();
  stats.zero_pages = zeros.count();
  zeros -= collected.zeroed;  // these are zero already

  // From here on nothing fails, and nothing is allocated.
  at = 0;
  for (const format::Extent& extent : sources) {
    std::memcpy(arena.range().data() + extent.first_page * page_bytes, content->span().data() + at,
                extent.page_count * page_bytes);
    at += extent.page_count * page_bytes;
  }
  zeros.for_each_run([&](PageRange run) {
    zero_run(arena.region(), run.bytes_from(arena.region().tracked_range().begin));
  });
  if (auto r = put_back_heap(target.heap, heap_parts); !r) return propagate(r);
  return masked;
}

// The metadata: what has changed since the base, and where the base itself differs. Cost: as much,
// and 8 bytes a span.
Result<void> Snapshotter::Impl::put_back_heap(const HeapState& target,
                                              std::span<const HeapPart> heap_parts) {
  std::byte* const region = arena.range().data();
  HeapChangeLog& log = arena.heap().changes();
  if (is_base_elsewhere()) {
    // What the log is relative to is not known here.
    target.overwrite(region, arena.heap().metadata().spans_used());
    log.clear();
    return arena.heap().rebuild();
  }
  for (const HeapPart& part : heap_parts) note(part);
  target.write_superblock_to(region);
  log.for_each_root([&](std::size_t root) {
    target.write_part_to(region, target.offset_of_root(root), sizeof(layout::RootEntry));
  });
  log.for_each([&](std::size_t span, std::uint8_t lines, bool entry) {
    if (entry) {
      target.write_part_to(region, target.offset_of_entry(span), sizeof(layout::SpanEntry));
    }
    for (std::size_t group = 0; group < layout::kBitmapGroups; ++group) {
      if ((unsigned{lines} >> group & 1U) == 0) continue;
      target.write_part_to(region, target.offset_of_line(span, group), layout::kBytesPerGroupLine);
    }
  });
  auto refreshed = arena.heap().refresh();
  log.clear();
  return refreshed;
}

// A part of the metadata that is about to be put back, as if it had changed.
void Snapshotter::Impl::note(const HeapPart& part) {
  const layout::Geometry& g = arena.heap().geometry();
  HeapChangeLog& log = arena.heap().changes();
  if (part.offset < g.roots_offset) return;  // the superblock
  if (part.offset < g.spans_offset) {
    return log.note_root((part.offset - g.roots_offset) / sizeof(layout::RootEntry));
  }
  if (part.offset < g.bitmaps_offset) {
    return log.note_entry((part.offset - g.spans_offset) / sizeof(layout::SpanEntry));
  }
  const std::size_t in_bitmaps = part.offset - g.bitmaps_offset;
  log.note_line(in_bitmaps % g.group_bytes / layout::kBytesPerGroupLine,
                in_bitmaps / g.group_bytes);
}

Result<RollbackStats> Snapshotter::rollback(SnapshotId id) {
  const RankedLock lock(impl_->mutex);
  Impl& s = *impl_;
  if (auto r = s.prepare(); !r) return propagate(r);
  auto header = s.read_target(id.value);
  if (!header) return propagate(header);
  // Going back to where the last epoch began, the common case, needs no reading of manifests.
  std::optional<SnapshotImage> other;
  std::vector<HeapPart> heap_parts;
  if (id.value != s.base_id) {
    auto resolved = s.store.resolve(id.value);
    if (!resolved) return propagate(resolved);
    other = std::move(*resolved);
    other->heap.for_each_difference(s.base->heap, [&](std::size_t offset, std::size_t size) {
      heap_parts.push_back({offset, size});
    });
  }
  const SnapshotImage& target = other ? *other : *s.base;
  Tracker& tracker = s.arena.tracker();
  const WatchId watch = s.arena.region().watch();

  RollbackStats stats;
  CollectedPages pages(s.arena, s.collected);
  Stop stop(s.options.quiesce);
  if (auto& held = stop.held(); !held) {
    pages.set_used();  // nothing was collected
    return propagate(held);
  }
  s.arena.heap().settle();
  const UsedRanges before = s.arena.heap().used_ranges();
  if (auto r = tracker.collect_into(watch, before.span(), CollectMode::take, s.collected); !r) {
    return propagate(r);
  }
  s.widen_to_base(before);
  auto masked = s.put_back(target, heap_parts, stats);
  if (!masked) return propagate(masked);
  pages.set_used();
  if (other) s.base = std::move(*other);
  s.base_id = id.value;
  s.arena.set_origin({s.store.root.uuid, id.value});
  s.arena.heap().inherit_free_bytes_are_zero((header->flags & format::kFreeBytesAreZero) != 0);
  // The memory is the snapshot's: what was written to get there is not a change. Pages past the
  // target's end were cleared, so both the old and the new ranges begin a new epoch.
  for (const UsedRanges& ranges : {before, s.arena.heap().used_ranges()}) {
    if (auto r = tracker.collect_into(watch, ranges.span(), CollectMode::take, s.collected); !r) {
      return propagate(r);
    }
  }
  masked->for_each_run([&](PageRange run) {
    tracker.mark_dirty(run.bytes_from(s.arena.region().tracked_range().begin));
  });
  stats.stop_ns = stop.end();
  return stats;
}

}  // namespace pagetide
