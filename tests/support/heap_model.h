#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "pagetide/allocator/heap.h"
#include "pagetide/base/hash.h"
#include "tests/support/random_source.h"

namespace pagetide {

// What a heap ought to hold: every block with its size and what was stored in it. Does random
// allocations and frees and says what was wrong; "" when all was well.
class HeapModel {
 public:
  // How much it holds, and of what.
  struct Mix {
    std::size_t usual_blocks = 300;
    std::size_t largest_bytes = 400'000;
  };
  // Spans full of small slots.
  static constexpr Mix kManySmall{12'000, 100};

  HeapModel(Heap& heap, RandomSource& random) : HeapModel(heap, random, Mix()) {}
  HeapModel(Heap& heap, RandomSource& random, Mix mix)
      : heap_(&heap), random_(&random), mix_(mix) {}

  std::size_t size() const { return blocks_.size(); }
  // From now on the blocks are those of another heap at the same place.
  void attach(Heap& heap) { heap_ = &heap; }

  std::string step() {
    const std::size_t frees = size() < mix_.usual_blocks ? 3 : 2;
    if (!blocks_.empty() && random_->one_in(frees)) return free_one();
    // Up to that of the largest block, and up to 128 KiB.
    const std::size_t exponents = std::min<std::size_t>(18, std::bit_width(mix_.largest_bytes));
    const std::size_t alignment = std::size_t{1} << random_->below(exponents);
    return allocate(random_size(), random_->one_in(4) ? alignment : 16);
  }
  // Exhaustion is no fault: the caller's to judge. Some blocks are asked for zeroed.
  std::string allocate(std::size_t bytes, std::size_t alignment) {
    const bool zeroed = random_->one_in(3);
    auto* block = static_cast<std::byte*>(zeroed ? heap_->allocate_zeroed(bytes, alignment)
                                                 : heap_->allocate(bytes, alignment));
    if (block == nullptr) return {};
    const std::size_t usable = heap_->usable_size(block);
    if (zeroed && !is_all_zero(block, usable)) return "a zeroed block is not zero";
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    if (address % alignment != 0 || address % 16 != 0) return "a block is not aligned";
    if (usable < bytes || usable == 0) return "a block is too small";
    if (!heap_->owns(block) || !heap_->owns(block + usable - 1))
      return "a block is outside the heap";
    const auto next = blocks_.lower_bound(block);
    if (next != blocks_.end() && block + usable > next->first) return "a block overlaps the next";
    if (next != blocks_.begin()) {
      const auto previous = std::prev(next);
      if (previous->first + previous->second.usable > block) return "a block overlaps the last";
    }
    const auto content = static_cast<unsigned char>(random_->between(1, 255));
    std::memset(block, content, usable);
    blocks_.emplace(block, Block{usable, content});
    return {};
  }
  std::string free_one() {
    const auto at = any_block();
    const auto [address, block] = *at;
    if (std::string wrong = content_of(address, block); !wrong.empty()) return wrong;
    heap_->deallocate(address);
    blocks_.erase(at);
    if (heap_->clear_policy() == ClearPolicy::on_free && !is_all_zero(address, block.usable)) {
      return "freed bytes are not zero";
    }
    return {};
  }
  std::string free_all() {
    while (!blocks_.empty()) {
      if (std::string wrong = free_one(); !wrong.empty()) return wrong;
    }
    return {};
  }

  // Compares everything: content, the walk over the heap, its own check, its statistics.
  std::string check() const {
    std::uint64_t bytes = 0;
    for (const auto& [address, block] : blocks_) {
      if (std::string wrong = content_of(address, block); !wrong.empty()) return wrong;
      bytes += block.usable;
    }
    auto expected = blocks_.begin();
    std::string wrong;
    heap_->for_each_allocation([&](void* address, std::size_t usable) {
      if (expected == blocks_.end() || expected->first != address ||
          expected->second.usable != usable) {
        wrong = "the walk differs from the model";
        return;
      }
      ++expected;
    });
    if (!wrong.empty()) return wrong;
    if (expected != blocks_.end()) return "the walk misses blocks";
    const auto stats = heap_->check();
    if (!stats) return stats.error().message();
    if (stats->live_blocks != size() || stats->live_bytes != bytes) return "wrong statistics";
    return {};
  }

 private:
  struct Block {
    std::size_t usable;
    unsigned char content;  // of every byte
  };

  using Blocks = std::map<std::byte*, Block>;

  // By address, which is quick also among many; the gaps make some likelier than others.
  Blocks::iterator any_block() {
    std::byte* first = blocks_.begin()->first;
    const auto bytes = static_cast<std::size_t>(blocks_.rbegin()->first - first);
    const auto at = blocks_.upper_bound(first + random_->below(bytes + 1));
    return std::prev(at);
  }
  // Many small ones, some of each other size.
  std::size_t random_size() {
    const std::size_t kind = random_->below(10);
    const std::size_t limit = kind < 5 ? 300 : kind < 9 ? 40'000 : mix_.largest_bytes;
    return random_->below(std::min(limit, mix_.largest_bytes));
  }
  std::string content_of(const std::byte* address, const Block& block) const {
    if (heap_->usable_size(address) != block.usable) return "a block changed its size";
    // Equal neighbours and a right first byte: all bytes are right.
    const bool intact = static_cast<unsigned char>(*address) == block.content &&
                        std::memcmp(address, address + 1, block.usable - 1) == 0;
    return intact ? "" : "a block lost its content";
  }

  Heap* heap_;
  RandomSource* random_;
  Mix mix_;
  Blocks blocks_;
};

}  // namespace pagetide
