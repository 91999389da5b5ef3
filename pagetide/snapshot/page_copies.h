#pragma once

#include <cstddef>
#include <cstdint>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace pagetide {

// Copies of pages that are made while their writers run, and made again where a page was written
// meanwhile. Tables are there before writers are stopped. Not thread-safe.
class PageCopies {
 public:
  // Of a region of so many pages; at most `bytes` of copies.
  static Result<PageCopies> create(std::size_t region_pages, std::size_t bytes);

  // Copies these pages of the memory that begins at `first`, over the copies that there are of
  // them. False: there is no room; then what was copied counts for nothing. Allocates nothing. A
  // page that is written at the same time is copied somehow.
  bool copy(const std::byte* first, const DirtyBitmap& pages);
  // Of a page that was copied.
  std::byte* find(std::size_t page) { return memory_.span().data() + slot_of_[page] * page_size(); }
  std::size_t count() const { return used_slots_; }
  std::size_t capacity() const { return memory_.size() / page_size(); }

  // Forgets all copies, and makes what they were made of unreadable if `clear`. Memory that a like
  // snapshot will not need goes back to the system.
  void tidy(bool clear);

 private:
  VirtualArray<std::byte> memory_;
  VirtualArray<std::uint32_t> slot_of_;  // of pages that were copied
  DirtyBitmap copied_;
  std::size_t used_slots_ = 0;
  std::size_t kept_bytes_ = 0;  // of memory_ that can have pages
};

}  // namespace pagetide
