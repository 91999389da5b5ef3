#pragma once

#include <cstddef>
#include <cstdint>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/kernel/kernel_abi.h"

// The kernel interfaces under the tracker, called with nothing around them: what the tracker is
// measured against. Not thread-safe.

namespace pagetide::bench {

// A userfaultfd for write protection. What it registered is unregistered when its memory goes.
class BareUffd {
 public:
  // `features` are those of UFFDIO_API beside write protection itself.
  static Result<BareUffd> open(std::uint64_t features);

  Result<void> watch(ByteRange range);
  void unwatch(ByteRange range);
  // UFFDIO_WRITEPROTECT. Whether it also covers pages nobody touched is up to the features.
  Result<void> protect(ByteRange range);
  // UFFDIO_ZEROPAGE in steps of one page table. The range is untouched.
  Result<void> map_zero_pages(ByteRange range);

 private:
  explicit BareUffd(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// What a PAGEMAP_SCAN looks for; kernel::kPage* bits.
struct BareQuery {
  std::uint64_t mask = kernel::kPageWritten;
  std::uint64_t anyof = kernel::kPagePresent | kernel::kPageSwapped;
  bool write_protect = false;
};

// PAGEMAP_SCAN of this process with an output vector of the size that the tracker uses.
class BareScan {
 public:
  static Result<BareScan> open();
  // The number of pages found. Nothing else is done with them.
  Result<std::size_t> scan(ByteRange range, const BareQuery& query);

 private:
  BareScan(UniqueFd fd, VirtualArray<kernel::PageRegion> vector)
      : fd_(std::move(fd)), vector_(std::move(vector)) {}
  UniqueFd fd_;
  VirtualArray<kernel::PageRegion> vector_;
};

// What programs did before PAGEMAP_SCAN: they read /proc/self/pagemap entry by entry.
class BarePagemap {
 public:
  static Result<BarePagemap> open();
  // The number of pages that are in memory and not write-protected (bit 57).
  Result<std::size_t> count_written(ByteRange range);

 private:
  BarePagemap(UniqueFd fd, VirtualArray<std::uint64_t> entries)
      : fd_(std::move(fd)), entries_(std::move(entries)) {}
  UniqueFd fd_;
  VirtualArray<std::uint64_t> entries_;
};

// MADV_POPULATE_READ.
Result<void> populate_by_reading(ByteRange range);

// VmPTE: what the page tables of this process take, in KiB.
double page_tables_kib();

}  // namespace pagetide::bench
