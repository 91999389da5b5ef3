#include "pagetide/base/fork_held.h"

#include <pthread.h>

namespace pagetide {

struct ForkHeldList {
  RankedMutex mutex{LockRank::fork_held, "mutexes held over fork"};
  ForkHeld* first = nullptr;

  void add(ForkHeld& held) {
    static const int forks = ::pthread_atfork(before_fork, after_fork, after_fork);
    (void)forks;
    const RankedLock lock(mutex);
    held.next_ = first;
    if (first != nullptr) first->previous_ = &held;
    first = &held;
  }
  void remove(ForkHeld& held) {
    const RankedLock lock(mutex);
    (held.previous_ != nullptr ? held.previous_->next_ : first) = held.next_;
    if (held.next_ != nullptr) held.next_->previous_ = held.previous_;
  }

  static void before_fork();
  static void after_fork();
};

namespace {

constinit ForkHeldList list;

}  // namespace

void ForkHeldList::before_fork() {
  list.mutex.lock_for_fork();
  for (ForkHeld* each = list.first; each != nullptr; each = each->next_) {
    each->mutex_.lock_for_fork();
  }
}

void ForkHeldList::after_fork() {
  for (ForkHeld* each = list.first; each != nullptr; each = each->next_) {
    each->mutex_.unlock_after_fork();
  }
  list.mutex.unlock_after_fork();
}

ForkHeld::ForkHeld(RankedMutex& mutex) : mutex_(mutex) {
  list.add(*this);
}

ForkHeld::~ForkHeld() {
  list.remove(*this);
}

}  // namespace pagetide
