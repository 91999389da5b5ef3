#pragma once

#include <cstddef>
#include <string>

namespace pagetide::bench {

// Resident memory of this process without its OwnTables, which are all in memory; from /proc, 0
// where it cannot be read.
std::size_t resident_kib();
std::size_t peak_resident_kib();

// The file that malloc comes from: that of a preloaded library, or libc's.
std::string malloc_library();

}  // namespace pagetide::bench
