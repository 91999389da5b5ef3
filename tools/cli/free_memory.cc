#include "tools/cli/free_memory.h"

#include <algorithm>
#include <utility>

#include "pagetide/base/hash.h"

namespace pagetide::cli {

using layout::kSlotBytes;
using layout::kSpanBytes;

std::size_t Finding::content_bytes() const {
  return std::min<std::size_t>(last_offset - first_offset + 1, kContentBytes);
}

FreeMemoryScan::FreeMemoryScan(const SparseImage& metadata, HeapView heap, std::size_t max_findings)
    : metadata_(metadata), max_findings_(max_findings) {
  result_.free_spans = heap.spans_touched;
  for (const SpanRun& run : heap.spans) result_.free_spans -= run.count;
  result_.free_bytes = result_.free_spans * kSpanBytes;
  for (const SizeClassView& c : heap.classes) {
    result_.free_slots += c.slots - c.live_blocks;
    result_.free_bytes += c.spans * kSpanBytes - c.live_bytes();
  }
  result_.heap = std::move(heap);
}

void FreeMemoryScan::add(PageRange pages, std::span<const std::byte> content) {
  std::uint64_t at = pages.first * page_size() - result_.heap.geometry.data_offset;
  while (!content.empty()) {
    const std::size_t offset = at % kSpanBytes;
    const std::size_t size = std::min(content.size(), kSpanBytes - offset);
    scan_span(at / kSpanBytes, offset, content.first(size));
    at += size;
    content = content.subspan(size);
  }
}

FreeMemory FreeMemoryScan::finish() {
  close_finding();
  return std::move(result_);
}

// What the span belongs to, asked for in ascending order; nullptr: it is free.
const SpanRun* FreeMemoryScan::run_of(std::uint64_t span) {
  const std::vector<SpanRun>& runs = result_.heap.spans;
  while (next_run_ < runs.size() && runs[next_run_].end() <= span) ++next_run_;
  const bool is_free = next_run_ == runs.size() || span < runs[next_run_].first;
  return is_free ? nullptr : &runs[next_run_];
}

void FreeMemoryScan::scan_span(std::uint64_t span, std::size_t offset,
                               std::span<const std::byte> bytes) {
  const SpanRun* run = run_of(span);
  if (run == nullptr) {
    scan_place({FreeKind::span, span, 0, 0, kSpanBytes}, offset, bytes);
  } else if (run->use == SpanUse::small) {
    scan_slots(span, run->size_class, offset, bytes);
  }
}

void FreeMemoryScan::scan_slots(std::uint64_t span, std::size_t size_class, std::size_t offset,
                                std::span<const std::byte> bytes) {
  if (bitmap_of_ != span) {
    bitmap_ = read_slot_bitmap(metadata_, result_.heap.geometry, span, size_class);
    bitmap_of_ = span;
  }
  const std::uint32_t slot_bytes = kSlotBytes[size_class];
  while (!bytes.empty()) {
    const auto slot = static_cast<std::uint32_t>(offset / slot_bytes);
    FreePlace place{FreeKind::slot, span, slot, slot * slot_bytes, slot_bytes};
    const bool is_tail = slot == layout::slots_per_span(size_class);
    if (is_tail) {
      place.kind = FreeKind::span_tail;
      place.size_bytes = kSpanBytes - place.offset;
    }
    const std::size_t inside = offset - place.offset;
    const std::size_t size = std::min(bytes.size(), place.size_bytes - inside);
    if (is_tail || !bitmap_.is_allocated(slot)) scan_place(place, inside, bytes.first(size));
    offset += size;
    bytes = bytes.subspan(size);
  }
}

void FreeMemoryScan::scan_place(const FreePlace& place, std::size_t offset,
                                std::span<const std::byte> bytes) {
  if (is_all_zero(bytes.data(), bytes.size())) return;
  if (open_ && open_->place != place) close_finding();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == std::byte{0}) continue;
    const auto at = static_cast<std::uint32_t>(offset + i);
    if (!open_) {
      const HeapView& heap = result_.heap;
      const std::uint64_t span_begin =
          heap.base + heap.geometry.data_offset + place.span * kSpanBytes;
      open_ = Finding{.place = place, .address = span_begin + place.offset, .first_offset = at};
    }
    open_->last_offset = at;
    ++open_->nonzero_bytes;
    const std::size_t shown = at - open_->first_offset;
    if (shown < Finding::kContentBytes) open_->content[shown] = bytes[i];
  }
}

void FreeMemoryScan::close_finding() {
  if (!open_) return;
  ++result_.finding_count;
  if (result_.findings.size() < max_findings_) result_.findings.push_back(*open_);
  open_.reset();
}

Result<FreeMemory> read_free_memory(Store& store, const SnapshotInfo& info,
                                    std::size_t max_findings, const Progress& progress) {
  Result<std::size_t> before_data = metadata_pages(info);
  if (!before_data) return propagate(before_data);
  SparseImage metadata;
  std::optional<FreeMemoryScan> scan;
  const auto begin_scan = [&]() -> Result<void> {
    auto heap = decode_heap(metadata, info);
    if (!heap) return propagate(heap);
    scan.emplace(metadata, std::move(*heap), max_findings);
    return {};
  };
  // Runs ascend and are of metadata or of data, so the former is complete when the latter comes.
  const auto visit = [&](PageRange pages, std::span<const std::byte> content) -> Result<void> {
    if (pages.first < *before_data) {
      metadata.add(pages, content);
      return {};
    }
    if (!scan) {
      if (auto r = begin_scan(); !r) return r;
    }
    scan->add(pages, content);
    return {};
  };
  if (auto r = store.read_image(info.id, visit, progress); !r) return propagate(r);
  if (!scan) {
    if (auto r = begin_scan(); !r) return propagate(r);
  }
  return scan->finish();
}

}  // namespace pagetide::cli
