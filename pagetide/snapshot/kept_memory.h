#pragma once

#include <cstddef>
#include <span>

namespace pagetide {

// At the end of a snapshot: of memory of which `used` bytes held copies, and `kept` bytes can have
// pages. Gives back to the system what a like snapshot will not need, by halves, so that a few
// small snapshots in between do not make the next one wait for pages. What stays is cleared if
// `clear`: copies must not outlive what they were made of, which may be freed, and cleared, any
// time.
void tidy_memory(std::span<std::byte> memory, std::size_t used, std::size_t& kept, bool clear);

}  // namespace pagetide
