// Batches, and statistics of each size.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "pagetide/allocator/arena.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"

namespace pagetide {
namespace {

using namespace literals;

TEST(HeapBatchTest, gives_blocks_of_their_own) {
  const TestHeap heap;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{24}, std::size_t{5000}, 100_KiB}) {
    std::vector<void*> blocks(100);
    ASSERT_EQ(heap->allocate_batch(bytes, blocks), blocks.size());
    for (void* block : blocks) std::memset(block, 1, heap->usable_size(block));
    EXPECT_EQ(std::set<void*>(blocks.begin(), blocks.end()).size(), blocks.size());
    EXPECT_EQ(must(heap->check()).live_blocks, blocks.size());
    heap->deallocate_batch(blocks);
    EXPECT_EQ(must(heap->check()).live_blocks, 0U);
  }
}

TEST(HeapBatchTest, is_short_where_the_reservation_ends) {
  const TestHeap heap(4_MiB);
  std::vector<void*> blocks(1000);
  const std::size_t made = heap->allocate_batch(10'000, blocks);
  EXPECT_GT(made, 100U);
  ASSERT_LT(made, blocks.size());
  EXPECT_EQ(heap->allocate(10'000), nullptr);
  EXPECT_EQ(must(heap->check()).live_blocks, made);
  heap->deallocate_batch(std::span(blocks).first(made));
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

TEST(HeapBatchTest, may_be_empty_and_have_null_pointers) {
  const TestHeap heap;
  EXPECT_EQ(heap->allocate_batch(10, {}), 0U);
  heap->deallocate_batch({});
  const std::array<void*, 3> blocks = {nullptr, heap->allocate(10), nullptr};
  heap->deallocate_batch(blocks);
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

TEST(HeapBatchTest, may_free_what_several_threads_have_made) {
  const TestHeap heap;
  std::vector<void*> blocks(200);
  EXPECT_EQ(heap->allocate_batch(100, std::span(blocks).first(100)), 100U);
  std::thread([&] {
    EXPECT_EQ(heap->allocate_batch(3000, std::span(blocks).last(100)), 100U);
  }).join();
  heap->deallocate_batch(blocks);
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

TEST(ArenaBatchTest, an_arena_passes_batches_on) {
  Arena arena = must(Arena::create({.name = "batch", .reserve_bytes = 16_MiB}));
  std::array<void*, 10> blocks{};
  EXPECT_EQ(arena.allocate_batch(100, blocks), 10U);
  EXPECT_EQ(must(arena.heap().check()).live_blocks, 10U);
  arena.deallocate_batch(blocks);
  EXPECT_EQ(must(arena.heap().check()).live_blocks, 0U);
}

TEST(HeapClassStatsTest, count_what_is_live_of_each_size) {
  RandomSource random;
  const TestHeap heap(128_MiB);
  std::map<std::size_t, std::size_t> live;  // by usable size
  for (int i = 0; i < 5000; ++i) {
    void* block = heap->allocate(random.one_in(4) ? random.below(60'000) : random.below(500));
    if (random.one_in(3)) {
      heap->deallocate(block);
    } else {
      ++live[heap->usable_size(block)];
    }
  }
  const HeapStats stats = must(heap->check());
  std::uint64_t spans = 0;
  std::size_t smaller = 0;
  for (const ClassStats& of_class : heap->class_stats()) {
    EXPECT_GT(of_class.slot_bytes, smaller);
    smaller = of_class.slot_bytes;
    EXPECT_EQ(of_class.live, live[of_class.slot_bytes]) << of_class.slot_bytes;
    EXPECT_EQ(of_class.slots, of_class.spans * (64_KiB / of_class.slot_bytes));
    spans += of_class.spans;
    live.erase(of_class.slot_bytes);
  }
  // The rest is large: one span each here.
  for (const auto& [bytes, count] : live) spans += bytes / 64_KiB * count;
  EXPECT_EQ(spans, stats.spans_in_use);
}

TEST(HeapClassStatsTest, are_all_zero_in_a_new_heap) {
  const TestHeap heap;
  for (const ClassStats& of_class : heap->class_stats()) {
    EXPECT_EQ(of_class.slots + of_class.live + of_class.spans, 0U);
  }
}

}  // namespace
}  // namespace pagetide
