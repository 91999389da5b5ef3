#include "pagetide/tracker/kernel/pagemap_scan.h"

#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/disabled_features.h"
#include "pagetide/tracker/kernel/pagemap_file.h"

namespace pagetide {

Result<PagemapScanner> PagemapScanner::open(std::size_t vector_regions) {
  if (is_disabled("pagemap_scan")) {
    return failure(ErrorCode::unsupported,
                   "cannot scan page tables (PAGEMAP_SCAN): switched off by PAGETIDE_DISABLE.");
  }
  auto fd = open_own_pagemap();
  if (!fd) return propagate(fd);
  auto vector = VirtualArray<kernel::PageRegion>::create(vector_regions);
  if (!vector) return propagate(vector);
  return PagemapScanner(std::move(*fd), std::move(*vector));
}

Result<void> PagemapScanner::scan(
    ByteRange range, const ScanQuery& query,
    const std::function<void(std::uintptr_t, std::uintptr_t, std::uint64_t)>& visit) {
  std::uintptr_t at = range.begin;
  while (at < range.end()) {
    kernel::PmScanArg arg{};
    arg.size = sizeof(arg);
    // Always checked: without it a mapping that lost its registration is skipped in silence and
    // reads as "nothing written".
    arg.flags = kernel::kScanCheckWpAsync | (query.write_protect ? kernel::kScanWpMatching : 0);
    arg.start = at;
    // Steps end on multiples of the step, so that no huge page is cut in two.
    arg.end = std::min(range.end(), round_down(at + kMaxScanBytes, kMaxScanBytes));
    arg.vec = reinterpret_cast<std::uintptr_t>(vector_.span().data());
    arg.vec_len = vector_.size();
    arg.category_mask = query.mask;
    arg.category_inverted = query.inverted;
    arg.category_anyof_mask = query.anyof;
    arg.return_mask = query.returned;
    const int found = sys::ioctl(fd_.get(), kernel::kPagemapScan, &arg);
    if (found < 0) {
      return system_failure("scan the page table for written pages (PAGEMAP_SCAN)", -found,
                            "The range is taken as written in whole.");
    }
    for (int i = 0; i < found; ++i) {
      const kernel::PageRegion& region = vector_[static_cast<std::size_t>(i)];
      visit(region.start, region.end, region.categories);
    }
    if (arg.walk_end <= at) {
      return failure(ErrorCode::system_failure,
                     "PAGEMAP_SCAN made no progress; the range is taken as written in whole.");
    }
    at = arg.walk_end;
  }
  return {};
}

}  // namespace pagetide
