#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pagetide/pagetide.hpp"

namespace sqlite_memory {

// A word in SQLite's own data that has the value of an address in the heap.
struct StaticPointer {
  std::string object;      // the file that was loaded
  std::size_t offset = 0;  // of the word, from where it was loaded
  std::uintptr_t value = 0;
};

// Looks through all writable data of the library, or of the program where SQLite is linked into it.
// Whatever is found would survive a rollback of the heap and point to something else then. (Not
// seen is a variable of the library's that the program itself names: the linker may have moved it.)
// Not while another thread uses SQLite. Cost: reads some 10 KiB.
std::vector<StaticPointer> pointers_from_statics(pagetide::ByteRange heap);

// Empty, or what was found.
std::string describe(const std::vector<StaticPointer>& found);

}  // namespace sqlite_memory
