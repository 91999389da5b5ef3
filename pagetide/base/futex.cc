#include "pagetide/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace pagetide::sys {

bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t value,
                const Deadline& deadline) {
  timespec until{};
  if (deadline) {
    const auto since_start = std::chrono::duration_cast<std::chrono::nanoseconds>(
        deadline->time_since_epoch());  // of CLOCK_MONOTONIC, as the kernel counts
    until.tv_sec = static_cast<time_t>(since_start.count() / 1'000'000'000);
    until.tv_nsec = static_cast<long>(since_start.count() % 1'000'000'000);
  }
  const long r = ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, value,
                           deadline ? &until : nullptr, nullptr, FUTEX_BITSET_MATCH_ANY);
  return r == 0 || errno != ETIMEDOUT;
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace pagetide::sys
