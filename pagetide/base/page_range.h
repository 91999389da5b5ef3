#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "pagetide/base/bytes.h"
#include "pagetide/base/export.h"

namespace pagetide {

// The system's page size in bytes, asked for once. Nothing in Pagetide assumes 4096.
PAGETIDE_API std::size_t page_size();

// A half-open range of addresses [begin, begin + size), in bytes. Plain value; no ownership.
struct ByteRange {
  std::uintptr_t begin = 0;
  std::size_t size = 0;

  static ByteRange of(const void* address, std::size_t size_bytes) {
    return {reinterpret_cast<std::uintptr_t>(address), size_bytes};
  }

  std::uintptr_t end() const { return begin + size; }
  bool empty() const { return size == 0; }
  std::byte* data() const { return reinterpret_cast<std::byte*>(begin); }  // NOLINT
  bool contains(std::uintptr_t address) const { return address - begin < size; }
  bool contains(const ByteRange& other) const {
    return other.begin >= begin && other.end() <= end() && other.end() >= other.begin;
  }
  ByteRange intersect(const ByteRange& other) const {
    const std::uintptr_t low = std::max(begin, other.begin);
    const std::uintptr_t high = std::min(end(), other.end());
    return low < high ? ByteRange{low, high - low} : ByteRange{};
  }
  bool is_page_aligned() const { return begin % page_size() == 0 && size % page_size() == 0; }
  // The smallest page-aligned range that covers this one.
  ByteRange page_cover() const {
    if (size == 0) return {round_down(begin, page_size()), 0};
    const std::uintptr_t low = round_down(begin, page_size());
    return {low, round_up(end(), page_size()) - low};
  }
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// A half-open range of page numbers [first, first + count), relative to some base.
struct PageRange {
  std::size_t first = 0;
  std::size_t count = 0;

  // The pages of `inside` that `bytes`, which lies within it, touches.
  static PageRange covering(const ByteRange& bytes, const ByteRange& inside) {
    const ByteRange cover = bytes.page_cover();
    return {(cover.begin - inside.begin) / page_size(), cover.size / page_size()};
  }

  std::size_t end() const { return first + count; }
  bool empty() const { return count == 0; }
  bool contains(std::size_t page) const { return page - first < count; }
  PageRange intersect(const PageRange& other) const {
    const std::size_t low = std::max(first, other.first);
    const std::size_t high = std::min(end(), other.end());
    return low < high ? PageRange{low, high - low} : PageRange{};
  }
  // The addresses of these pages when page 0 is at `base`.
  ByteRange bytes_from(std::uintptr_t base) const {
    return {base + first * page_size(), count * page_size()};
  }
  friend bool operator==(const PageRange&, const PageRange&) = default;
};

}  // namespace pagetide
