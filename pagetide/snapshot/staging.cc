#include "pagetide/snapshot/staging.h"

#include <sys/mman.h>

#include <algorithm>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/syscalls.h"

namespace pagetide {

namespace {

constexpr std::size_t kLeastKept = std::size_t{4} << 20;

}  // namespace

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

// By halves, so that a few small snapshots in between do not make the next stop wait for pages.
void Staging::tidy(bool clear) {
  const std::span<std::byte> all = memory_.span();
  // Behind the staged pages there is the copy of one that was dropped by its hash.
  const std::size_t used =
      std::min(std::max(most_staged_bytes_, staged_bytes_) + page_size(), all.size());
  most_staged_bytes_ = staged_bytes_ = 0;
  const std::size_t has_pages = std::max(used, kept_bytes_);
  const std::size_t wanted = std::max({2 * used, kept_bytes_ / 2, kLeastKept});
  const std::size_t kept = std::min(round_down(wanted, page_size()), has_pages);
  if (kept < has_pages) {
    (void)sys::advise(ByteRange::of(all.data() + kept, has_pages - kept), MADV_DONTNEED);
  }
  kept_bytes_ = kept;
  if (clear) clear_memory(all.data(), std::min(used, kept), InCache::unlikely);
}

}  // namespace pagetide
