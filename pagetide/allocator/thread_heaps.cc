#include "pagetide/allocator/thread_heaps.h"

#include <pthread.h>

#include <atomic>
#include <utility>

#include "pagetide/allocator/fork_repair.h"
#include "pagetide/allocator/heap_activity.h"
#include "pagetide/allocator/heap_race_points.h"

namespace pagetide {

namespace detail {

constinit thread_local std::array<ThreadHeapLink, kThreadHeapLinks> thread_heap_links{};

}  // namespace detail

#ifdef PAGETIDE_CHECK_LOCK_RANKS
constinit std::atomic<void (*)()> race_point_hook = nullptr;
#endif

// Every ThreadHeaps of the process, so that a thread that ends can leave them all, and so that no
// lock is held by another thread when the process forks.
struct ThreadHeapRegistry {
  RankedMutex mutex{LockRank::heap_registry, "heap registry"};
  ThreadHeaps* first = nullptr;

  void add(ThreadHeaps& heaps) {
    static const int forks =
        ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    (void)forks;
    const RankedLock lock(mutex);
    heaps.next_ = first;
    first = &heaps;
  }
  void remove(ThreadHeaps& heaps) {
    const RankedLock lock(mutex);
    ThreadHeaps** link = &first;
    while (*link != &heaps) link = &(*link)->next_;
    *link = heaps.next_;
  }
  void thread_ends(std::uint64_t thread) {
    const RankedLock lock(mutex);
    for (ThreadHeaps* each = first; each != nullptr; each = each->next_) each->detach(thread);
  }

  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();
  void unlock_all();
};

namespace {

constinit ThreadHeapRegistry registry;
constinit std::atomic<std::uint64_t> ids = 1;
constinit std::atomic<std::uint64_t> threads = 1;

// What a thread is to the heaps. After its end nothing of it is attached any more.
struct ThisThread {
  std::uint64_t token = 0;
  bool ended = false;
};
constinit thread_local ThisThread this_thread;

struct AtThreadEnd {
  ~AtThreadEnd() {
    const InHeap in_heap;
    this_thread.ended = true;
    detail::heap_thread.heap_id = 0;
    detail::thread_heap_links = {};
    registry.thread_ends(this_thread.token);
  }
};

}  // namespace

void ThreadHeapRegistry::before_fork() {
  registry.mutex.lock_for_fork();
  for (ThreadHeaps* each = registry.first; each != nullptr; each = each->next_) {
    each->lock_for_fork();
  }
}

void ThreadHeapRegistry::unlock_all() {
  for (ThreadHeaps* each = first; each != nullptr; each = each->next_) each->unlock_after_fork();
  mutex.unlock_after_fork();
}

void ThreadHeapRegistry::after_fork_in_parent() {
  registry.unlock_all();
}

// There is one thread now.
void ThreadHeapRegistry::after_fork_in_child() {
  registry.unlock_all();
  const RankedLock lock(registry.mutex);
  for (ThreadHeaps* each = registry.first; each != nullptr; each = each->next_) {
    each->repair_in_child(this_thread.token);
  }
}

Result<std::unique_ptr<ThreadHeaps>> ThreadHeaps::create(HeapTables& tables) {
  auto heaps = VirtualArray<ThreadHeap>::create(kMaxThreads + 2);
  if (!heaps) return propagate(heaps);
  return std::unique_ptr<ThreadHeaps>(new ThreadHeaps(tables, std::move(*heaps)));
}

ThreadHeaps::ThreadHeaps(HeapTables& tables, VirtualArray<ThreadHeap> heaps)
    : id_(ids.fetch_add(1)), tables_(tables), heaps_(std::move(heaps)) {
  for (std::size_t i = 0; i < count_; ++i) heaps_[i].begin(static_cast<std::uint32_t>(i + 1));
  registry.add(*this);
}

ThreadHeaps::~ThreadHeaps() {
  registry.remove(*this);
}

ThreadHeap* ThreadHeaps::find_or_attach() {
  detail::ThreadHeapLink& link = detail::thread_heap_links[id_ % detail::kThreadHeapLinks];
  if (link.heap_id != id_) {
    if (this_thread.ended) return nullptr;
    if (this_thread.token == 0) {
      this_thread.token = threads.fetch_add(1);
      // Its destructor is what counts.
      static thread_local const AtThreadEnd at_end;
      (void)&at_end;
    }
    ThreadHeap* heap = attach(this_thread.token);
    if (heap == nullptr) return nullptr;
    link = {id_, heap};
  }
  detail::heap_thread.heap_id = link.heap_id;
  detail::heap_thread.thread_heap = link.thread_heap;
  return link.thread_heap;
}

// The heap that the thread has, else the first one that belongs to nobody.
ThreadHeap* ThreadHeaps::attach(std::uint64_t thread) {
  const RankedLock lock(mutex_);
  ThreadHeap* unused = nullptr;
  for (std::size_t i = 1; i < count_; ++i) {
    if (heaps_[i].thread == thread) return &heaps_[i];
    if (heaps_[i].thread == 0 && unused == nullptr) unused = &heaps_[i];
  }
  if (unused == nullptr) {
    if (count_ == heaps_.size()) return nullptr;
    unused = &heaps_[count_++];
    unused->begin(static_cast<std::uint32_t>(count_));
  }
  unused->thread = thread;
  return unused;
}

void ThreadHeaps::detach(std::uint64_t thread) {
  const RankedLock lock(mutex_);
  for (std::size_t i = 1; i < count_; ++i) {
    if (heaps_[i].thread != thread) continue;
    heaps_[i].drain(tables_);
    heaps_[i].put_slots_back(tables_);
    // Its empty spans are not released here: threads may end while a snapshot is being taken, for
    // which the span table has to stand still.
    heaps_[i].thread = 0;
  }
}

bool ThreadHeaps::release_unowned() {
  bool any = false;
  (void)with_unowned([&](ThreadHeap& heap) {
    any = heap.release_empty_spans(tables_) || any;
    return false;
  });
  return any;
}

void ThreadHeaps::settle() {
  const RankedLock lock(mutex_);
  for (std::size_t i = 0; i < count_; ++i) {
    heaps_[i].drain(tables_);
    heaps_[i].put_slots_back(tables_);
  }
}

// All thread heaps but that of the thread that forked belong to nobody now. What they say of their
// spans is not relied upon: their threads were copied in the middle of something.
void ThreadHeaps::repair_in_child(std::uint64_t forking_thread) {
  if (!in_use_) return;
  const RankedLock lock(mutex_);
  ThreadHeap* heir = &heaps_[1];
  for (std::size_t i = 0; i < count_; ++i) {
    heaps_[i].forget();
    if (heaps_[i].thread == forking_thread && forking_thread != 0) {
      heir = &heaps_[i];
    } else {
      heaps_[i].thread = 0;
    }
  }
  repair_after_fork(tables_, *heir);
}

void ThreadHeaps::lock_for_fork() {
  mutex_.lock_for_fork();
  shared_mutex_.lock_for_fork();
  tables_.supply.lock_for_fork();
}

void ThreadHeaps::unlock_after_fork() {
  tables_.supply.unlock_after_fork();
  shared_mutex_.unlock_after_fork();
  mutex_.unlock_after_fork();
}

}  // namespace pagetide
