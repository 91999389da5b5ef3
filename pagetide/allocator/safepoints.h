#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pagetide/base/error.h"
#include "pagetide/base/export.h"
#include "pagetide/base/lock_rank.h"

namespace pagetide {

class Mutator;

// Where the threads of a program, its mutators, can be held for a moment: each says now and then
// that what it writes is complete (Mutator::poll()), or that it writes nothing for a while
// (Mutator::Away). One for a program, or for the arenas that the same threads write to.
// See docs/safepoints.md.
//
// Thread-safe. It outlives its mutators. A forked child, where none of the other threads exist,
// makes one of its own.
class PAGETIDE_API Safepoints {
 public:
  Safepoints() = default;
  Safepoints(const Safepoints&) = delete;
  Safepoints& operator=(const Safepoints&) = delete;
  ~Safepoints() = default;

  // Returns when every mutator waits at a poll or is away, and then they stay so until resume(),
  // which the same thread calls. The calling thread may be a mutator itself and is not waited for.
  // Who calls while another one has stopped them waits until its resume(); that time does not
  // count. Other threads that become a mutator, or cease to be one, wait for resume() too; the
  // calling one does neither between the two, and stops the mutators of one Safepoints at a time.
  // Between the two it may take snapshots and roll back, with a snapshotter that does not stop them
  // again (Quiesce::none()). Allocates only to say what failed. Errors: timed_out, naming who is
  // late; all threads go on then. busy where this thread has stopped them already.
  Result<void> stop(std::chrono::milliseconds limit);
  void resume();

  // Threads that are mutators now. Not between stop() and resume().
  std::size_t mutators() const;

 private:
  friend class Mutator;
  struct Late;

  void let_go();
  Late find_late() const;

  // 0: nobody is asked to wait. Alone in its line: every poll reads it.
  alignas(64) std::atomic<std::uint32_t> request_ = 0;
  alignas(64) mutable RankedMutex mutex_{LockRank::safepoints, "safepoints"};
  std::uint32_t last_request_ = 0;
  std::atomic<const void*> stopped_by_ = nullptr;  // what only one thread has; of no other use
  Mutator* first_ = nullptr;
};

// Makes the thread that constructs it a mutator, at work, until it is destroyed by the same thread.
// Between two polls a mutator may write to the arena as it likes; it must not block for long
// without being away. Its methods are for its own thread alone.
//
// A second one of a thread is the same mutator as the first, and ends before it; the thread is at
// work while it exists. A thread that ends without destroying its mutator is away for ever.
class PAGETIDE_API Mutator {
 public:
  // `name` is for error messages; of what is longer the first 31 bytes. "": the name that the
  // thread has when it is late.
  explicit Mutator(Safepoints& points, std::string_view name = {});
  Mutator(const Mutator&) = delete;
  Mutator& operator=(const Mutator&) = delete;
  ~Mutator();

  // What this thread has written is complete. Waits while a stop is under way. One load if none is.
  void poll() {
    if (points_.request_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      wait_at_poll();
  }
  // From leave() to enter() the thread writes nothing that a stop should not see half done, and is
  // not waited for: for calls that block. enter() waits while a stop is under way. They nest.
  void leave();
  void enter();

  // leave() and enter() as an object.
  class Away {
   public:
    explicit Away(Mutator& mutator) : mutator_(mutator) { mutator_.leave(); }
    Away(const Away&) = delete;
    Away& operator=(const Away&) = delete;
    ~Away() { mutator_.enter(); }

   private:
    Mutator& mutator_;
  };

 private:
  friend class Safepoints;
  struct OfThread;

  static constexpr std::uint32_t kAway = 0;
  static constexpr std::uint32_t kAtWork = 1;

  static Mutator* find_mine(const Safepoints& points);
  void wait_at_poll();
  void become_away();
  void become_at_work();
  bool is_at_work() const { return state_.load(std::memory_order_seq_cst) == kAtWork; }

  Safepoints& points_;
  Mutator* const first_;  // of this thread for these points; this one if there was none before
  unsigned kept_depth_ = 0;
  // --- of first_ ---
  unsigned away_depth_ = 1;  // its thread's
  std::atomic<std::uint32_t> state_ = kAway;
  pid_t thread_id_ = 0;
  std::array<char, 32> name_{};
  Mutator* next_of_thread_ = nullptr;
  Mutator* next_ = nullptr;  // of points_, under its lock
  Mutator* previous_ = nullptr;

  static OfThread& of_thread();
};

}  // namespace pagetide
