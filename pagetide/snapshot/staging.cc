#include "pagetide/snapshot/staging.h"

#include <algorithm>

#include "pagetide/base/page_range.h"
#include "pagetide/snapshot/kept_memory.h"

namespace pagetide {

Result<Staging> Staging::create(std::size_t bytes) {
  auto memory =
      VirtualArray<std::byte>::create(round_down(std::max(bytes, page_size()), page_size()));
  if (!memory) return propagate(memory);
  Staging staging;
  staging.memory_ = std::move(*memory);
  return staging;
}

void Staging::add_page() {
  staged_bytes_ += page_size();
}

Result<void> Staging::flush(SegmentWriter& segment) {
  auto r = segment.append(memory_.span().first(staged_bytes_));
  most_staged_bytes_ = std::max(most_staged_bytes_, staged_bytes_);
  staged_bytes_ = 0;
  return r;
}

void Staging::tidy(bool clear) {
  // Behind the staged pages there is the copy of one that was dropped by its hash.
  const std::size_t used =
      std::min(std::max(most_staged_bytes_, staged_bytes_) + page_size(), memory_.size());
  most_staged_bytes_ = staged_bytes_ = 0;
  tidy_memory(memory_.span(), used, kept_bytes_, clear);
}

}  // namespace pagetide
