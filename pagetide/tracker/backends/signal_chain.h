#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"

namespace pagetide {

// Memory faults (SIGSEGV, SIGBUS) as a service inside the process: back ends that learn of writes
// from a signal say which addresses are theirs, and everything else goes on to the handler that
// was there before, as if we were not.
//
//  - The handler for a signal is installed with the first watch for it and stays for the life of
//    the process: somebody else's handler may have been put on top and call ours.
//  - A fault is ours when the kernel made it (si_code > 0) and si_addr lies in a watched range.
//    A signal sent by kill() and the like always goes on.
//  - What goes on: a function is called with the mask it asked for; SIG_IGN ignores a sent signal;
//    SIG_DFL, and SIG_IGN for a real fault, end the process by the same signal at the same
//    instruction, so that a core dump shows the culprit. SA_RESETHAND is honoured.
//  - Runs with all signals blocked, on the alternate stack where the thread has one; takes no
//    lock, allocates nothing, and leaves errno as it was. A thread that blocks SIGSEGV or SIGBUS
//    is killed by the kernel at its first such fault, with us as without.
//  - Never watch stacks, thread-local storage or memory of a handler itself: the kernel cannot
//    deliver a signal onto a stack it may not write to.
//  - A forked child inherits handler and watches: functions are called there for the child's own
//    copy of the memory. It may watch the same ranges for itself; its own watches are asked first.

// What a watch's function says to a fault.
struct FaultAnswer {
  enum class Kind : std::uint8_t {
    not_mine,  // goes on to the previous handler
    resolved,  // the access will work now: repeat it
    settled,   // nothing was left to do: most likely another thread was first
  };
  Kind kind = Kind::not_mine;
  // With settled: changes whenever the watch takes away access again. A thread that comes back
  // with the same address and the same number has a fault that is not about the watch (a page
  // that was never writable, a jump into data), and it goes on to the previous handler. Without
  // this it would repeat for ever.
  std::uint64_t generation = 0;
};

struct MemoryFault {
  int signal = 0;
  int code = 0;                // si_code: SEGV_ACCERR, BUS_ADRERR, ...
  std::uintptr_t address = 0;  // to the byte
};

// Called in the signal handler of the faulting thread, by any number of threads at once, until
// the watch is gone. May do what a signal handler may; errno is kept for it.
using FaultFunction = FaultAnswer (*)(void* owner, const MemoryFault& fault) noexcept;

// One watched range; ends with the value. Thread-safe, and so are the making and ending of others
// meanwhile. Ending waits until no thread is inside the function any more, so what `owner` points
// to may be freed afterwards. Faults that were on their way then count as settled: take
// protection off before the watch ends.
class FaultWatch {
 public:
  static constexpr std::size_t kMaxWatches = 1024;  // of all signals, in one process

  // `signal` is SIGSEGV or SIGBUS. Errors: already_exists when a watch of this process for the same
  // signal overlaps `range`; out_of_memory when there are kMaxWatches; system_failure.
  static Result<FaultWatch> add(int signal, ByteRange range, FaultFunction function, void* owner);

  // Whether a part of `range` is watched by the process that this one was forked from.
  static bool is_inherited(int signal, ByteRange range);

  // busy when the signal's handler is not ours any more: writes to watched memory might end in
  // the other one. Fine before the first watch for the signal.
  static Result<void> check_handler(int signal);

  FaultWatch() = default;
  FaultWatch(FaultWatch&& other) noexcept : place_(std::exchange(other.place_, 0)) {}
  FaultWatch& operator=(FaultWatch&& other) noexcept {
    if (this != &other) {
      end();
      place_ = std::exchange(other.place_, 0);
    }
    return *this;
  }
  FaultWatch(const FaultWatch&) = delete;
  FaultWatch& operator=(const FaultWatch&) = delete;
  ~FaultWatch() { end(); }

  void end();

 private:
  explicit FaultWatch(std::size_t place) : place_(place) {}

  std::size_t place_ = 0;  // in the table, counted from 1; 0: none
};

}  // namespace pagetide
