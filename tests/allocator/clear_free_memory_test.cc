#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "pagetide/allocator/heap.h"
#include "pagetide/base/hash.h"
#include "tests/support/heap_model.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"

// Heap::clear_free_memory(): what a past under ClearPolicy::never has left.

namespace pagetide {
namespace {

using namespace literals;

// A heap over bytes that were written under another policy. What is free in it holds `0xab`.
class ClearFreeMemoryTest : public testing::Test {
 protected:
  // All data that is not allocated, and every byte behind the last slot of a span.
  void fill_free_memory() {
    const std::size_t used = heap_.superblock().spans_used * layout::kSpanBytes;
    std::vector<bool> live(used, false);
    heap_->for_each_allocation([&](void* block, std::size_t bytes) {
      const auto first = static_cast<std::byte*>(block) - heap_.data();
      std::fill_n(live.begin() + first, bytes, true);
    });
    for (std::size_t i = 0; i < used; ++i) {
      if (!live[i]) heap_.data()[i] = std::byte{0xab};
    }
  }
  std::size_t count_filled() {
    const std::size_t used = heap_.superblock().spans_used * layout::kSpanBytes;
    return static_cast<std::size_t>(std::count(heap_.data(), heap_.data() + used, std::byte{0xab}));
  }

  RandomSource random_;
  TestHeap heap_{16_MiB};
};

TEST_F(ClearFreeMemoryTest, clears_all_that_is_free_and_nothing_else) {
  HeapModel model(*heap_, random_);
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(model.step(), "");
  const std::size_t in_use = count_filled();  // blocks may hold that byte too
  fill_free_memory();
  ASSERT_GT(count_filled(), in_use);
  must(heap_->rebuild());
  must(heap_->clear_free_memory());
  EXPECT_EQ(count_filled(), in_use);
  EXPECT_EQ(model.check(), "");
  for (int i = 0; i < 500; ++i) ASSERT_EQ(model.step(), "");
}

TEST_F(ClearFreeMemoryTest, from_then_on_free_bytes_are_zero) {
  heap_->deallocate(heap_->allocate(1000));
  heap_->inherit_free_bytes_are_zero(false);
  must(heap_->clear_free_memory());
  EXPECT_TRUE(heap_->free_bytes_are_zero());
}

TEST_F(ClearFreeMemoryTest, memory_that_is_zero_is_not_written_to) {
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(heap_->allocate(5000));
  for (std::size_t i = 0; i < blocks.size(); i += 2) heap_->deallocate(blocks[i]);
  must(heap_->rebuild());
  must(heap_.region().tracker().collect(heap_.region().watch(), CollectMode::take));
  must(heap_->clear_free_memory());
  const Collected collected =
      must(heap_.region().tracker().collect(heap_.region().watch(), CollectMode::take));
  EXPECT_FALSE(collected.written.any());
  EXPECT_FALSE(collected.zeroed.any());
}

TEST_F(ClearFreeMemoryTest, what_it_cleared_is_known_to_be_zero) {
  heap_->allocate(5000);
  void* block = heap_->allocate(5000);
  heap_->deallocate(block);
  std::memset(block, 0xab, 5000);
  must(heap_->rebuild());
  must(heap_->clear_free_memory());
  must(heap_.region().tracker().collect(heap_.region().watch(), CollectMode::take));
  ASSERT_EQ(heap_->allocate_zeroed(5000), block);
  EXPECT_TRUE(is_all_zero(static_cast<std::byte*>(block), 5000));
  const Collected collected =
      must(heap_.region().tracker().collect(heap_.region().watch(), CollectMode::take));
  const PageRange pages = PageRange::covering(ByteRange::of(static_cast<std::byte*>(block), 5000),
                                              heap_.region().tracked_range());
  for (std::size_t page = pages.first; page < pages.end(); ++page) {
    EXPECT_FALSE(collected.written.test(page));
  }
}

TEST(ClearFreeMemoryNeverTest, under_never_it_is_refused) {
  TestHeap heap(16_MiB, ClearPolicy::never);
  const auto refused = heap->clear_free_memory();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(refused.error().message(),
            "free memory is not cleared for an arena under ClearPolicy::never: what is freed next "
            "would not be. Open it with ClearPolicy::on_free.");
}

}  // namespace
}  // namespace pagetide
