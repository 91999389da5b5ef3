#include "tools/cli/heap_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <utility>

#include "tools/cli/text.h"

namespace pagetide::cli {

using layout::SpanEntry;
using layout::SpanKind;

std::uint64_t HeapView::live_blocks() const {
  std::uint64_t blocks = large_blocks;
  for (const SizeClassView& c : classes) blocks += c.live_blocks;
  return blocks;
}

std::uint64_t HeapView::live_bytes() const {
  std::uint64_t bytes = large_bytes;
  for (const SizeClassView& c : classes) bytes += c.live_bytes();
  return bytes;
}

namespace {

template <typename T>
T read_struct(const SparseImage& image, std::uint64_t offset) {
  std::array<std::byte, sizeof(T)> bytes;
  image.read(offset, bytes);
  return std::bit_cast<T>(bytes);
}

template <std::size_t size>
std::string_view until_zero(const std::array<char, size>& text) {
  return {text.data(),
          static_cast<std::size_t>(std::find(text.begin(), text.end(), '\0') - text.begin())};
}

// One decoding. The superblock was checked, so its offsets are those of a real heap and
// spans_used is at most span_count.
class Decoder {
 public:
  Decoder(const SparseImage& image, const layout::Superblock& superblock)
      : image_(image), superblock_(superblock) {
    view_.name = until_zero(superblock.name);
    view_.layout_version = superblock.version;
    view_.base = superblock.base;
    view_.reserve_bytes = superblock.reserve_bytes;
    view_.geometry = {superblock.runtime_offset, superblock.roots_offset, superblock.spans_offset,
                      superblock.bitmaps_offset, superblock.group_bytes,  superblock.data_offset,
                      superblock.span_count};
    view_.spans_touched = superblock.spans_used;
    view_.holds_code_addresses = (superblock.flags & layout::kHoldsCodeAddresses) != 0;
  }

  HeapView run() {
    read_roots();
    read_spans();
    end_unknown_runs();
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      if (classes_[c].spans == 0) continue;
      classes_[c].slot_bytes = layout::kSlotBytes[c];
      view_.classes.push_back(classes_[c]);
    }
    return std::move(view_);
  }

 private:
  void problem(std::string text) {
    ++view_.problem_count;
    if (view_.problems.size() < kMaxHeapProblems) view_.problems.push_back(std::move(text));
  }

  void read_roots() {
    const ByteRange data{superblock_.base + superblock_.data_offset,
                         superblock_.spans_used * layout::kSpanBytes};
    for (std::size_t i = 0; i < layout::kRootCapacity; ++i) {
      const auto entry = read_struct<layout::RootEntry>(
          image_, superblock_.roots_offset + i * sizeof(layout::RootEntry));
      const std::string_view name = until_zero(entry.name);
      if (name.empty()) continue;
      if (name.size() == entry.name.size()) {
        problem(fmt::format("the name of root {} does not end.", i));
      }
      if (!data.contains({entry.address, entry.size_bytes})) {
        problem(fmt::format("the root '{}' lies outside the heap's data, at {:#x} with {} bytes.",
                            printable(name), entry.address, entry.size_bytes));
      }
      view_.roots.push_back({std::string(name), entry.address, entry.size_bytes, entry.type_hash});
    }
  }

  // Only pages that are stored are looked at: entries in any other are zero, which means free. So
  // the work is bounded by what was read, whatever spans_used says.
  void read_spans() {
    const std::size_t per_page = page_size() / sizeof(SpanEntry);
    const std::uint64_t first_page = superblock_.spans_offset / page_size();
    std::uint64_t next = 0;
    for (const std::uint64_t page : image_.pages()) {
      if (page < first_page) continue;
      std::uint64_t span = (page - first_page) * per_page;
      if (span >= superblock_.spans_used) return;
      const std::uint64_t end = std::min<std::uint64_t>(span + per_page, superblock_.spans_used);
      span = std::max(span, next);
      while (span < end) span += read_span(span);
      next = std::max(next, span);
    }
  }

