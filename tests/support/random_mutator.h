#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "pagetide/allocator/arena.h"

namespace pagetide {

// Makes random use of an arena: allocates small and large blocks, frees, writes, clears. Keeps
// the list of its blocks in the arena itself (a root), so that it goes on after a rollback or in
// an arena that was opened from a store.
class RandomMutator {
 public:
  RandomMutator(Arena& arena, std::uint64_t seed);
  // From now on many frees leave the bytes of their block alone, and blocks are cleared when they
  // are handed out instead: what a heap under ClearPolicy::deferred may do.
  void defer_clearing() { defers_clearing_ = true; }

  void step();
  void steps(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) step();
  }

 private:
  struct Block {
    std::byte* data;
    std::size_t size;
  };
  using Blocks = std::pmr::vector<Block>;

  void allocate();
  void write(const Block& block);
  std::size_t below(std::size_t n) { return random_() % n; }

  Arena& arena_;
  Blocks* blocks_;
  bool defers_clearing_ = false;
  std::mt19937_64 random_;
};

}  // namespace pagetide
