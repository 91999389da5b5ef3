#pragma once

#include <cstdint>
#include <functional>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/kernel/kernel_abi.h"

namespace pagetide {

// What to look for: pages whose categories have every bit of `mask` and, where `anyof` is not 0,
// at least one bit of it, both after the bits of `inverted` are flipped. `returned` is what is
// reported of each.
struct ScanQuery {
  std::uint64_t mask = 0;
  std::uint64_t anyof = 0;
  std::uint64_t inverted = 0;
  std::uint64_t returned = 0;
  bool write_protect = false;  // arm each reported page in the same step
};

// PAGEMAP_SCAN over this process's own memory.
//
// The protocol, and every reason for which one ioctl stops:
//  - the output vector is full: the call returns the regions found so far and walk_end says where
//    to go on. Only reported pages were armed. We loop until walk_end reaches the end.
//  - the end of the range: walk_end == end.
//  - an error in the middle (EPERM: a mapping that is not registered; EFAULT on the vector):
//    pages before it may already be armed although nothing was returned. Their dirt is gone, so
//    the caller must take the whole range as written. scan() therefore never returns a part.
//  - EINTR only with a fatal signal pending.
// Arming and reporting one page happen under one page-table lock with the TLB flushed before it
// is dropped: no write falls between. A caller copies pages only after scan() has returned.
//
// One call covers at most kMaxScanBytes, because the kernel holds mmap_lock (read) meanwhile and
// a waiting mmap() would hold up every fault of the process. The vector has its own mapping,
// since the kernel's writes to it would themselves dirty tracked memory.
//
// Not thread-safe: one scan at a time per scanner.
class PagemapScanner {
 public:
  static constexpr std::size_t kMaxScanBytes = std::size_t{1} << 30;
  static constexpr std::size_t kVectorRegions = 4096;  // entries, not a page size

  static Result<PagemapScanner> open(std::size_t vector_regions = kVectorRegions);

  // Calls visit(first address, end address, categories) for every region found. `range` is page
  // aligned. Cost: 3 to 6 ns a populated clean page, 50 to 60 ns an armed one; untouched address
  // space costs next to nothing.
  Result<void> scan(
      ByteRange range, const ScanQuery& query,
      const std::function<void(std::uintptr_t, std::uintptr_t, std::uint64_t)>& visit);

 private:
  PagemapScanner(UniqueFd fd, VirtualArray<kernel::PageRegion> vector)
      : fd_(std::move(fd)), vector_(std::move(vector)) {}

  UniqueFd fd_;
  VirtualArray<kernel::PageRegion> vector_;
};

}  // namespace pagetide
