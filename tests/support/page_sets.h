#pragma once

#include <cstddef>
#include <set>

#include "pagetide/tracker/dirty_bitmap.h"

namespace pagetide {

// Page numbers in a form that GoogleTest compares and prints.
using Pages = std::set<std::size_t>;

inline Pages pages_of(const DirtyBitmap& bitmap) {
  Pages pages;
  bitmap.for_each_run([&](PageRange run) {
    for (std::size_t page = run.first; page < run.end(); ++page) pages.insert(page);
  });
  return pages;
}

inline Pages all_pages(std::size_t count) {
  Pages pages;
  for (std::size_t page = 0; page < count; ++page) pages.insert(page);
  return pages;
}

}  // namespace pagetide
