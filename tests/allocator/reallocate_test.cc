#include <gtest/gtest.h>

#include <signal.h>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/allocator/arena.h"
#include "pagetide/allocator/heap.h"
#include "pagetide/base/hash.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"

namespace pagetide {
namespace {

using namespace literals;
using layout::kSpanBytes;
using ::testing::KilledBySignal;

class ReallocateTest : public testing::TestWithParam<ClearPolicy> {
 protected:
  std::byte* allocate(std::size_t bytes) { return static_cast<std::byte*>(heap_->allocate(bytes)); }
  std::byte* reallocate(void* block, std::size_t bytes, std::size_t alignment = 16) {
    return static_cast<std::byte*>(heap_->reallocate(block, bytes, alignment));
  }

  TestHeap heap_{64_MiB, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(clear, ReallocateTest,
                         testing::Values(ClearPolicy::deferred, ClearPolicy::on_free,
                                         ClearPolicy::never),
                         [](const auto& policy) { return name_of(policy.param); });

TEST_P(ReallocateTest, no_block_is_an_allocation) {
  EXPECT_EQ(heap_->usable_size(reallocate(nullptr, 100)), 112U);
}

TEST_P(ReallocateTest, a_block_stays_while_it_fits) {
  std::byte* block = allocate(100);
  EXPECT_EQ(reallocate(block, 112), block);
  EXPECT_EQ(reallocate(block, 56), block);
}

TEST_P(ReallocateTest, a_block_of_which_little_is_used_gives_memory_back) {
  std::byte* block = allocate(30'000);
  block[9] = std::byte{7};
  std::byte* moved = reallocate(block, 10);
  EXPECT_EQ(heap_->usable_size(moved), 16U);
  EXPECT_EQ(moved[9], std::byte{7});
  EXPECT_EQ(must(heap_->check()).live_blocks, 1U);
}

TEST_P(ReallocateTest, a_large_block_grows_where_it_is) {
  std::byte* block = allocate(1_MiB);
  EXPECT_EQ(reallocate(block, 3_MiB), block);
  EXPECT_EQ(heap_->usable_size(block), 3_MiB);
  EXPECT_EQ(must(heap_->check()).live_bytes, 3_MiB);
}

TEST_P(ReallocateTest, a_large_block_whose_neighbour_is_in_use_moves) {
  std::byte* block = allocate(1_MiB);
  allocate(1_MiB);
  std::memset(block, 0x11, 1_MiB);
  std::byte* moved = reallocate(block, 3_MiB);
  EXPECT_NE(moved, block);
  EXPECT_EQ(std::count(moved, moved + 1_MiB, std::byte{0x11}), 1_MiB);
  EXPECT_GE(heap_->usable_size(moved), 3_MiB);
  must(heap_->check());
}

TEST_P(ReallocateTest, a_large_block_shrinks_where_it_is) {
  std::byte* block = allocate(4_MiB);
  EXPECT_EQ(reallocate(block, 1_MiB), block);
  EXPECT_EQ(must(heap_->check()).live_bytes, 1_MiB);
  // What it gave back is there for others.
  EXPECT_EQ(allocate(2_MiB), block + 1_MiB);
}

TEST_P(ReallocateTest, an_alignment_moves_a_block_that_has_another) {
  std::byte* block = nullptr;
  do block = allocate(200);
  while (reinterpret_cast<std::uintptr_t>(block) % 4096 == 0);
  block[199] = std::byte{5};
  std::byte* moved = reallocate(block, 200, 4096);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(moved) % 4096, 0U);
  EXPECT_EQ(moved[199], std::byte{5});
}

TEST_P(ReallocateTest, a_block_that_cannot_grow_stays_as_it_is) {
  std::byte* block = allocate(1_MiB);
  std::memset(block, 0x22, 1_MiB);
  EXPECT_EQ(reallocate(block, 1_GiB), nullptr);
  EXPECT_EQ(reallocate(block, 100, 3), nullptr);
  EXPECT_EQ(heap_->usable_size(block), 1_MiB);
  EXPECT_EQ(std::count(block, block + 1_MiB, std::byte{0x22}), 1_MiB);
}

// A quarter more of these would wrap around.
TEST_P(ReallocateTest, sizes_near_the_end_of_all_numbers_are_refused) {
  std::byte* block = allocate(1_MiB);
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1_MiB, SIZE_MAX / 5 * 4,
                                  SIZE_MAX / 5 * 4 + 1, SIZE_MAX / 5 * 4 + 100}) {
    EXPECT_EQ(reallocate(block, bytes), nullptr) << bytes;
  }
  EXPECT_EQ(must(heap_->check()).live_bytes, 1_MiB);
}

TEST_P(ReallocateTest, content_is_kept_over_random_sizes) {
  RandomSource random;
  struct Block {
    std::byte* at = nullptr;
    std::size_t bytes = 0;
    std::byte content{};
  };
  std::vector<Block> blocks(40);
  for (int i = 0; i < 3000; ++i) {
    Block& block = blocks[random.below(blocks.size())];
    const std::size_t bytes = 1 + random.below(std::size_t{1} << random.between(1, 19));
    std::byte* moved = reallocate(block.at, bytes);
    ASSERT_NE(moved, nullptr);
    const std::size_t kept = std::min(bytes, block.bytes);
    ASSERT_EQ(std::count(moved, moved + kept, block.content), kept) << i;
    block = {moved, bytes, static_cast<std::byte>(random.between(1, 255))};
    std::memset(moved, static_cast<int>(block.content), bytes);
  }
  for (const Block& block : blocks) heap_->deallocate(block.at);
  EXPECT_EQ(must(heap_->check()).live_blocks, 0U);
}

TEST(ReallocateDeferredTest, what_a_block_grows_by_is_zero_where_it_is) {
  TestHeap heap(64_MiB, ClearPolicy::deferred);
  auto* block = static_cast<std::byte*>(heap->allocate(1_MiB));
  void* behind = heap->allocate(1_MiB);
  std::memset(behind, 0x33, 1_MiB);
  heap->deallocate(behind);
  ASSERT_EQ(heap->reallocate(block, 2_MiB), block);
  EXPECT_TRUE(is_all_zero(block + 1_MiB, 1_MiB));
}

TEST(ReallocateDeferredTest, what_a_block_grows_by_is_zero_elsewhere) {
  TestHeap heap(64_MiB, ClearPolicy::deferred);
  void* dead = heap->allocate(8_MiB);
  auto* block = static_cast<std::byte*>(heap->allocate(100'000));
  heap->allocate(1_MiB);  // in the way
  std::memset(dead, 0x33, 8_MiB);
  heap->deallocate(dead);
  const std::size_t before = heap->usable_size(block);
  std::memset(block, 0x44, before);
  auto* moved = static_cast<std::byte*>(heap->reallocate(block, 1_MiB));
  ASSERT_EQ(moved, dead);
  EXPECT_TRUE(is_all_zero(moved + before, heap->usable_size(moved) - before));
}

TEST(ReallocateDeathTest, of_a_block_that_is_free) {
  TestHeap heap;
  void* block = heap->allocate(100);
  heap->deallocate(block);
  std::ostringstream text;
  text << "pagetide: heap corruption: invalid reallocation of " << block
       << ": not the start of an allocated block\n";
  EXPECT_EXIT(heap->reallocate(block, 10), KilledBySignal(SIGABRT), text.str());
}

TEST(ReallocateDeathTest, of_an_address_elsewhere) {
  TestHeap heap;
  int elsewhere = 0;
  std::ostringstream text;
  text << "pagetide: heap corruption: invalid reallocation of " << &elsewhere
       << ": outside the arena's data\n";
  EXPECT_EXIT(heap->reallocate(&elsewhere, 10), KilledBySignal(SIGABRT), text.str());
}

TEST(TrimTest, memory_of_empty_spans_goes_back_to_the_system) {
  TestHeap heap(64_MiB, ClearPolicy::never);
  std::vector<void*> blocks;
  for (int i = 0; i < 4000; ++i) {
    blocks.push_back(heap->allocate(1000));
    std::memset(blocks.back(), 1, 1000);
  }
  blocks.push_back(heap->allocate(2_MiB));
  std::memset(blocks.back(), 1, 2_MiB);
  for (void* block : blocks) heap->deallocate(block);
  EXPECT_GE(heap->trim(), 5_MiB);
  const HeapStats stats = must(heap->check());
  EXPECT_EQ(stats.idle_bytes, 0U);
  EXPECT_EQ(stats.spans_in_use, 0U);
  EXPECT_EQ(heap->trim(), 0U);
}

// Each with spans of many sizes, all at the same time.
TEST(ThreadEndTest, empty_spans_of_threads_that_ended_are_there_for_all) {
  TestHeap heap(64_MiB, ClearPolicy::deferred);
  std::barrier all_have_allocated(40);
  std::vector<std::thread> threads;
  for (int i = 0; i < 40; ++i) {
    threads.emplace_back([&] {
      std::vector<void*> blocks;
      for (std::size_t bytes = 16; bytes <= 1024; bytes += 100)
        blocks.push_back(heap->allocate(bytes));
      all_have_allocated.arrive_and_wait();
      for (void* block : blocks) heap->deallocate(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(heap->allocate(60_MiB), nullptr);
  EXPECT_EQ(must(heap->check()).spans_in_use, 60_MiB / kSpanBytes);
}

// A thread fills the arena, and ends; of what it made little stays, in every span something. Who
// frees is the one that ended or the one that allocates then.
TEST(ThreadEndTest, slots_in_spans_of_a_thread_that_ended_are_used_when_nothing_else_is_left) {
  for (const bool owner_frees : {true, false}) {
    TestHeap heap(16_MiB, ClearPolicy::deferred);
    heap->deallocate(heap->allocate(64));  // this thread has a heap of its own
    std::vector<void*> blocks;
    const auto free_most = [&] {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (i % 1000 != 0) heap->deallocate(blocks[i]);
      }
    };
    std::thread([&] {
      while (void* block = heap->allocate(64)) blocks.push_back(block);
      if (owner_frees) free_most();
    }).join();
    if (!owner_frees) free_most();
    const std::size_t free_slots = blocks.size() - blocks.size() / 1000 - 1;
    std::size_t allocated = 0;
    while (auto* block = static_cast<std::byte*>(heap->allocate(64))) {
      ASSERT_TRUE(is_all_zero(block, 64));
      std::memset(block, 0x77, 64);
      ++allocated;
    }
    EXPECT_GE(allocated, free_slots);
    must(heap->check());
  }
}

TEST(TrimTest, an_arena_reallocates) {
  Arena arena = must(Arena::create({.reserve_bytes = 16_MiB}));
  void* block = must(arena.reallocate(nullptr, 100));
  std::memset(block, 0x55, 100);
  block = must(arena.reallocate(block, 5000));
  EXPECT_EQ(static_cast<std::byte*>(block)[99], std::byte{0x55});
  const auto refused = arena.reallocate(block, 1_GiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory);
}

// Where a wrong block is reported instead of ending the process.
TEST(ReallocateArenaTest, what_is_not_allocated_is_no_lack_of_memory) {
  ArenaOptions options;
  options.reserve_bytes = 32_MiB;
  options.on_corruption.report = [](const char*, const void*, void*) {};
  Arena arena = must(Arena::create(options));
  auto* block = static_cast<std::byte*>(must(arena.allocate(100)));
  const auto moved = arena.reallocate(block + 16, 200);
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(moved.error().message().find("not the start of a block"), std::string::npos);
}

}  // namespace
}  // namespace pagetide
