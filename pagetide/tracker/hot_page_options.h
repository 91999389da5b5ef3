#pragma once

#include <cstdint>

namespace pagetide {

// Adaptive arming. A first write to an armed page costs as much as copying several; a page that
// is written in every epoch is therefore better left unarmed: it counts as written, is copied, and
// is dropped by whoever hashes it when it did not change. Pays off for consumers that tell the
// tracker so (Tracker::report_unchanged); without that a block looks hot for as long as it is
// left unarmed.
struct HotPageOptions {
  bool enabled = false;
  // Only their ratios matter. The defaults are dearer to faults than one thread alone would be:
  // with several, each fault and call also waits for the others.
  std::uint32_t stale_page_ns = 900;  // copying and hashing a page that did not change
  std::uint32_t fault_ns = 1900;      // first write to an armed page
  std::uint32_t ioctl_ns = 8000;      // one more scanning call, with other threads running
  // Every so many takes of a watch everything is armed, so that what cooled down is noticed. Only
  // where no consumer told what had not changed in the take before: it would show that better.
  std::uint32_t relearn_takes = 16;
};

}  // namespace pagetide
