#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "pagetide/base/unique_fd.h"
#include "pagetide/tracker/backends/fault_table.h"
#include "pagetide/tracker/dirty_backend.h"
#include "pagetide/tracker/kernel/mapping_query.h"
#include "pagetide/tracker/kernel/populated_pages.h"

namespace pagetide {

// What the back ends have in common in which a write to a protected page faults to a handler of
// ours: arming, collecting, prefilling. Who runs FaultTable::resolve(), and where, is their
// difference.
//
// A page is in one of three states, by two bits:
//   not armed     populated or not, nobody knows; when a collect finds it populated it counts as
//                 written
//   armed, clean  write-protected; its content is that of the last take
//   armed, dirty  a handler let a write through since then
// Of private memory only pages that are known to be populated are armed, so that untouched address
// space costs no page tables; of shared mappings all are, by the first take, which reports them. A
// purge (MADV_DONTNEED) takes the protection away without a word: purged() must be told, before the
// next collect. mremap, munmap, MAP_FIXED, MADV_FREE and KSM (MADV_MERGEABLE, which takes it away
// too) are forbidden in watched memory.
//
// Not thread-safe (a Tracker holds its lock); handlers and writers may run at any time. In a
// forked child everything fails with ErrorCode::forked, and the end of the object leaves the
// parent alone.
class FaultRecorder {
 public:
  // Speaks UFFDIO_API on a new descriptor: write protection and `features` (UFFD_FEATURE_*).
  // `table` must outlive the recorder.
  static Result<std::unique_ptr<FaultRecorder>> create(UniqueFd uffd, std::uint64_t features,
                                                       FaultTable& table);
  FaultRecorder(const FaultRecorder&) = delete;
  FaultRecorder& operator=(const FaultRecorder&) = delete;
  ~FaultRecorder();

  // As the concept DirtyBackend says.
  Result<void> watch(ByteRange range);
  void unwatch(ByteRange range);
  // Allocates nothing. Costs, per populated page: 175 ns to arm a written one, next to nothing for
  // a clean one; 5 ns for one that was never armed (130 ns without PAGEMAP_SCAN), and those count
  // as written anyway.
  Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode, DirtyBitmap& written);
  // zero_page needs PAGEMAP_SCAN, marker needs Linux 6.4; without, they do nothing.
  Result<void> prefill(ByteRange range, Prefill policy);
  // These pages were purged: whatever was known of them is void.
  void purged(ByteRange range);
  std::size_t count_armed(ByteRange whole, ByteRange part);

  bool is_watching() const { return !watches_.empty(); }
  void unwatch_all();
  int uffd() const { return uffd_.get(); }

 private:
  using Words = VirtualArray<std::uint64_t>;
  struct Watch {
    ByteRange range;
    VirtualArray<FaultGroup> groups;
    Words armed;
    Words chosen;  // pages that one operation works on; clear between operations
    std::vector<PageRange> shared_parts;
    std::size_t slot = 0;
  };

  FaultRecorder(UniqueFd uffd, bool makes_markers, FaultTable& table, PopulatedPages populated,
                MappingQuery mappings);

  Result<void> check_owner() const;
  Watch* find(ByteRange whole);
  Result<void> register_range(ByteRange range);
  void end(Watch& watch);
  template <typename Apply>
  void for_each_watched(ByteRange range, Apply&& apply);

  Result<void> choose_populated(Watch& watch, PageRange pages);
  Result<void> arm_chosen(Watch& watch, PageRange pages);
  Result<void> finish_chosen(Watch& watch, PageRange pages, Result<void> result);
  Result<void> arm(ByteRange range);

  Result<void> prefill_zero_pages(Watch& watch, ByteRange part);
  Result<void> prefill_markers(Watch& watch, ByteRange part);
  Result<void> arm_untouched(Watch& watch, PageRange pages, PageState touched);

  UniqueFd uffd_;
  FaultTable& table_;
  PopulatedPages populated_;
  MappingQuery mappings_;
  std::vector<std::unique_ptr<Watch>> watches_;
  pid_t owner_;
  bool makes_markers_;
};

}  // namespace pagetide
