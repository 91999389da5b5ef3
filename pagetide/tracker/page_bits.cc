#include "pagetide/tracker/page_bits.h"

#include "pagetide/tracker/word_masks.h"

namespace pagetide {

bool PageBits::have_words() {
  if (all_) return false;
  if (words_.size() == 0) {
    auto made = VirtualArray<std::uint64_t>::create(divide_up(page_count_, 64));
    if (made) words_ = std::move(*made);
    all_ = !made;
  }
  return !all_;
}

void PageBits::set(PageRange pages) {
  if (have_words()) set_bits(words_.span(), pages);
}

void PageBits::reset(PageRange pages) {
  if (pages.count == page_count_) all_ = false;
  if (words_.size() == 0) return;
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    // Untouched words stay untouched.
    if ((words_[i] & mask) != 0) words_[i] &= ~mask;
  });
}

void PageBits::set_from(const DirtyBitmap& source, PageRange pages) {
  for_each_word(pages.intersect(source.bounds()), [&](std::size_t i, std::uint64_t mask) {
    const std::uint64_t bits = source.words()[i] & mask;
    if (bits != 0 && have_words()) words_[i] |= bits;
  });
}

void PageBits::add_to(DirtyBitmap& target, PageRange pages) const {
  if (all_) return target.set_range(pages);
  if (words_.size() == 0) return;
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    const std::uint64_t bits = words_[i] & mask;
    if (bits != 0) target.add_to_word(i, bits);
  });
}

}  // namespace pagetide
