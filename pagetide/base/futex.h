#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace pagetide::sys {

// When to stop waiting; none: never.
using Deadline = std::optional<std::chrono::steady_clock::time_point>;

// Sleeps while `word` has this value; also returns for no reason now and then. False: the deadline
// has passed. A change of the word that is followed by futex_wake_all() is never missed: the kernel
// compares and goes to sleep in one step. Allocates nothing, takes no lock.
bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t value,
                const Deadline& deadline = {});
void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace pagetide::sys
