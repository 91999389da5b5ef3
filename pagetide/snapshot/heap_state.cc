#include "pagetide/snapshot/heap_state.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "pagetide/base/bytes.h"
#include "pagetide/base/hash.h"

namespace pagetide {

using format::BitmapLine;

namespace {

constexpr std::size_t kMostRunBytes = std::size_t{8} << 20;

}  // namespace

Result<HeapState> HeapState::create(std::size_t reserve_bytes) {
  auto geometry = layout::geometry_for(reserve_bytes);
  if (!geometry) return propagate(geometry);
  auto bytes = VirtualArray<std::byte>::create(geometry->data_offset);
  if (!bytes) return propagate(bytes);
  HeapState state;
  state.geometry_ = *geometry;
  state.bytes_ = std::move(*bytes);
  return state;
}

// Puts a record's content in its place.
class HeapState::Writer : public format::HeapRecordSink {
 public:
  explicit Writer(HeapState& state) : state_(state) {}

  void superblock(const layout::Superblock& superblock) override {
    put(0, &superblock, sizeof(superblock));
  }
  void root(std::size_t root, const layout::RootEntry& entry) override {
    put(state_.offset_of_root(root), &entry, sizeof(entry));
  }
  void entry(std::size_t span, const layout::SpanEntry& entry) override {
    put(state_.offset_of_entry(span), &entry, sizeof(entry));
  }
  void line(std::size_t line, std::uint8_t mask, const BitmapLine& words) override {
    const std::size_t offset =
        state_.offset_of_line(line / layout::kBitmapGroups, line % layout::kBitmapGroups);
    for (std::size_t word = 0; word < words.size(); ++word) {
      if ((unsigned{mask} >> word & 1U) == 0) continue;
      put(offset + word * sizeof(std::uint64_t), &words.at(word), sizeof(std::uint64_t));
    }
  }

 private:
  void put(std::size_t offset, const void* data, std::size_t size) {
    std::memcpy(state_.bytes_.span().data() + offset, data, size);
  }

  HeapState& state_;
};

void HeapState::apply(std::span<const std::byte> record, format::HeapRecordKind kind) {
  Writer writer(*this);
  (void)format::read_heap_record(record, kind, geometry_.span_count, &writer);
}

std::vector<std::byte> HeapState::encode_full() const {
  const HeapMetadata heap = metadata();
  format::HeapRecordWriter writer(format::HeapRecordKind::full, heap.superblock());
  const auto is_zero = [](const auto& value) { return is_all_zero(&value, sizeof(value)); };
  for (std::size_t root = 0; root < layout::kRootCapacity; ++root) {
    if (!is_zero(heap.root(root))) writer.add_root(root, heap.root(root));
  }
  const std::size_t used = heap.spans_used();
  for (std::size_t span = 0; span < used; ++span) {
    const layout::SpanEntry& entry = heap.entry(span);
    if (!is_zero(entry)) writer.add_entry(span, entry);
  }
  for (std::size_t span = 0; span < used; ++span) {
    // All groups: a program that damages its heap can leave bits where no slots are.
    for (std::size_t group = 0; group < layout::kBitmapGroups; ++group) {
      BitmapLine words;
      std::memcpy(words.data(), heap.line(span, group), sizeof(words));
      writer.add_line(span * layout::kBitmapGroups + group, words, {});
    }
  }
  return writer.finish();
}

std::vector<PageRange> HeapState::used_pages(std::size_t spans) const {
  std::vector<PageRange> ranges;
  const auto add = [&](std::size_t offset, std::size_t bytes) {
    ranges.push_back({offset / page_size(), divide_up(bytes, page_size())});
  };
  add(0, sizeof(layout::Superblock));
  add(geometry_.roots_offset, layout::kRootCapacity * sizeof(layout::RootEntry));
  add(geometry_.spans_offset, spans * sizeof(layout::SpanEntry));
  for (std::size_t group = 0; group < layout::kBitmapGroups; ++group) {
    add(geometry_.bitmaps_offset + group * geometry_.group_bytes,
        spans * layout::kBytesPerGroupLine);
  }
  return ranges;
}

std::span<const std::byte> HeapState::bytes_of(PageRange pages) const {
  return bytes_.span().subspan(pages.first * page_size(), pages.count * page_size());
}

Result<void> HeapState::for_each_page_run(const PageVisitor& visit) const {
  const std::size_t most_pages = divide_up(kMostRunBytes, page_size());
  const auto is_zero = [this](std::size_t page) {
    return is_all_zero(bytes_of({page, 1}).data(), page_size());
  };
  for (const PageRange& range : used_pages(metadata().spans_used())) {
    for (std::size_t page = range.first; page < range.end();) {
      PageRange run{page, 0};
      while (run.end() < range.end() && run.count < most_pages && !is_zero(run.end())) ++run.count;
      if (!run.empty()) {
        if (auto r = visit(run, bytes_of(run)); !r) return r;
      }
      page = std::max(run.end(), page + 1);
    }
  }
  return {};
}

bool HeapState::operator==(const HeapState& other) const {
  if (geometry_ != other.geometry_) return false;
  const std::size_t spans = std::max(metadata().spans_used(), other.metadata().spans_used());
  const std::vector<PageRange> ranges = used_pages(spans);
  return std::all_of(ranges.begin(), ranges.end(), [&](const PageRange& range) {
    return std::ranges::equal(bytes_of(range), other.bytes_of(range));
  });
}

void HeapState::for_each_difference(const HeapState& other, const PartVisitor& visit) const {
  const std::size_t spans = std::max(metadata().spans_used(), other.metadata().spans_used());
  const auto compare = [&](std::size_t begin, std::size_t bytes, std::size_t part) {
    const std::byte* mine = bytes_.span().data();
    const std::byte* others = other.bytes_.span().data();
    for (std::size_t at = begin; at < begin + bytes; at += page_size()) {
      const std::size_t end = std::min(at + page_size(), begin + bytes);
      if (std::memcmp(mine + at, others + at, end - at) == 0) continue;
      for (std::size_t offset = at; offset < end; offset += part) {
        if (std::memcmp(mine + offset, others + offset, part) != 0) visit(offset, part);
      }
    }
  };
  compare(geometry_.roots_offset, layout::kRootCapacity * sizeof(layout::RootEntry),
          sizeof(layout::RootEntry));
  compare(geometry_.spans_offset, spans * sizeof(layout::SpanEntry), sizeof(layout::SpanEntry));
  for (std::size_t group = 0; group < layout::kBitmapGroups; ++group) {
    compare(offset_of_line(0, group), spans * layout::kBytesPerGroupLine,
            layout::kBytesPerGroupLine);
  }
}

void HeapState::write_to(std::byte* region) const {
  (void)for_each_page_run([&](PageRange pages, std::span<const std::byte> content) {
    std::memcpy(region + pages.first * page_size(), content.data(), content.size());
    return Result<void>();
  });
}

void HeapState::overwrite(std::byte* region, std::size_t spans) const {
  for (const PageRange& pages : used_pages(std::max(spans, metadata().spans_used()))) {
    std::memcpy(region + pages.first * page_size(), bytes_of(pages).data(), bytes_of(pages).size());
  }
}

void HeapState::write_part_to(std::byte* region, std::size_t offset, std::size_t size) const {
  std::memcpy(region + offset, bytes_.span().data() + offset, size);
}

}  // namespace pagetide
