#include "pagetide/tracker/hot_pages.h"

#include <algorithm>
#include <bit>

#include "pagetide/tracker/word_masks.h"

namespace pagetide {

Result<HotPages> HotPages::create(ByteRange range, const HotPageOptions& options) {
  HotPages hot(range, options);
  if (!options.enabled) return hot;
  const std::size_t words = divide_up(range.size / page_size(), 64);
  for (VirtualArray<std::uint64_t>* bits : {&hot.reported_, &hot.changed_, &hot.changed_before_}) {
    auto made = VirtualArray<std::uint64_t>::create(words);
    if (!made) return propagate(made);
    *bits = std::move(*made);
  }
  return hot;
}

// Arming pays when the copies it saves (pages that are unarmed and will not change) outweigh the
// faults it causes (pages that will). What changed in both of the last two takes is expected to
// change again.
bool HotPages::should_arm(PageRange block) const {
  std::uint64_t unarmed = 0;
  std::uint64_t hot = 0;
  for_each_word(block, [&](std::size_t i, std::uint64_t mask) {
    unarmed += static_cast<std::uint64_t>(std::popcount(reported_[i] & mask));
    hot += static_cast<std::uint64_t>(std::popcount(changed_[i] & changed_before_[i] & mask));
  });
  if (hot == 0) return true;
  const std::uint64_t saved_ns = (unarmed - std::min(unarmed, hot)) * options_.stale_page_ns;
  return saved_ns > hot * options_.fault_ns + options_.ioctl_ns;
}

void HotPages::note_reported(PageRange pages, const DirtyBitmap& reported) {
  if (!options_.enabled) return;
  consumer_tells_ = false;
  const auto words = reported.words();
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    changed_before_[i] = (changed_before_[i] & ~mask) | (changed_[i] & mask);
    reported_[i] = (reported_[i] & ~mask) | (words[i] & mask);
    changed_[i] = (changed_[i] & ~mask) | (words[i] & mask);
  });
}

void HotPages::note_unchanged(const DirtyBitmap& unchanged) {
  if (!options_.enabled) return;
  consumer_tells_ = true;
  const auto words = unchanged.words();
  for_each_word(unchanged.bounds(), [&](std::size_t i, std::uint64_t mask) {
    if (i < changed_.size() && (words[i] & mask) != 0) changed_[i] &= ~(words[i] & mask);
  });
}

}  // namespace pagetide
