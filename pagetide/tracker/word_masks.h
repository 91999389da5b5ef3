#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "pagetide/base/page_range.h"

namespace pagetide {

// Calls apply(word index, mask) for each 64-bit word of a bitmap that `pages` touches, the mask
// having the bits of those pages.
template <typename Apply>
void for_each_word(PageRange pages, Apply&& apply) {
  std::size_t page = pages.first;
  while (page < pages.end()) {
    const std::size_t in_word = page % 64;
    const std::size_t n = std::min<std::size_t>(64 - in_word, pages.end() - page);
    const std::uint64_t low = n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
    apply(page / 64, low << in_word);
    page += n;
  }
}

}  // namespace pagetide
