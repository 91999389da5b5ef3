#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "pagetide/allocator/free_mask.h"
#include "pagetide/allocator/heap_change_log.h"
#include "pagetide/allocator/run_zeroing.h"
#include "pagetide/snapshot/snapshotter_impl.h"
#include "pagetide/snapshot/stop.h"

namespace pagetide {

namespace {

// A part of the heap's metadata, by offset from the region's start: a root, an entry of the span
// table or a line of slot bitmaps.
struct HeapPart {
  std::size_t offset;
  std::size_t size;
};

}  // namespace

// One way back.
class Snapshotter::Impl::Rollback {
 public:
  explicit Rollback(Impl& snapshotter) : s_(snapshotter) {}

  // What can be read before writers are stopped. Once the snapshotter is prepared.
  Result<void> find_target(std::uint64_t id);
  Result<RollbackStats> run();

 private:
  const SnapshotImage& target() const { return other_ ? *other_ : *s_.base; }
  Result<void> check_target(std::uint64_t id);
  void find_differing_pages();
  void add_revived_bytes(const HeapPart& part);
  void find_pages_behind();
  void find_sources();
  Result<void> read_pages();
  void write_pages();
  Result<void> put_back_heap();
  void note(const HeapPart& part);
  Result<void> begin_epoch(const UsedRanges& before);

