#pragma once

#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "pagetide/base/error.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide {

// Blocks signals of this thread while it lives.
class BlockedSignals {
 public:
  enum class Except : std::uint8_t {
    nothing,
    faults,  // SIGSEGV and SIGBUS stay: watched memory may be written to meanwhile
  };
  explicit BlockedSignals(Except except = Except::nothing) {
    sigset_t signals;
    sigfillset(&signals);
    if (except == Except::faults) {
      sigdelset(&signals, SIGSEGV);
      sigdelset(&signals, SIGBUS);
    }
    (void)::pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { (void)::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

// Mutual exclusion between a signal handler and ordinary code, safe because of three rules:
//  - who holds it has all signals blocked (a handler's mask, BlockedSignals), so that no handler
//    of the same thread can wait for it and no stop by a signal can hit its holder;
//  - who holds it writes to no memory that could be watched and calls nothing but the kernel;
//  - its word is wiped in a forked child, where a holder of the parent does not exist.
// It is held for one or a few system calls. Who has to wait sleeps in the kernel (futex), so that
// a waiter of high priority lets the holder run.
class HandlerLock {
 public:
  static Result<HandlerLock> create() {
    auto word = VirtualArray<std::uint32_t>::create(1);
    if (!word) return propagate(word);
    // Linux 4.14. Before, a child that was forked while the lock was held would wait for ever.
    if (::madvise(word->span().data(), sizeof(std::uint32_t), MADV_WIPEONFORK) != 0) {
      return system_failure("keep a lock from forked children (MADV_WIPEONFORK)", errno,
                            "Linux 4.14 or newer is needed; the compare back end works without.");
    }
    return HandlerLock(std::move(*word));
  }

  void lock() {
    std::uint32_t seen = kFree;
    if (state().compare_exchange_strong(seen, kHeld, std::memory_order_acquire)) return;
    while (state().exchange(kAwaited, std::memory_order_acquire) != kFree) {
      (void)::syscall(SYS_futex, &word_[0], FUTEX_WAIT_PRIVATE, kAwaited, nullptr, nullptr, 0);
    }
  }
  void unlock() {
    if (state().exchange(kFree, std::memory_order_release) == kHeld) return;
    (void)::syscall(SYS_futex, &word_[0], FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

 private:
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kHeld = 1;
  static constexpr std::uint32_t kAwaited = 2;  // held, and somebody may be asleep

  explicit HandlerLock(VirtualArray<std::uint32_t> word) : word_(std::move(word)) {}
  std::atomic_ref<std::uint32_t> state() { return std::atomic_ref(word_[0]); }

  VirtualArray<std::uint32_t> word_;
};

}  // namespace pagetide
