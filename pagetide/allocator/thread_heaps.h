#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "pagetide/allocator/heap_activity.h"
#include "pagetide/allocator/heap_tables.h"
#include "pagetide/allocator/thread_heap.h"
#include "pagetide/base/error.h"
#include "pagetide/base/lock_rank.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide {

namespace detail {

// Which ThreadHeap the calling thread has in a heap.
struct ThreadHeapLink {
  std::uint64_t heap_id;  // 0: none
  ThreadHeap* thread_heap;
};
inline constexpr std::size_t kThreadHeapLinks = 4;
// Of the few heaps that it used. Found without a call: a library that is loaded with the program
// has room for such variables.
[[gnu::tls_model(
    "initial-exec")]] extern constinit thread_local std::array<ThreadHeapLink, kThreadHeapLinks>
    thread_heap_links;

}  // namespace detail

// The thread heaps of one heap. A thread gets one when it first allocates, of a thread that has
// ended if there is one; it keeps it until it ends. All methods are thread-safe unless they say
// something else.
class ThreadHeaps {
 public:
  // Threads that can have a heap of their own at the same time; all others share one.
  static constexpr std::size_t kMaxThreads = 4000;

  // `tables` outlives it.
  static Result<std::unique_ptr<ThreadHeaps>> create(HeapTables& tables);
  ThreadHeaps(const ThreadHeaps&) = delete;
  ThreadHeaps& operator=(const ThreadHeaps&) = delete;
  ~ThreadHeaps();

  std::uint64_t id() const { return id_; }
  // The calling thread's; nullptr: it has none, because it is ending or because there are too many,
  // and must use the shared one. If it has one, heap_thread says so from now on.
  ThreadHeap* find_or_attach();
  // Calls use(the shared heap), under its lock.
  template <typename Use>
  auto with_shared(Use&& use) {
    const RankedLock lock(shared_mutex_);
    return use(heaps_[0]);
  }
  // The heap's layout is there: from now on a forked child may look at it.
  void begin_use() { in_use_ = true; }
  ThreadHeap& by_number(std::uint32_t number) { return heaps_[number - 1]; }

  std::size_t count() const { return count_; }

  // For when nothing is to be had any more, from inside a heap operation. Gives the empty spans of
  // the heaps that belong to no thread to the supply; whether there was one.
  bool release_unowned();
  // Calls use(heap) for the heaps that belong to no thread until one returns true; whether one did.
  template <typename Use>
  bool with_unowned(Use&& use) {
    const RankedLock lock(mutex_);
    for (std::size_t i = 1; i < count_; ++i) {
      if (heaps_[i].thread != 0) continue;
      heaps_[i].drain(tables_);
      const bool done = use(heaps_[i]);
      heaps_[i].put_slots_back(tables_);
      if (done) return true;
    }
    return false;
  }

  // --- only while no other thread is inside the heap; threads may end meanwhile ---
  // Takes in all frees of other threads, and puts all words back.
  void settle();
  // Forgets all spans, in whatever heap they are, and calls adopt(the one that shall have them).
  template <typename Adopt>
  auto reset(Adopt&& adopt) {
    const RankedLock lock(mutex_);
    for (std::size_t i = 0; i < count_; ++i) heaps_[i].forget();
    return adopt(heaps_[1]);
  }
  // Calls refresh(the thread heap that adopts spans which nobody had).
  template <typename Refresh>
  auto refresh(Refresh&& refresh) {
    const RankedLock lock(mutex_);
    return refresh(heaps_[1]);
  }

 private:
  friend struct ThreadHeapRegistry;

  ThreadHeaps(HeapTables& tables, VirtualArray<ThreadHeap> heaps);
  ThreadHeap* attach(std::uint64_t thread);
  void detach(std::uint64_t thread);
  void lock_for_fork();
  void unlock_after_fork();
  void repair_in_child(std::uint64_t forking_thread);

  const std::uint64_t id_;  // of no other in this process, ever
  HeapTables& tables_;
  VirtualArray<ThreadHeap> heaps_;  // [0] is shared, [1] adopts what a restored image holds
  std::size_t count_ = 2;           // of these were used at some time
  bool in_use_ = false;
  RankedMutex mutex_{LockRank::heap_threads, "heap threads"};
  RankedMutex shared_mutex_{LockRank::heap_shared, "shared thread heap"};
  ThreadHeaps* next_ = nullptr;  // in the registry
};

}  // namespace pagetide
