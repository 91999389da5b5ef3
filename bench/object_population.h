#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "pagetide/allocator/arena.h"

namespace pagetide::bench {

// Objects of 16 to 256 bytes in an arena, at random. False results: the arena is exhausted. Not
// thread-safe.
class ObjectPopulation {
 public:
  ObjectPopulation(Arena& arena, std::size_t count) : arena_(arena), objects_(count) {}

  // Frees `count` of them, chosen at random, each followed by a new one in its place.
  bool replace(std::size_t count);
  // Frees every object whose number leaves `remainder` when it is divided by `step`.
  void free_each(std::size_t step, std::size_t remainder);
  // Makes those that are missing: all at first, then what was freed.
  bool fill();

 private:
  bool make(void*& object);

  Arena& arena_;
  std::mt19937_64 random_{1};
  std::vector<void*> objects_;
};

}  // namespace pagetide::bench
