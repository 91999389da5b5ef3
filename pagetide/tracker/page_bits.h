#pragma once

#include <cstdint>

#include "pagetide/base/page_range.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace pagetide {

// A set of pages of a watched range that is most often empty and can be very large: no memory
// before the first page is set, and then only for the words that are touched. Where even that
// cannot be had, it falls back to "all pages", since a lost page would be a lost write.
class PageBits {
 public:
  PageBits() = default;
  explicit PageBits(std::size_t page_count) : page_count_(page_count) {}

  void set(PageRange pages);
  void reset(PageRange pages);
  // Adds the pages of `source` that lie in `pages`.
  void set_from(const DirtyBitmap& source, PageRange pages);
  // Adds this set's pages that lie in `pages` to `target`.
  void add_to(DirtyBitmap& target, PageRange pages) const;

 private:
  bool have_words();

  std::size_t page_count_ = 0;
  VirtualArray<std::uint64_t> words_;
  bool all_ = false;
};

}  // namespace pagetide