  Impl& s_;
  format::ManifestHeader header_{};
  // Empty when the target is the base.
  std::optional<SnapshotImage> other_;
  std::vector<HeapPart> heap_parts_;  // in which it differs from the base
  // Pages of the watch that the memory may differ in from the target.
  DirtyBitmap differing_;
  // Others that have to be given back.
  DirtyBitmap behind_;
  // Where those that differ are stored, as far as they are not zero, and their content one after
  // the other.
  std::vector<format::Extent> sources_;
  VirtualArray<std::byte> content_;
  DirtyBitmap masked_;  // of them, those that are not what the store has for them
  RollbackStats stats_;
};

Result<void> Snapshotter::Impl::Rollback::find_target(std::uint64_t id) {
  if (auto r = check_target(id); !r) return r;
  // Going back to where the last epoch began, the common case, needs no reading of manifests.
  if (id == s_.base_id) return {};
  auto resolved = s_.store.resolve(id);
  if (!resolved) return propagate(resolved);
  other_ = std::move(*resolved);
  other_->heap.for_each_difference(s_.base->heap, [&](std::size_t offset, std::size_t size) {
    heap_parts_.push_back({offset, size});
  });
  return {};
}

// Whether the arena can go back to it.
Result<void> Snapshotter::Impl::Rollback::check_target(std::uint64_t id) {
  if (auto r = s_.store.check_committed(id); !r) return r;
  auto header = s_.store.read_header(id);
  if (!header) return propagate(header);
  header_ = *header;
  const std::size_t reserve_bytes = s_.arena.range().size;
  if (header_.region_base == s_.region_begin() && header_.reserve_bytes == reserve_bytes) return {};
  return failure(
      ErrorCode::identity_mismatch,
      fmt::format("snapshot {} is of an arena at {:#x} with {} bytes; this arena is at {:#x} "
                  "with {}. Open it with Store::open_arena() instead.",
                  id, header_.region_base, header_.reserve_bytes, s_.region_begin(),
                  reserve_bytes));
}

// Reads everything that is needed before it touches the arena's memory.
Result<RollbackStats> Snapshotter::Impl::Rollback::run() {
  s_.begin_collecting();
  CollectedPages pages(s_.arena, s_.collected);
  Stop stop(s_.options.quiesce);
  if (auto& held = stop.held(); !held) return propagate(held);
  Heap& heap = s_.arena.heap();
  heap.settle();
  const UsedRanges before = heap.used_ranges();
  if (auto r = s_.collect(before, CollectMode::take); !r) return propagate(r);
  find_differing_pages();
  find_sources();
  if (auto r = read_pages(); !r) return propagate(r);
  if (auto r = Heap::commit_image(s_.arena.region(), target().pages.end() * page_size()); !r) {
    return propagate(r);
  }
  write_pages();
  if (auto r = put_back_heap(); !r) return propagate(r);
  pages.set_used();
  if (other_) s_.base = std::move(*other_);
  s_.base_id = header_.id;
  s_.arena.set_origin({s_.store.root.uuid, header_.id});
  heap.inherit_free_bytes_are_zero((header_.flags & format::kFreeBytesAreZero) != 0);
  if (auto r = begin_epoch(before); !r) return propagate(r);
  stats_.stop_ns = stop.end();
  return stats_;
}

// What was written since the base, and where the base itself differs.
void Snapshotter::Impl::Rollback::find_differing_pages() {
  const PageMap& ours = s_.base->pages;
  const PageMap& theirs = target().pages;
  const std::size_t first = s_.first_page();
  const std::size_t mapped_end = std::max({ours.end(), theirs.end(), first}) - first;
  differing_ = s_.collected.written;
  differing_ |= s_.collected.zeroed;
  differing_.resize(std::max(s_.collected.written.size(), mapped_end));
  if (!other_) return;
  for (std::size_t page = 0; page < mapped_end; ++page) {
    if (!ours.same_content(theirs, first + page)) differing_.set(page);
  }
  if (!s_.masks_free_bytes()) return;
  for (const HeapPart& part : heap_parts_) add_revived_bytes(part);
  find_pages_behind();
}

// What was free in a snapshot was stored as zero, whatever the memory held there. So where
// something is free in the base and not in the target, equal hashes do not tell that memory is
// right.
void Snapshotter::Impl::Rollback::add_revived_bytes(const HeapPart& part) {
  const layout::Geometry& g = target().heap.geometry();
  if (part.offset < g.spans_offset) return;
  const bool is_entry = part.offset < g.bitmaps_offset;
  const std::size_t group = is_entry ? 0 : (part.offset - g.bitmaps_offset) / g.group_bytes;
  const std::size_t span =
      is_entry ? (part.offset - g.spans_offset) / sizeof(layout::SpanEntry)
               : (part.offset - g.bitmaps_offset) % g.group_bytes / layout::kBytesPerGroupLine;
  const HeapMetadata then = target().heap.metadata();
  if (!is_entry) {
    const std::uint64_t* words = then.line(span, group);
    const std::uint64_t* base_words = s_.base->heap.metadata().line(span, group);
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
  differing_.set_range(
      PageRange{span * pages_per_span, spans * pages_per_span}.intersect({0, differing_.size()}));
}

// Behind its last span a heap is zero, and nobody looks there. What was free there in the base need
// not be.
void Snapshotter::Impl::Rollback::find_pages_behind() {
  const std::size_t pages_per_span = layout::kSpanBytes / page_size();
  const std::size_t end = target().heap.metadata().spans_used() * pages_per_span;
  const std::size_t base_end = s_.base->heap.metadata().spans_used() * pages_per_span;
  if (end >= base_end) return;
  behind_ = DirtyBitmap(base_end);
  behind_.set_range({end, base_end - end});
  behind_ -= differing_;
}

void Snapshotter::Impl::Rollback::find_sources() {
  const PageMap& pages = target().pages;
  const std::size_t first = s_.first_page();
  differing_.for_each_run([&](PageRange run) {
    for (std::size_t page = first + run.first; page < first + run.end(); ++page) {
      if (pages.is_zero(page)) continue;
      const PageLocation at = pages.location(page);
      if (!sources_.empty() && sources_.back().segment == at.segment &&
          sources_.back().first_page + sources_.back().page_count == page &&
          sources_.back().segment_page + sources_.back().page_count == at.page) {
        ++sources_.back().page_count;
      } else {
        sources_.push_back({page, 1, format::ExtentKind::data, at.segment, at.page});
      }
    }
  });
}

Result<void> Snapshotter::Impl::Rollback::read_pages() {
  const std::size_t page_bytes = page_size();
  std::size_t data_pages = 0;
  for (const format::Extent& extent : sources_) data_pages += extent.page_count;
  auto content = VirtualArray<std::byte>::create(data_pages * page_bytes);
  if (!content) return propagate(content);
  content_ = std::move(*content);
  SegmentReader reader = s_.store.segments();
  FreeMask mask(target().heap.metadata());
  masked_ = DirtyBitmap(differing_.size());
  std::byte* pages = content_.span().data();
  for (const format::Extent& extent : sources_) {
    auto r = reader.read(extent, pages, [&](std::size_t i) -> const Hash128& {
      return target().pages.hash(extent.first_page + i);
    });
    if (!r) return r;
    for (std::size_t i = 0; i < extent.page_count && target().free_bytes_masked; ++i) {
      const std::size_t page = extent.first_page + i;
      if (mask.apply(page, pages + i * page_bytes)) masked_.set(page - s_.first_page());
    }
    pages += extent.page_count * page_bytes;
  }
  return {};
}

void Snapshotter::Impl::Rollback::write_pages() {
  const std::size_t page_bytes = page_size();
  DirtyBitmap zeros = differing_;
  for (const format::Extent& extent : sources_)
    zeros.reset_range({extent.first_page - s_.first_page(), extent.page_count});
  stats_.restored_pages = differing_.count();
  stats_.zero_pages = zeros.count();
  zeros -= s_.collected.zeroed;  // these are zero already

  // From here on nothing fails, and nothing is allocated.
  const std::byte* pages = content_.span().data();
  for (const format::Extent& extent : sources_) {
    std::memcpy(s_.arena.range().data() + extent.first_page * page_bytes, pages,
                extent.page_count * page_bytes);
    pages += extent.page_count * page_bytes;
  }
  zeros.for_each_run([&](PageRange run) {
    zero_run(s_.arena.region(), run.bytes_from(s_.arena.region().tracked_range().begin));
  });
  behind_.for_each_run([&](PageRange run) {
    zero_run_and_give_back(s_.arena.region(),
                           run.bytes_from(s_.arena.region().tracked_range().begin));
  });
}

// The metadata: what has changed since the base, and where the base itself differs. Cost: as much,
// and 8 bytes a span.
Result<void> Snapshotter::Impl::Rollback::put_back_heap() {
  const HeapState& heap = target().heap;
  std::byte* const region = s_.arena.range().data();
  HeapChangeLog& log = s_.arena.heap().changes();
  if (s_.is_base_elsewhere()) {
    // What the log is relative to is not known here.
    heap.overwrite(region, s_.arena.heap().metadata().spans_used());
    log.clear();
    return s_.arena.heap().rebuild();
  }
  for (const HeapPart& part : heap_parts_) note(part);
  heap.write_superblock_to(region);
  log.for_each_root([&](std::size_t root) {
    heap.write_part_to(region, heap.offset_of_root(root), sizeof(layout::RootEntry));
  });
  log.for_each([&](std::size_t span, std::uint8_t lines, bool entry) {
    if (entry) {
      heap.write_part_to(region, heap.offset_of_entry(span), sizeof(layout::SpanEntry));
    }
    for (std::size_t group = 0; group < layout::kBitmapGroups; ++group) {
      if ((unsigned{lines} >> group & 1U) == 0) continue;
      heap.write_part_to(region, heap.offset_of_line(span, group), layout::kBytesPerGroupLine);
    }
  });
  auto refreshed = s_.arena.heap().refresh();
  log.clear();
  return refreshed;
}

// A part of the metadata that is about to be put back, as if it had changed.
void Snapshotter::Impl::Rollback::note(const HeapPart& part) {
  const layout::Geometry& g = s_.arena.heap().geometry();
  HeapChangeLog& log = s_.arena.heap().changes();
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

// The memory is the snapshot's: what was written to get there is not a change. Pages past the
// target's end were cleared, so both the old and the new ranges begin a new epoch.
Result<void> Snapshotter::Impl::Rollback::begin_epoch(const UsedRanges& before) {
  Tracker& tracker = s_.arena.tracker();
  for (const UsedRanges& ranges : {before, s_.arena.heap().used_ranges()}) {
    if (auto r = tracker.collect_into(s_.arena.region().watch(), ranges.span(), CollectMode::take,
                                      s_.latest);
        !r) {
      return r;
    }
  }
  masked_.for_each_run([&](PageRange run) {
    tracker.mark_dirty(run.bytes_from(s_.arena.region().tracked_range().begin));
  });
  return {};
}

Result<RollbackStats> Snapshotter::rollback(SnapshotId id) {
  const RankedLock lock(impl_->mutex);
  if (auto r = impl_->prepare(); !r) return propagate(r);
  Impl::Rollback rollback(*impl_);
  if (auto r = rollback.find_target(id.value); !r) return propagate(r);
  return rollback.run();
}

}  // namespace pagetide
