#pragma once

#include <cstdint>
#include <mutex>

#include "pagetide/base/export.h"

namespace pagetide {

// Every mutex of the library names its rank. A thread may only take a lock whose rank is higher
// than that of every lock it already holds; debug and sanitizer builds check this on each lock()
// and abort with both names. The idea is jemalloc's witness (witness.h).
enum class LockRank : std::uint8_t {
  snapshotter = 10,         // one take() or rollback() at a time
  safepoints = 15,          // which threads a stop waits for; kept for the whole stop
  store = 20,               // the store's in-memory index
  fork_held = 29,           // all mutexes that are held over a fork
  heap_roots = 30,          // root table of an arena
  heap_registry = 36,       // all heaps of the process
  heap_threads = 40,        // which thread has which part of a heap
  heap_shared = 45,         // the part of threads that have none of their own
  heap_spans = 50,          // span supply of a heap
  region = 60,              // what of a region is committed
  tracker = 70,             // watches and purge log
  soft_dirty_opening = 79,  // makes the process's one soft-dirty reader
  soft_dirty = 80,          // the soft-dirty bits, which a process has once
  signal_handlers = 90,     // installs the process's fault handlers
  clear_choice = 100,       // which kernels clear memory
};

class PAGETIDE_API RankedMutex {
 public:
  constexpr explicit RankedMutex(LockRank rank, const char* name) : name_(name), rank_(rank) {}
  RankedMutex(const RankedMutex&) = delete;
  RankedMutex& operator=(const RankedMutex&) = delete;

  // Both sides are always functions of the library, so that an application and a library built
  // with different settings agree.
  void lock();
  void unlock();

  // By the thread that holds it, once, before unlock_kept(): it is no longer among the locks whose
  // ranks count. For what lasts longer than a call of the library: only the program knows what it
  // does meanwhile.
  void keep();
  void unlock_kept() { mutex_.unlock(); }

  // For pthread_atfork(): all locks of a rank are held at once, and released in the child by a
  // thread that never took them.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork() { mutex_.unlock(); }

  LockRank rank() const { return rank_; }
  const char* name() const { return name_; }

 private:
  std::mutex mutex_;
  const char* name_;
  LockRank rank_;
};

using RankedLock = std::lock_guard<RankedMutex>;

}  // namespace pagetide
