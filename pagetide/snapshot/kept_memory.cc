#include "pagetide/snapshot/kept_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/syscalls.h"

namespace pagetide {

void tidy_memory(std::span<std::byte> memory, std::size_t used, std::size_t& kept, bool clear) {
  constexpr std::size_t kLeastKept = std::size_t{4} << 20;
  const std::size_t has_pages = std::max(used, kept);
  const std::size_t wanted = std::max({2 * used, kept / 2, kLeastKept});
  const std::size_t stays = std::min(round_down(wanted, page_size()), has_pages);
  if (stays < has_pages) {
    (void)sys::advise(ByteRange::of(memory.data() + stays, has_pages - stays), MADV_DONTNEED);
  }
  kept = stays;
  if (clear) clear_memory(memory.data(), std::min(used, stays), InCache::unlikely);
}

}  // namespace pagetide
