#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pagetide/allocator/clear/clear.h"

// Timing ways to clear blocks of memory against each other. Not thread-safe.
//
// What is cleared must not be zero already: CPUs of some microcode levels elide the write-back of
// zeros over zeros, so clearing the same block again and again measures the microcode. So a whole
// chunk of blocks is filled with a pattern, cleared between two clock reads, and filled again. The
// fill also decides where the blocks are when the clock starts: ordinary stores leave a chunk in
// the cache as far as it fits (hot), non-temporal ones leave nothing of it there (cold).

namespace pagetide::bench {

enum class Cache : std::uint8_t { hot, cold };

struct ClearCell {
  std::size_t bytes = 0;
  bool aligned = true;  // to a cache line; else 7 bytes behind one
  Cache cache = Cache::hot;
};

// One of the ways that are compared.
struct Clearer {
  std::string name;
  // Clears `count` blocks that follow each other.
  std::function<void(std::byte* first, std::size_t bytes, std::size_t count)> clear;
};

// The kernel, called through a pointer for each block.
Clearer clearer_of(ClearKernel kernel);
// clear_memory(), inlined as it is in the heap, and told where the blocks are.
Clearer clearer_of_the_heap(Cache cache);
// All kernels that this CPU has, in their order.
std::vector<Clearer> clearers_of_all_kernels();

// Seconds for one block, for each way: medians over rounds in which all ways take their turn, in
// another order each round. The cost of reading the clock is subtracted. Empty where there is no
// memory, or where one left a byte that is not zero.
std::vector<double> race(const ClearCell& cell, const std::vector<Clearer>& clearers);

}  // namespace pagetide::bench
