#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pagetide/base/export.h"
#include "pagetide/base/page_range.h"

namespace pagetide {

// A set of pages: one bit a page, page p in bit p % 64 of word p / 64, which is the layout of
// KVM's dirty log. A plain value; copies copy the words. Reads from several threads are fine,
// writes are not.
//
// It remembers between which words the set pages lie, so that clearing, counting and walking a
// set costs what it holds and not what it could hold: a reservation can be a thousand times
// larger than what is in use.
class PAGETIDE_API DirtyBitmap {
 public:
  DirtyBitmap() = default;
  // All clear. `page_count` pages, numbered from 0.
  explicit DirtyBitmap(std::size_t page_count)
      : words_((page_count + 63) / 64), size_(page_count) {}

  // From words of the same layout; bits beyond the last page are left out.
  static DirtyBitmap from_words(std::span<const std::uint64_t> words, std::size_t page_count);

  std::size_t size() const { return size_; }
  bool test(std::size_t page) const { return (words_[page / 64] >> (page % 64) & 1U) != 0; }
  void set(std::size_t page) { add_to_word(page / 64, bit(page)); }
  // Sets pages 64 * i + b for each bit b.
  void add_to_word(std::size_t i, std::uint64_t bits) {
    words_[i] |= bits;
    widen(i, i + 1);
  }
  void reset(std::size_t page) { words_[page / 64] &= ~bit(page); }
  void set_range(PageRange pages);
  void reset_range(PageRange pages);
  void clear();
  // All clear, with that many pages. Allocates nothing within what reserve() asked for.
  void assign_clear(std::size_t page_count);
  void reserve(std::size_t page_count) { words_.reserve((page_count + 63) / 64); }
  // Grows or shrinks; new pages are clear.
  void resize(std::size_t page_count);

  // Number of pages in the set.
  std::size_t count() const;
  bool any() const;

  // Set algebra over equally sized sets; the shorter operand counts as clear beyond its end.
  DirtyBitmap& operator|=(const DirtyBitmap& other);
  DirtyBitmap& operator&=(const DirtyBitmap& other);
  DirtyBitmap& operator-=(const DirtyBitmap& other);
  friend bool operator==(const DirtyBitmap& a, const DirtyBitmap& b) {
    return a.size_ == b.size_ && a.words_ == b.words_;
  }

  // The first run of set pages that starts at or after `page`; empty when there is none.
  PageRange next_run(std::size_t page) const;

  // Calls visit(PageRange) for each maximal run of set pages, in ascending order.
  template <typename Visit>
  void for_each_run(Visit&& visit) const {
    for (PageRange run = next_run(0); !run.empty(); run = next_run(run.end())) visit(run);
  }

  // A range outside of which no page is set.
  PageRange bounds() const {
    if (low_ >= high_) return {};
    return {low_ * 64, (high_ * 64 < size_ ? high_ * 64 : size_) - low_ * 64};
  }

  // In the layout above; bits beyond the last page are clear.
  std::span<const std::uint64_t> words() const { return words_; }

 private:
  static std::uint64_t bit(std::size_t page) { return std::uint64_t{1} << (page % 64); }
  std::size_t find(std::size_t page, bool value) const;
  void clear_tail();
  void widen(std::size_t low, std::size_t high) {
    low_ = low < low_ ? low : low_;
    high_ = high > high_ ? high : high_;
  }

  std::vector<std::uint64_t> words_;
  std::size_t size_ = 0;
  // Words before and from here on are zero.
  std::size_t low_ = SIZE_MAX;
  std::size_t high_ = 0;
};

// Sets or clears the bits of `pages` in an array of words of the same layout.
PAGETIDE_API void set_bits(std::span<std::uint64_t> words, PageRange pages);
PAGETIDE_API void clear_bits(std::span<std::uint64_t> words, PageRange pages);

}  // namespace pagetide
