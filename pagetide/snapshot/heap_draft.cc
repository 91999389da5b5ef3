#include "pagetide/snapshot/heap_draft.h"

#include <bit>
#include <cstring>

#include "pagetide/base/hash.h"

namespace pagetide {

using format::BitmapLine;
using layout::kBitmapGroups;

namespace {

template <typename T>
Result<void> make(VirtualArray<T>& array, std::size_t count) {
  auto made = VirtualArray<T>::create(count);
  if (!made) return propagate(made);
  array = std::move(*made);
  return {};
}

BitmapLine line_of(const HeapMetadata& heap, std::size_t span, std::size_t group) {
  BitmapLine line;
  std::memcpy(line.data(), heap.line(span, group), sizeof(line));
  return line;
}

}  // namespace

Result<HeapDraft> HeapDraft::create(std::size_t span_count) {
  HeapDraft draft;
  Result<void> made = make(draft.logged_, span_count);
  if (made) made = make(draft.logged_roots_, layout::kRootCapacity);
  if (made) made = make(draft.copied_, span_count);
  if (made) made = make(draft.entries_, span_count);
  if (made) made = make(draft.lines_, span_count * kBitmapGroups);
  if (made) made = make(draft.roots_, layout::kRootCapacity);
  if (!made) return propagate(made);
  return draft;
}

void HeapDraft::copy_span(const HeapMetadata& heap, const Change& change) {
  copied_[copied_count_++] = change;
  if (change.entry) entries_[entry_count_++] = heap.entry(change.span);
  for (unsigned rest = change.lines; rest != 0; rest &= rest - 1) {
    const auto group = static_cast<std::size_t>(std::countr_zero(rest));
    lines_[line_count_++] = line_of(heap, change.span, group);
  }
}

void HeapDraft::clear() {
  // As much as hardly any take that is not the first one needs stays in memory.
  constexpr std::size_t kLinesKept = std::size_t{16} << 10U;
  if (line_count_ > kLinesKept) lines_.reset();
  logged_count_ = logged_root_count_ = 0;
  copied_count_ = entry_count_ = line_count_ = root_count_ = 0;
}

void HeapDraft::capture(const HeapMetadata& heap, HeapChangeLog& log, bool everything) {
  clear();
  superblock_ = heap.superblock();
  log.for_each([&](std::size_t span, std::uint8_t lines, bool entry) {
    logged_[logged_count_++] = {static_cast<std::uint32_t>(span), lines, entry};
    if (!everything) copy_span(heap, logged_[logged_count_ - 1]);
  });
  log.for_each_root([&](std::size_t root) {
    logged_roots_[logged_root_count_++] = root;
    if (!everything) roots_[root_count_++] = {root, heap.root(root)};
  });
  log.clear();
  if (!everything) return;
  for (std::size_t root = 0; root < layout::kRootCapacity; ++root) {
    const layout::RootEntry& entry = heap.root(root);
    if (!is_all_zero(&entry, sizeof(entry))) roots_[root_count_++] = {root, entry};
  }
  for (std::size_t span = 0; span < heap.spans_used(); ++span) {
    const layout::SpanEntry& entry = heap.entry(span);
    if (std::bit_cast<std::uint64_t>(entry) == 0) continue;
    const unsigned lines = (1U << layout::bitmap_groups(entry)) - 1;
    copy_span(heap, {static_cast<std::uint32_t>(span), static_cast<std::uint8_t>(lines), true});
  }
}

void HeapDraft::put_back(HeapChangeLog& log) const {
  for (const Change& change : logged_.span().first(logged_count_)) {
    if (change.entry) log.note_entry(change.span);
    for (std::size_t group = 0; group < kBitmapGroups; ++group) {
      if ((unsigned{change.lines} >> group & 1U) != 0) log.note_line(change.span, group);
    }
  }
  for (const std::size_t root : logged_roots_.span().first(logged_root_count_)) log.note_root(root);
}

std::vector<std::byte> HeapDraft::encode_against(const HeapState& parent) const {
  const HeapMetadata before = parent.metadata();
  format::HeapRecordWriter writer(format::HeapRecordKind::delta, superblock_);
  for (const RootChange& change : roots_.span().first(root_count_)) {
    if (std::memcmp(&before.root(change.root), &change.entry, sizeof(change.entry)) != 0) {
      writer.add_root(change.root, change.entry);
    }
  }
  std::size_t entry = 0;
  std::size_t line = 0;
  for (const Change& change : copied_.span().first(copied_count_)) {
    if (change.entry) {
      const layout::SpanEntry& now = entries_[entry++];
      if (std::memcmp(&before.entry(change.span), &now, sizeof(now)) != 0) {
        writer.add_entry(change.span, now);
      }
    }
    for (unsigned rest = change.lines; rest != 0; rest &= rest - 1) {
      const auto group = static_cast<std::size_t>(std::countr_zero(rest));
      writer.add_line(change.span * kBitmapGroups + group, lines_[line++],
                      line_of(before, change.span, group));
    }
  }
  return writer.finish();
}

}  // namespace pagetide
