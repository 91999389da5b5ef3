#pragma once

#ifdef PAGETIDE_CHECK_LOCK_RANKS
#include <atomic>

#include "pagetide/base/export.h"
#endif

namespace pagetide {

// Called in the windows of the protocol of remote frees where another thread may come between:
// in debug and sanitizer builds a stress test makes threads yield there, else it is nothing.
#ifdef PAGETIDE_CHECK_LOCK_RANKS
extern PAGETIDE_API std::atomic<void (*)()> race_point_hook;
inline void race_point() {
  if (void (*hook)() = race_point_hook.load(std::memory_order_relaxed)) hook();
}
#else
inline void race_point() {}
#endif

}  // namespace pagetide
