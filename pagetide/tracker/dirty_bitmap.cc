#include "pagetide/tracker/dirty_bitmap.h"

#include <algorithm>

#include "pagetide/tracker/word_masks.h"

namespace pagetide {

void set_bits(std::span<std::uint64_t> words, PageRange pages) {
  for_each_word(pages, [&](std::size_t word, std::uint64_t mask) { words[word] |= mask; });
}

void clear_bits(std::span<std::uint64_t> words, PageRange pages) {
  for_each_word(pages, [&](std::size_t word, std::uint64_t mask) { words[word] &= ~mask; });
}

DirtyBitmap DirtyBitmap::from_words(std::span<const std::uint64_t> words, std::size_t page_count) {
  DirtyBitmap set(page_count);
  const std::size_t count = std::min(words.size(), set.words_.size());
  std::copy_n(words.begin(), count, set.words_.begin());
  set.widen(0, set.words_.size());
  set.clear_tail();
  return set;
}

void DirtyBitmap::set_range(PageRange pages) {
  if (pages.empty()) return;
  set_bits(words_, pages);
  widen(pages.first / 64, (pages.end() + 63) / 64);
}
void DirtyBitmap::reset_range(PageRange pages) {
  clear_bits(words_, pages.intersect(bounds()));
}
void DirtyBitmap::clear() {
  for (std::size_t i = low_; i < high_; ++i) words_[i] = 0;
  low_ = SIZE_MAX;
  high_ = 0;
}

void DirtyBitmap::assign_clear(std::size_t page_count) {
  clear();
  words_.resize((page_count + 63) / 64);
  size_ = page_count;
}

void DirtyBitmap::resize(std::size_t page_count) {
  words_.resize((page_count + 63) / 64);
  size_ = page_count;
  high_ = std::min(high_, words_.size());
  clear_tail();
}

void DirtyBitmap::clear_tail() {
  if (size_ % 64 != 0) words_.back() &= (std::uint64_t{1} << (size_ % 64)) - 1;
}

std::size_t DirtyBitmap::count() const {
  std::size_t total = 0;
  for (std::size_t i = low_; i < high_; ++i) {
    // Most words of a sparse set are zero, and counting bits takes longer than seeing that.
    if (words_[i] != 0) total += static_cast<std::size_t>(std::popcount(words_[i]));
  }
  return total;
}

bool DirtyBitmap::any() const {
  return !next_run(0).empty();
}

DirtyBitmap& DirtyBitmap::operator|=(const DirtyBitmap& other) {
  if (other.size_ > size_) resize(other.size_);
  for (std::size_t i = other.low_; i < other.high_; ++i) words_[i] |= other.words_[i];
  widen(other.low_, other.high_);
  return *this;
}

DirtyBitmap& DirtyBitmap::operator&=(const DirtyBitmap& other) {
  for (std::size_t i = low_; i < high_; ++i) {
    words_[i] &= i < other.words_.size() ? other.words_[i] : 0;
  }
  return *this;
}

DirtyBitmap& DirtyBitmap::operator-=(const DirtyBitmap& other) {
  const std::size_t high = std::min(high_, other.high_);
  for (std::size_t i = std::max(low_, other.low_); i < high; ++i) words_[i] &= ~other.words_[i];
  return *this;
}

// The first page at or after `page` whose bit is `value`; size() when there is none.
std::size_t DirtyBitmap::find(std::size_t page, bool value) const {
  if (value) page = std::max(page, bounds().first);
  if (page >= size_ || (value && page >= high_ * 64)) return size_;
  const std::size_t end = value ? high_ : words_.size();
  const std::uint64_t flip = value ? 0 : ~std::uint64_t{0};
  std::size_t i = page / 64;
  std::uint64_t word = (words_[i] ^ flip) & (~std::uint64_t{0} << (page % 64));
  while (word == 0) {
    if (++i == end) return size_;
    word = words_[i] ^ flip;
  }
  return std::min(size_, i * 64 + static_cast<std::size_t>(std::countr_zero(word)));
}

PageRange DirtyBitmap::next_run(std::size_t page) const {
  const std::size_t first = find(page, true);
  if (first == size_) return {size_, 0};
  return {first, find(first, false) - first};
}

}  // namespace pagetide
