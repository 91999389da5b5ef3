#pragma once

#include <atomic>
#include <cstdint>

#include "pagetide/base/export.h"

namespace pagetide {

// Whether a thread is inside a heap operation, where nobody may stop it: its lists and the bitmaps
// may disagree there, and it may hold the heap's locks. Who stops threads by signals asks for it
// with request_stop_when_outside().
//
// Only the thread itself and signal handlers on it look at this. So the order of a thread's own
// steps is all that counts: nothing costs more than a plain store or load.
struct HeapActivity {
  std::atomic<std::uint32_t> inside = 0;  // operations within each other
  std::atomic<void (*)()> pending = nullptr;
};

namespace detail {

// Found without a call, which a signal handler could not make: the first access by another model
// may allocate.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local HeapActivity heap_activity;

// Kept out of line: it is hardly ever called.
PAGETIDE_API void run_pending_stop();

}  // namespace detail

// The calling thread is inside a heap operation from here to leave_heap().
inline void enter_heap() {
  HeapActivity& mine = detail::heap_activity;
  mine.inside.store(mine.inside.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  // What follows stays behind it, for a signal handler on this thread.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// Whether there is a stop to be run; run_pending_stop() does it. A request that comes before the
// store is found after it; one that comes later is granted by the handler itself.
[[nodiscard]] inline bool leave_heap() {
  HeapActivity& mine = detail::heap_activity;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  mine.inside.store(mine.inside.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return mine.pending.load(std::memory_order_relaxed) != nullptr;
}

// The calling thread is inside a heap operation while this lives.
class InHeap {
 public:
  InHeap() { enter_heap(); }
  InHeap(const InHeap&) = delete;
  InHeap& operator=(const InHeap&) = delete;
  ~InHeap() {
    if (leave_heap()) [[unlikely]]
      detail::run_pending_stop();
  }
};

// Calls hook() on the calling thread: at once where it is not inside a heap operation, else when
// it leaves the outermost one, before that returns to its caller. For signal handlers: takes no
// lock, allocates nothing. Of several requests during one operation the last one's hook is called,
// once.
PAGETIDE_API void request_stop_when_outside(void (*hook)());

}  // namespace pagetide
