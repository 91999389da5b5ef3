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

void DirtyBitmap::set_range(PageRange pages) {
  set_bits(words_, pages);
}
void DirtyBitmap::reset_range(PageRange pages) {
  clear_bits(words_, pages);
}
void DirtyBitmap::clear() {
  std::fill(words_.begin(), words_.end(), 0);
}

void DirtyBitmap::resize(std::size_t page_count) {
  words_.resize((page_count + 63) / 64);
  size_ = page_count;
  clear_tail();
}

void DirtyBitmap::clear_tail() {
  if (size_ % 64 != 0) words_.back() &= (std::uint64_t{1} << (size_ % 64)) - 1;
}

std::size_t DirtyBitmap::count() const {
  std::size_t total = 0;
  for (const std::uint64_t word : words_) total += static_cast<std::size_t>(std::popcount(word));
  return total;
}

bool DirtyBitmap::any() const {
  return std::any_of(words_.begin(), words_.end(), [](std::uint64_t word) { return word != 0; });
}

DirtyBitmap& DirtyBitmap::operator|=(const DirtyBitmap& other) {
  if (other.size_ > size_) resize(other.size_);
  for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
  return *this;
}

DirtyBitmap& DirtyBitmap::operator&=(const DirtyBitmap& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) {
    words_[i] &= i < other.words_.size() ? other.words_[i] : 0;
  }
  return *this;
}

DirtyBitmap& DirtyBitmap::operator-=(const DirtyBitmap& other) {
  const std::size_t n = std::min(words_.size(), other.words_.size());
  for (std::size_t i = 0; i < n; ++i) words_[i] &= ~other.words_[i];
  return *this;
}

// The first page at or after `page` whose bit is `value`; size() when there is none.
std::size_t DirtyBitmap::find(std::size_t page, bool value) const {
  if (page >= size_) return size_;
  const std::uint64_t flip = value ? 0 : ~std::uint64_t{0};
  std::size_t i = page / 64;
  std::uint64_t word = (words_[i] ^ flip) & (~std::uint64_t{0} << (page % 64));
  while (word == 0) {
    if (++i == words_.size()) return size_;
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
