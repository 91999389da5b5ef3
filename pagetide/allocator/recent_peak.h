#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagetide {

// The most of something that was there lately: in the last second, or up to two.
class RecentPeak {
 public:
  void grow_to(std::size_t amount) { in_this_second_ = std::max(in_this_second_, amount); }
  // At a time that does not go back, in milliseconds. What was seen by grow_to() since the last
  // call counts as recent.
  std::size_t at(std::uint64_t now_ms, std::size_t amount) {
    grow_to(amount);
    if (now_ms - begin_ms_ >= 1000) {
      before_ = in_this_second_;
      in_this_second_ = amount;
      begin_ms_ = now_ms;
    }
    return std::max(before_, in_this_second_);
  }

 private:
  std::uint64_t begin_ms_ = 0;
  std::size_t in_this_second_ = 0;
  std::size_t before_ = 0;  // in the second that was over then
};

}  // namespace pagetide
