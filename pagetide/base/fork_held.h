#pragma once

#include "pagetide/base/export.h"
#include "pagetide/base/lock_rank.h"

namespace pagetide {

// A mutex that nobody else holds while the process forks, so that a child can take it. For mutexes
// under which no other lock of the library is taken, and that are not taken under one: they are
// held in no order. Member of the owner of the mutex, behind it.
class PAGETIDE_API ForkHeld {
 public:
  explicit ForkHeld(RankedMutex& mutex);
  ForkHeld(const ForkHeld&) = delete;
  ForkHeld& operator=(const ForkHeld&) = delete;
  ~ForkHeld();

 private:
  friend struct ForkHeldList;
  RankedMutex& mutex_;
  ForkHeld* next_ = nullptr;
  ForkHeld* previous_ = nullptr;
};

}  // namespace pagetide
