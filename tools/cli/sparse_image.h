#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "pagetide/base/page_range.h"

namespace pagetide::cli {

// Pages of an image that was never mapped. What was not added is zero.
class SparseImage {
 public:
  // Copies whole pages; `content` holds pages.count of them.
  void add(PageRange pages, std::span<const std::byte> content);
  // Any offset; copies, with zeros for what is not there.
  void read(std::uint64_t offset_bytes, std::span<std::byte> target) const;
  // The pages that were added, ascending.
  std::vector<std::uint64_t> pages() const;

 private:
  std::unordered_map<std::uint64_t, std::vector<std::byte>> pages_;
};

}  // namespace pagetide::cli
