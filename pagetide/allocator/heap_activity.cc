#include "pagetide/allocator/heap_activity.h"

#include <cerrno>

namespace pagetide {

namespace detail {

constinit thread_local HeapThread heap_thread;

void run_pending_stop() {
  HeapActivity& mine = heap_thread.activity;
  mine.fast_path.store(0, std::memory_order_relaxed);
  if (mine.inside.load(std::memory_order_relaxed) != 0) return;
  const int kept_errno = errno;  // free() leaves it alone
  // Another signal may come between the two, and then this one's hook is called.
  if (void (*hook)() = mine.pending.exchange(nullptr, std::memory_order_relaxed)) hook();
  errno = kept_errno;
}

}  // namespace detail

void request_stop_when_outside(void (*hook)()) {
  HeapActivity& mine = detail::heap_thread.activity;
  const std::uint8_t fast_path = mine.fast_path.load(std::memory_order_relaxed);
  if (mine.inside.load(std::memory_order_relaxed) == 0 && fast_path == 0) return hook();
  mine.pending.store(hook, std::memory_order_relaxed);
  if (fast_path != 0) {
    mine.fast_path.store(HeapActivity::kOnFastPath + 1, std::memory_order_relaxed);
  }
}

}  // namespace pagetide
