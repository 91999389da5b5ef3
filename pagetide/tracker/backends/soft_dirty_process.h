#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/base/lock_rank.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/backends/soft_dirty_kernel.h"
#include "pagetide/tracker/dirty_backend.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace pagetide {

// The soft-dirty bits of one process, shared by everybody who tracks with them. Clearing them
// clears those of all memory, so before each clearing the bits of all watched ranges, whoever
// watches them, are gathered into words of their own.
//
// A take of a part:
//   read the part's bits; if none is set, what was gathered before is the answer; else
//   gather the bits of all watched pages, clear all bits, answer with what is gathered.
// A page that is collected for the first time is reported when it is populated, whatever its bit
// says; before that it need not be gathered.
//
// The race that cannot be closed: a write that falls between reading a page's bit and clearing
// all bits is lost, since the kernel has no call that does both at once. So nobody may write to
// watched memory during a take. (PAGEMAP_SCAN can read the bit but not clear it.) Peeks are free.
//
// Somebody else in the process, or a checkpointer outside, may clear the bits too, and with them
// ours. That is noticed: a page of our own is written after each clearing, and when its bit is
// gone everything that is populated counts as written.
//
// Thread-safe. The kernel of a forked child is another one: open a new object there.
class SoftDirtyProcess {
 public:
  class Watch;

  // Tries the bits with a real round trip on scratch memory, which clears them once for the whole
  // process. Errors: unsupported.
  static Result<std::shared_ptr<SoftDirtyProcess>> over(std::unique_ptr<SoftDirtyKernel> kernel);
  // The one of this process, opened and tried at the first call.
  static Result<std::shared_ptr<SoftDirtyProcess>> of_this_process();

  SoftDirtyProcess(const SoftDirtyProcess&) = delete;
  SoftDirtyProcess& operator=(const SoftDirtyProcess&) = delete;
  ~SoftDirtyProcess();

  // Errors: unsupported for shared memory, whose bits the kernel forgets when it reclaims a page.
  Result<Watch*> add(ByteRange range);
  void remove(Watch* watch);
  // As DirtyBackend's collect. After an error no bit is lost.
  Result<void> collect(Watch& watch, ByteRange part, CollectMode mode, DirtyBitmap& written);

  std::uint64_t clearings() const;
  // How often somebody else had cleared the bits.
  std::uint64_t foreign_clearings() const;

 private:
  SoftDirtyProcess(std::unique_ptr<SoftDirtyKernel> kernel, VirtualArray<std::uint64_t> entries,
                   VirtualArray<std::byte> scratch);

  Result<void> probe();
  Result<std::uint64_t> scratch_entry();
  Result<void> check_tripwire();
  Result<bool> gather(Watch& watch, PageRange pages);
  Result<void> gather_all();
  Result<void> clear_all();

  std::unique_ptr<SoftDirtyKernel> kernel_;
  VirtualArray<std::uint64_t> entries_;  // of one read
  VirtualArray<std::byte> scratch_;      // one page: for the round trip, then the tripwire
  mutable RankedMutex mutex_{LockRank::soft_dirty, "soft-dirty bits"};
  std::vector<std::unique_ptr<Watch>> watches_;
  std::uint64_t clearings_ = 0;
  std::uint64_t foreign_clearings_ = 0;
};

}  // namespace pagetide
