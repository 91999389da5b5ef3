#include "pagetide/base/lock_rank.h"

#include <array>
#include <cstddef>
#include <string>

#include "pagetide/base/fatal.h"

namespace pagetide {

#ifdef PAGETIDE_CHECK_LOCK_RANKS

namespace {

// The locks this thread holds, in the order it took them.
struct HeldLocks {
  std::array<const RankedMutex*, 16> locks{};
  std::size_t count = 0;
};
thread_local HeldLocks held;

void check_and_push(const RankedMutex& mutex) {
  for (std::size_t i = 0; i < held.count; ++i) {
    const RankedMutex& other = *held.locks.at(i);
    if (other.rank() >= mutex.rank()) {
      fatal(std::string("lock order: ") + mutex.name() + " taken while holding " + other.name());
    }
  }
  if (held.count == held.locks.size()) fatal("lock order: too many locks held at once");
  held.locks.at(held.count++) = &mutex;
}

void pop(const RankedMutex& mutex) {
  for (std::size_t i = held.count; i-- > 0;) {
    if (held.locks.at(i) != &mutex) continue;
    for (std::size_t j = i + 1; j < held.count; ++j) held.locks.at(j - 1) = held.locks.at(j);
    --held.count;
    return;
  }
  fatal(std::string("lock order: ") + mutex.name() + " released by a thread that does not hold it");
}

}  // namespace

void RankedMutex::lock() {
  check_and_push(*this);
  mutex_.lock();
}

void RankedMutex::unlock() {
  // First: releasing what another thread holds is undefined.
  pop(*this);
  mutex_.unlock();
}

void RankedMutex::keep() {
  pop(*this);
}

#else

void RankedMutex::lock() {
  mutex_.lock();
}
void RankedMutex::unlock() {
  mutex_.unlock();
}
void RankedMutex::keep() {}

#endif

}  // namespace pagetide
