#include "tests/support/arena_image.h"

#include <fmt/format.h>

#include <iterator>

#include "pagetide/allocator/free_mask.h"
#include "pagetide/base/hash.h"

namespace pagetide {

namespace {

void add_pages(ArenaImage& image, std::size_t first_page, const std::byte* content,
               std::size_t size_bytes) {
  const std::size_t page = page_size();
  for (std::size_t at = 0; at < size_bytes; at += page) {
    if (is_all_zero(content + at, page)) continue;
    image[first_page + at / page] = std::string(reinterpret_cast<const char*>(content + at), page);
  }
}

}  // namespace

ArenaImage image_of(const Arena& arena) {
  ArenaImage image;
  const Heap& heap = arena.heap();
  heap.settle();
  for (const UsedRanges& used : {heap.metadata_ranges(), heap.used_ranges()}) {
    for (const ByteRange& range : used.span()) {
      add_pages(image, (range.begin - arena.range().begin) / page_size(), range.data(), range.size);
    }
  }
  if (heap.clear_policy() != ClearPolicy::deferred) return image;
  FreeMask mask(heap.metadata());
  const std::size_t first_data_page = heap.geometry().data_offset / page_size();
  for (auto page = image.lower_bound(first_data_page); page != image.end();) {
    auto* bytes = reinterpret_cast<std::byte*>(page->second.data());
    const bool emptied = mask.apply(page->first, bytes) && is_all_zero(bytes, page_size());
    page = emptied ? image.erase(page) : std::next(page);
  }
  return image;
}

Result<ArenaImage> image_of(Store& store, SnapshotId id) {
  ArenaImage image;
  auto r = store.read_image(id, [&](PageRange pages, std::span<const std::byte> content) {
    add_pages(image, pages.first, content.data(), content.size());
    return Result<void>();
  });
  if (!r) return propagate(r);
  return image;
}

std::string difference(const ArenaImage& expected, const ArenaImage& actual) {
  std::string text;
  for (const auto& [page, content] : expected) {
    const auto found = actual.find(page);
    if (found == actual.end()) {
      text += fmt::format("page {} is missing; ", page);
    } else if (found->second != content) {
      text += fmt::format("page {} differs; ", page);
    }
  }
  for (const auto& [page, content] : actual) {
    if (!expected.contains(page)) text += fmt::format("page {} should be zero; ", page);
  }
  return text;
}

}  // namespace pagetide
