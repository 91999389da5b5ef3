#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/allocator/arena.h"
#include "pagetide/allocator/safepoints.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"

namespace pagetide {

// What threads keep in an arena, so that it goes back with it: every live block is in one of these
// places, but for the one that this lies in.
struct ArenaBlocks {
  static constexpr std::size_t kThreads = 8;
  static constexpr std::size_t kPlaces = 400;
  struct Place {
    void* block;
    std::size_t bytes;
  };
  std::array<std::array<Place, kPlaces>, kThreads> of_thread;
};

inline unsigned char content_of(const void* block, std::size_t bytes) {
  return static_cast<unsigned char>((reinterpret_cast<std::uintptr_t>(block) >> 4U) + bytes) | 1U;
}

// Whether a block still holds what it was filled with: at both ends and in the middle.
inline bool is_intact(const ArenaBlocks::Place& place) {
  const auto* bytes = static_cast<const unsigned char*>(place.block);
  const unsigned char content = content_of(place.block, place.bytes);
  return bytes[0] == content && bytes[place.bytes / 2] == content &&
         bytes[place.bytes - 1] == content;
}

// Whether exactly the blocks that are in places are allocated, and hold what they ought to; else
// what is wrong. While the threads are held.
inline std::string wrong_with_blocks(Arena& arena) {
  const auto stats = arena.heap().check();
  if (!stats) return stats.error().message();
  ArenaBlocks* blocks = must(arena.find<ArenaBlocks>("blocks"));
  std::set<void*> expected = {blocks};
  for (const auto& places : blocks->of_thread) {
    for (const ArenaBlocks::Place& place : places) {
      if (place.block == nullptr) continue;
      if (!expected.insert(place.block).second) return "a block is in two places";
      if (!is_intact(place)) return "a block lost its content";
    }
  }
  std::set<void*> found;
  arena.heap().for_each_allocation([&](void* block, std::size_t) { found.insert(block); });
  if (found != expected) {
    return "live are " + std::to_string(found.size()) + " blocks, not " +
           std::to_string(expected.size());
  }
  return {};
}

// Threads that allocate and free, also what others allocated, and come and go. They come to
// safepoints.
class ArenaMutators {
 public:
  ArenaMutators(Arena& arena, Safepoints& points, std::size_t threads, std::uint64_t seed)
      : arena_(arena),
        points_(points),
        blocks_(*must(arena.find_or_construct<ArenaBlocks>("blocks"))),
        count_(threads) {
    for (std::size_t t = 0; t < threads; ++t) {
      threads_.emplace_back([this, t, seed] {
        for (std::uint64_t life = 0; !over_; ++life) {
          std::thread([&] { live(t, seed + life * count_ + t); }).join();
        }
      });
    }
  }
  ArenaMutators(const ArenaMutators&) = delete;
  ArenaMutators& operator=(const ArenaMutators&) = delete;
  ~ArenaMutators() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  std::uint64_t steps() const { return steps_; }
  // Blocks that were not as they were left when they were freed.
  int broken() const { return broken_; }

 private:
  void live(std::size_t t, std::uint64_t seed) {
    RandomSource random(seed);
    Mutator mutator(points_);
    for (std::size_t step = random.between(100, 5000); step > 0 && !over_; --step) {
      const std::size_t whose = random.one_in(3) ? random.below(count_) : t;
      {
        // Never held at a safepoint.
        const std::lock_guard lock(mutexes_[whose]);
        change(blocks_.of_thread[whose][random.below(ArenaBlocks::kPlaces)], random);
      }
      ++steps_;
      if (random.one_in(500)) {
        const Mutator::Away away(mutator);
        std::this_thread::yield();
      }
      mutator.poll();
    }
  }
  void change(ArenaBlocks::Place& place, RandomSource& random) {
    if (place.block != nullptr) {
      if (!is_intact(place)) ++broken_;
      arena_.deallocate(place.block);
      place = {};
      return;
    }
    const std::size_t bytes = random.one_in(200)  ? random.between(32'000, 200'000)
                              : random.one_in(10) ? random.between(300, 20'000)
                                                  : random.between(1, 300);
    const std::size_t alignment = random.one_in(10) ? std::size_t{16} << random.below(10) : 16;
    void* block = must(random.one_in(3) ? arena_.allocate_zeroed(bytes, alignment)
                                        : arena_.allocate(bytes, alignment));
    std::memset(block, content_of(block, bytes), bytes);
    place = {block, bytes};
  }

  Arena& arena_;
  Safepoints& points_;
  ArenaBlocks& blocks_;
  const std::size_t count_;
  std::array<std::mutex, ArenaBlocks::kThreads> mutexes_;
  std::atomic<bool> over_ = false;
  std::atomic<std::uint64_t> steps_ = 0;
  std::atomic<int> broken_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace pagetide
