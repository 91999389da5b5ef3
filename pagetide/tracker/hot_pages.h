#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/dirty_bitmap.h"
#include "pagetide/tracker/hot_page_options.h"

namespace pagetide {

// What a watched range's history says about its blocks of 2 MiB. Decisions are made by block and
// neighbours with the same one are scanned by one call: an extra call costs four faults.
//
// Not thread-safe; its tracker's lock covers it.
class HotPages {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{2} << 20;

  static Result<HotPages> create(ByteRange range, const HotPageOptions& options);

  // Splits `part` into runs of blocks and calls visit(run, arm) for each, ascending: whether the
  // coming take should arm what it reports there.
  template <typename Visit>
  void plan(ByteRange part, Visit&& visit);
  // Counts the last plan as none.
  void drop_plan() { planned_unarmed_ = 0; }
  // What the take found in the part.
  void note_reported(PageRange pages, const DirtyBitmap& reported);
  // What a consumer found not to have changed.
  void note_unchanged(const DirtyBitmap& unchanged);
  // Ends one take, of one or several parts.
  void next_take() {
    ++takes_;
    left_unarmed_ = std::exchange(planned_unarmed_, 0);
  }

  std::uint64_t blocks_left_unarmed() const { return left_unarmed_; }

 private:
  HotPages(ByteRange range, const HotPageOptions& options) : range_(range), options_(options) {}
  bool should_arm(PageRange block) const;

  ByteRange range_;
  HotPageOptions options_;
  std::uint64_t takes_ = 0;
  bool consumer_tells_ = false;        // told what had not changed since the latest take
  std::uint64_t planned_unarmed_ = 0;  // so far in this take
  std::uint64_t left_unarmed_ = 0;     // by the latest take
  // One bit a page.
  VirtualArray<std::uint64_t> reported_;        // by the latest take
  VirtualArray<std::uint64_t> changed_;         // of these, not known to be unchanged
  VirtualArray<std::uint64_t> changed_before_;  // the same of the take before
};

// A template, because a std::function would allocate inside a stop.
template <typename Visit>
void HotPages::plan(ByteRange part, Visit&& visit) {
  const bool due = options_.relearn_takes != 0 && takes_ % options_.relearn_takes == 0;
  // A consumer that tells what did not change shows by itself what cooled down.
  const bool relearn = due && !consumer_tells_;
  if (!options_.enabled || relearn) {
    visit(part, true);
    return;
  }
  ByteRange run{part.begin, 0};
  bool run_arms = true;
  for (std::uintptr_t at = part.begin; at < part.end();) {
    const std::uintptr_t next = std::min(part.end(), round_down(at + kBlockBytes, kBlockBytes));
    const bool arm = should_arm(PageRange::covering({at, next - at}, range_));
    planned_unarmed_ += arm ? 0 : 1;
    if (run.size > 0 && arm != run_arms) {
      visit(run, run_arms);
      run = {at, 0};
    }
    run.size += next - at;
    run_arms = arm;
    at = next;
  }
  if (run.size > 0) visit(run, run_arms);
}

}  // namespace pagetide
