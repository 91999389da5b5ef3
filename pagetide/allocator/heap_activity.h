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
  // 0: not on a fast path; kOnFastPath; one more where there is also a stop to be run.
  std::atomic<std::uint8_t> fast_path = 0;
  std::atomic<std::uint32_t> inside = 0;  // operations within each other
  std::atomic<void (*)()> pending = nullptr;

  static constexpr std::uint8_t kOnFastPath = 1;
};

class ThreadHeap;

// What a thread is to the heaps of the process.
struct HeapThread {
  // The heap that it used last, and its part of it. 0: none.
  std::uint64_t heap_id = 0;
  ThreadHeap* thread_heap = nullptr;
  HeapActivity activity;
};

namespace detail {

// Found without a call, which a signal handler could not make: the first access by another model
// may allocate.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local HeapThread heap_thread;

// Kept out of line: it is hardly ever called.
PAGETIDE_API void run_pending_stop();

}  // namespace detail

// The calling thread is inside a heap operation while this lives. Others may lie within it.
class InHeap {
 public:
  InHeap() {
    HeapActivity& mine = detail::heap_thread.activity;
    mine.inside.store(mine.inside.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    // What follows stays behind it, for a signal handler on this thread.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  InHeap(const InHeap&) = delete;
  InHeap& operator=(const InHeap&) = delete;
  // A request that comes before the store is found after it; one that comes later is granted by the
  // handler itself.
  ~InHeap() {
    HeapActivity& mine = detail::heap_thread.activity;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    mine.inside.store(mine.inside.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (mine.pending.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
      detail::run_pending_stop();
    }
  }
};

// The same for the fast paths, which call nothing: a thread that is on one is on no other, and not
// inside anything else.
inline void enter_fast_path(HeapActivity& mine) {
  mine.fast_path.store(HeapActivity::kOnFastPath, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}
// Whether there is a stop to be run: run_pending_stop() does it.
[[nodiscard]] inline bool leave_fast_path(HeapActivity& mine) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
#if defined(__x86_64__)
  // No signal can come in the middle of an instruction; the language has no such operation that is
  // not atomic for other threads too, which costs ten times as much.
  static_assert(sizeof(mine.fast_path) == 1);
  bool has_pending;
  asm volatile("decb %0" : "+m"(mine.fast_path), "=@ccnz"(has_pending) : : "memory");
  return has_pending;
#else
  mine.fast_path.store(0, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return mine.pending.load(std::memory_order_relaxed) != nullptr;
#endif
}
// It goes on as InHeap, at once: a stop is run when that ends.
inline void turn_off_fast_path(HeapActivity& mine) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  mine.fast_path.store(0, std::memory_order_relaxed);
}

// Calls hook() on the calling thread: at once where it is not inside a heap operation, else when
// it leaves the outermost one, before that returns to its caller. For signal handlers: takes no
// lock, allocates nothing. Of several requests during one operation the last one's hook is called,
// once.
PAGETIDE_API void request_stop_when_outside(void (*hook)());

}  // namespace pagetide
