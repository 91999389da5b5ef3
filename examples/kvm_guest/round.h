#pragma once

#include <string>

#include "pagetide/tracker/dirty_bitmap.h"

namespace kvm_guest {

// What one round of work did, and what each side says about it. Sets of guest pages.
struct Round {
  pagetide::DirtyBitmap guest;    // the guest was told to write these
  pagetide::DirtyBitmap undone;   // of them, those that do not hold the mark of this round
  pagetide::DirtyBitmap monitor;  // written by this process: work list, device, set-up
  pagetide::DirtyBitmap tracker;  // what Pagetide's tracker found
  pagetide::DirtyBitmap kvm;      // what KVM's dirty log holds
};

// Where a round is not as it must be. KVM's log may hold more than the work list: the processor
// sets accessed and dirty bits in the guest's page tables.
struct Differences {
  // In KVM's log or written by this process, and not found by the tracker. The one that loses data.
  pagetide::DirtyBitmap missed;
  pagetide::DirtyBitmap over_reported;  // found by the tracker, written by nobody
  pagetide::DirtyBitmap missed_by_kvm;  // the guest was told to write them; not in KVM's log
  pagetide::DirtyBitmap undone;

  bool any() const;
};

Differences compare(const Round& round);

// "missed by the tracker: 17, 40-42; ..."; empty when there is none.
std::string describe(const Differences& differences);

}  // namespace kvm_guest
