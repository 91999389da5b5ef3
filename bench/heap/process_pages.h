#pragma once

#include <cstddef>
#include <memory>

#include "bench/heap/own_table.h"
#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/tracker/kernel/kernel_abi.h"

namespace pagetide::bench {

// Counts the pages that this process wrote between two points in time, for allocators that nobody
// wrote a tracker for: blocks and metadata lie in writable private mappings, wherever these are.
// All of those count but the stack of the thread that opened this; the initialised and
// uninitialised data of programs and libraries are among them. Of shared mappings only the one that
// the allocator's blocks lie in counts. Mappings may come and go between the two points.
//
// Asynchronous write protection by userfaultfd (not a Tracker, whose memory must stay mapped): a
// page of a mapping that is new since arm() is not armed and so counts as written. What was given
// back to the system does not count. Not thread-safe.
class ProcessPages {
 public:
  struct Counts {
    std::size_t written = 0;    // since arm()
    std::size_t populated = 0;  // in memory or in swap; pages that were only ever read do not count
  };

  // `shared` is the mapping of such an allocator, or empty. `tracked` is memory that a Tracker
  // watches, or empty: of that the populated pages are counted and no others, for a mapping can be
  // registered with one userfaultfd only.
  static Result<std::unique_ptr<ProcessPages>> open(ByteRange shared, ByteRange tracked);

  Result<void> arm();
  Result<Counts> count();

 private:
  enum class PartKind : std::uint8_t { is_private, is_shared, is_tracked };
  struct Part {
    ByteRange range;
    PartKind kind;
  };

  ProcessPages(ByteRange shared, ByteRange tracked, UniqueFd faults, UniqueFd pagemap);
  Result<void> find_parts();
  Result<std::size_t> scan(const Part& part, bool written_only, bool arm);

  ByteRange shared_;
  ByteRange tracked_;
  UniqueFd faults_;
  UniqueFd pagemap_;
  // In tables of the worker's own, for what is written here must not count.
  OwnTable<Part> parts_;
  std::size_t part_count_ = 0;
  OwnTable<kernel::PageRegion> regions_;
};

}  // namespace pagetide::bench
