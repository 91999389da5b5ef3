#include "pagetide/allocator/heap_activity.h"

#include <cerrno>

namespace pagetide {

namespace detail {

constinit thread_local HeapActivity heap_activity;

void run_pending_stop() {
  HeapActivity& mine = heap_activity;
  if (mine.inside.load(std::memory_order_relaxed) != 0) return;
  const int kept_errno = errno;  // free() leaves it alone
  // Another signal may come between the two, and then this one's hook is called.
  if (void (*hook)() = mine.pending.exchange(nullptr, std::memory_order_relaxed)) hook();
  errno = kept_errno;
}

}  // namespace detail

void request_stop_when_outside(void (*hook)()) {
  HeapActivity& mine = detail::heap_activity;
  if (mine.inside.load(std::memory_order_relaxed) == 0 &&
      !mine.on_fast_path.load(std::memory_order_relaxed)) {
    return hook();
  }
  mine.pending.store(hook, std::memory_order_relaxed);
}

}  // namespace pagetide
