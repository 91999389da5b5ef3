#pragma once

#include <cstdint>
#include <span>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/kernel/kernel_abi.h"

namespace pagetide {

// What a page must be to be found.
enum class PageState : std::uint8_t {
  populated,  // in memory or in swap; a write-protect marker looks like swap
  in_memory,  // populated and not in swap
  not_zero,   // populated by something else than the shared page of zeros
};

// Which pages of this process's own memory exist, read from the page tables; changes nothing.
// With PAGEMAP_SCAN (Linux 6.7) untouched address space costs next to nothing; before, every page
// of the range is an entry to be read, about 130 ns each, and the page of zeros is not told from
// others. PAGETIDE_DISABLE=pagemap_scan gives the older way.
//
// Not thread-safe. Allocates only in open().
class PopulatedPages {
 public:
  static Result<PopulatedPages> open();

  // Whether PageState::not_zero is exact; without, it is the same as populated.
  bool knows_zero_pages() const { return scans_; }

  // Calls visit(ByteRange) for runs of such pages in ascending order.
  template <typename Visit>
  Result<void> for_each(ByteRange range, PageState state, Visit&& visit) {
    for (std::uintptr_t at = range.begin; at < range.end();) {
      auto found = next(at, range.end(), state);
      if (!found) return propagate(found);
      for (const kernel::PageRegion& run : *found) visit(ByteRange{run.start, run.end - run.start});
    }
    return {};
  }

 private:
  using Runs = std::span<const kernel::PageRegion>;

  PopulatedPages(UniqueFd fd, VirtualArray<kernel::PageRegion> runs,
                 VirtualArray<std::uint64_t> entries)
      : fd_(std::move(fd)), runs_(std::move(runs)), entries_(std::move(entries)) {}

  // Some runs, and `at` moved behind what was looked at.
  Result<Runs> next(std::uintptr_t& at, std::uintptr_t end, PageState state);
  Result<Runs> next_by_scan(std::uintptr_t& at, std::uintptr_t end, PageState state);
  Result<Runs> next_by_read(std::uintptr_t& at, std::uintptr_t end, PageState state);
  bool can_scan();

  UniqueFd fd_;
  // Mapped, so that it never lies in watched memory, which the kernel's writes would dirty.
  VirtualArray<kernel::PageRegion> runs_;
  VirtualArray<std::uint64_t> entries_;
  bool scans_ = false;
};

}  // namespace pagetide