  // Returns how many spans the entry stands for.
  std::uint64_t read_span(std::uint64_t span) {
    const auto entry =
        read_struct<SpanEntry>(image_, superblock_.spans_offset + span * sizeof(SpanEntry));
    if (entry.kind == SpanKind::free) return 1;
    if (entry.kind == SpanKind::small && entry.size_class < layout::kSizeClasses &&
        entry.run_spans == 1) {
      view_.spans.push_back({span, 1, SpanUse::small, entry.size_class});
      read_small_span(span, entry.size_class);
      return 1;
    }
    const std::uint64_t left = superblock_.spans_used - span;
    if (entry.kind == SpanKind::large && entry.run_spans >= 1 && entry.run_spans <= left) {
      view_.spans.push_back({span, entry.run_spans, SpanUse::large});
      view_.spans_in_use += entry.run_spans;
      view_.large_blocks += 1;
      view_.large_bytes += entry.run_spans * layout::kSpanBytes;
      return entry.run_spans;
    }
    view_.spans.push_back({span, 1, SpanUse::unknown});
    problem(fmt::format("entry {} of the span table is none (kind {}, class {}, {} spans).", span,
                        static_cast<unsigned>(entry.kind), entry.size_class, entry.run_spans));
    return 1;
  }

  // Such an entry may have been the first of a large block's, and those behind it its others.
  void end_unknown_runs() {
    std::uint64_t next = superblock_.spans_used;
    for (auto run = view_.spans.rbegin(); run != view_.spans.rend(); ++run) {
      if (run->use == SpanUse::unknown) run->count = next - run->first;
      next = run->first;
    }
  }

  void read_small_span(std::uint64_t span, std::size_t size_class) {
    SizeClassView& view = classes_[size_class];
    view_.spans_in_use += 1;
    view.spans += 1;
    view.slots += layout::slots_per_span(size_class);
    const SlotBitmap bitmap = read_slot_bitmap(image_, view_.geometry, span, size_class);
    for (const std::uint64_t word : bitmap.words) {
      view.live_blocks += static_cast<std::uint64_t>(std::popcount(word));
    }
    if (bitmap.has_stray_bits) {
      problem(fmt::format("the slot bitmap of span {} has bits too many.", span));
    }
  }

  const SparseImage& image_;
  const layout::Superblock& superblock_;
  HeapView view_;
  std::array<SizeClassView, layout::kSizeClasses> classes_{};
};

}  // namespace

SlotBitmap read_slot_bitmap(const SparseImage& metadata, const layout::Geometry& geometry,
                            std::uint64_t span, std::size_t size_class) {
  const std::size_t slots = layout::slots_per_span(size_class);
  constexpr std::size_t kSlotsPerLine = layout::kWordsPerGroup * 64;
  SlotBitmap bitmap;
  for (std::size_t group = 0; group * kSlotsPerLine < slots; ++group) {
    const auto line = read_struct<std::array<std::uint64_t, layout::kWordsPerGroup>>(
        metadata,
        geometry.bitmaps_offset + group * geometry.group_bytes + span * layout::kBytesPerGroupLine);
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::size_t first = group * kSlotsPerLine + i * 64;
      const std::size_t count = std::clamp<std::size_t>(slots, first, first + 64) - first;
      const std::uint64_t valid = count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
      bitmap.words[first / 64] = line[i] & valid;
      bitmap.has_stray_bits = bitmap.has_stray_bits || (line[i] & ~valid) != 0;
    }
  }
  return bitmap;
}

Result<HeapView> decode_heap(const SparseImage& image, const SnapshotInfo& info) {
  const auto superblock = read_struct<layout::Superblock>(image, 0);
  const ByteRange region{info.region_base, info.reserve_bytes};
  if (auto r = layout::check_superblock(superblock, region); !r) return propagate(r);
  return Decoder(image, superblock).run();
}

Result<std::size_t> metadata_pages(const SnapshotInfo& info) {
  const Result<layout::Geometry> geometry = layout::geometry_for(info.reserve_bytes);
  if (geometry) return geometry->data_offset / page_size();
  return failure(ErrorCode::damaged, "the snapshot's region is too small to hold a heap.");
}

Result<HeapView> read_heap(Store& store, const SnapshotInfo& info) {
  SparseImage image;
  auto read =
      store.read_metadata(info.id, [&](PageRange pages, std::span<const std::byte> content) {
        image.add(pages, content);
        return Result<void>();
      });
  if (!read) return propagate(read);
  return decode_heap(image, info);
}

}  // namespace pagetide::cli
