#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "pagetide/allocator/heap.h"
#include "pagetide/base/hash.h"
#include "tests/support/must.h"
#include "tests/support/test_heap.h"

// Memory that is known to be zero is not cleared again. That zeroed blocks are zero whatever
// happened before is in the tests that use HeapModel.

namespace pagetide {
namespace {

using namespace literals;

class KnownZeroTest : public testing::Test {
 protected:
  std::byte* allocate(std::size_t bytes) { return static_cast<std::byte*>(heap_->allocate(bytes)); }
  std::byte* allocate_zeroed(std::size_t bytes) {
    return static_cast<std::byte*>(heap_->allocate_zeroed(bytes));
  }
  void fill(std::byte* block) { std::memset(block, 0xab, heap_->usable_size(block)); }

  // The pages of a block that were written since the last call.
  std::size_t written_pages(const std::byte* block) {
    const Collected collected =
        must(heap_.region().tracker().collect(heap_.region().watch(), CollectMode::take));
    const PageRange pages =
        PageRange::covering(ByteRange::of(const_cast<std::byte*>(block), heap_->usable_size(block)),
                            heap_.region().tracked_range());
    std::size_t count = 0;
    for (std::size_t page = pages.first; page < pages.end(); ++page) {
      count += std::size_t{collected.written.test(page)};
    }
    return count;
  }

  TestHeap heap_;
};

TEST_F(KnownZeroTest, fresh_memory_is_not_written_to) {
  for (const std::size_t bytes : {100U, 5000U, 30'000U, 1'000'000U}) {
    const std::byte* block = allocate_zeroed(bytes);
    EXPECT_EQ(written_pages(block), 0U) << bytes;
    EXPECT_TRUE(is_all_zero(block, heap_->usable_size(block)));
  }
}

TEST_F(KnownZeroTest, what_was_cleared_when_it_was_freed_is_not_written_to) {
  for (const std::size_t bytes : {100U, 5000U, 30'000U, 1'000'000U}) {
    allocate(bytes);  // keeps the span
    std::byte* block = allocate(bytes);
    fill(block);
    heap_->deallocate(block);
    written_pages(block);
    ASSERT_EQ(allocate_zeroed(bytes), block);
    EXPECT_EQ(written_pages(block), 0U) << bytes;
    EXPECT_TRUE(is_all_zero(block, heap_->usable_size(block)));
  }
}

// Handing a block out ends what is known of it.
TEST_F(KnownZeroTest, what_was_in_use_is_cleared) {
  std::byte* block = allocate_zeroed(5000);
  fill(block);
  heap_->deallocate(block);
  ASSERT_EQ(allocate(5000), block);
  fill(block);
  TestHeap other(32_MiB, ClearPolicy::never);
  auto* kept = static_cast<std::byte*>(other->allocate(5000));
  std::memset(kept, 0xab, 5000);
  other->deallocate(kept);
  EXPECT_EQ(*kept, std::byte{0xab});
  ASSERT_EQ(other->allocate_zeroed(5000), kept);
  EXPECT_TRUE(is_all_zero(kept, other->usable_size(kept)));
}

// Under never a slot that nobody had yet is known to be zero all the same.
TEST(KnownZeroNeverTest, slots_that_were_never_used_are_not_written_to) {
  TestHeap heap(32_MiB, ClearPolicy::never);
  void* first = heap->allocate(5000);
  heap->deallocate(heap->allocate(5000));
  void* fresh = nullptr;
  std::vector<void*> blocks = {heap->allocate(5000)};
  fresh = heap->allocate(5000);
  heap->deallocate(fresh);
  must(heap.region().tracker().collect(heap.region().watch(), CollectMode::take));
  // The freed one comes first, the one behind it was never used.
  ASSERT_EQ(heap->allocate(5000), fresh);
  auto* next = static_cast<std::byte*>(heap->allocate_zeroed(5000));
  ASSERT_GT(static_cast<void*>(next), fresh);
  const Collected collected =
      must(heap.region().tracker().collect(heap.region().watch(), CollectMode::take));
  const PageRange pages = PageRange::covering(ByteRange::of(next, heap->usable_size(next)),
                                              heap.region().tracked_range());
  EXPECT_FALSE(collected.written.test(pages.end() - 1));
  heap->deallocate(first);
}

// What a restored image holds in its free slots is not known: it is what the image says, and
// "free" says nothing of it.
TEST(KnownZeroRestoreTest, nothing_is_known_of_free_memory_after_a_rebuild) {
  for (const std::size_t bytes : {100U, 5000U, 1'000'000U}) {
    TestHeap heap;
    heap->allocate(bytes);  // keeps the span
    auto* block = static_cast<std::byte*>(heap->allocate(bytes));
    const std::size_t usable = heap->usable_size(block);
    heap->deallocate(block);
    std::memset(block, 0xab, usable);  // as an image could have it
    must(heap->rebuild());
    ASSERT_EQ(heap->allocate_zeroed(bytes), block) << bytes;
    EXPECT_TRUE(is_all_zero(block, usable)) << bytes;
  }
}

// The same for a span that was free as a whole: a class takes it, and its slots are not zero.
TEST(KnownZeroRestoreTest, nothing_is_known_of_free_spans_after_a_rebuild) {
  TestHeap heap;
  void* block = heap->allocate(1_MiB);
  heap->deallocate(block);
  std::memset(block, 0xab, 1_MiB);
  must(heap->rebuild());
  auto* slot = static_cast<std::byte*>(heap->allocate_zeroed(3000));
  ASSERT_EQ(slot, block);
  EXPECT_TRUE(is_all_zero(slot, heap->usable_size(slot)));
}

// All slots of a span may have been cleared since, and still it is not zero: behind the last slot
// there are bytes that no slot has.
TEST(KnownZeroRestoreTest, bytes_behind_the_last_slot_count_too) {
  constexpr std::size_t kSlot = 5 * 1024;
  const std::size_t slots = layout::slots_per_span(layout::size_class_of(kSlot));
  ASSERT_LT(slots * kSlot, layout::kSpanBytes);
  TestHeap heap;
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 2 * slots; ++i) blocks.push_back(heap->allocate(kSlot));
  heap.data()[2 * layout::kSpanBytes - 1] = std::byte{7};  // as an image could have it
  must(heap->rebuild());
  for (void* block : blocks) heap->deallocate(block);
  // One of the two spans came back, and the class keeps the other.
  auto* large = static_cast<std::byte*>(heap->allocate_zeroed(layout::kSpanBytes));
  EXPECT_TRUE(is_all_zero(large, layout::kSpanBytes));
  heap->deallocate(heap->allocate_zeroed(2 * layout::kSpanBytes));
}

// An empty span of a class comes back without being written to, if all its slots were cleared.
TEST_F(KnownZeroTest, a_span_of_cleared_slots_is_not_cleared_again) {
  std::vector<std::byte*> blocks;
  for (std::size_t i = 0; i < 3 * layout::slots_per_span(layout::size_class_of(8192)); ++i) {
    blocks.push_back(allocate(8192));
    fill(blocks.back());
  }
  std::byte* last = blocks.back();
  blocks.pop_back();
  for (std::byte* block : blocks) heap_->deallocate(block);
  must(heap_.region().tracker().collect(heap_.region().watch(), CollectMode::take));
  heap_->deallocate(last);
  const Collected collected =
      must(heap_.region().tracker().collect(heap_.region().watch(), CollectMode::take));
  EXPECT_EQ(collected.written.count(), 8192 / page_size());
  EXPECT_FALSE(collected.zeroed.any());
}

TEST(KnownZeroAllocateTest, a_bad_alignment_and_exhaustion_are_refused_as_by_allocate) {
  TestHeap heap(4_MiB);
  EXPECT_EQ(heap->allocate_zeroed(10, 3), nullptr);
  EXPECT_EQ(heap->allocate_zeroed(1_GiB), nullptr);
  EXPECT_NE(heap->allocate_zeroed(0), nullptr);
}

}  // namespace
}  // namespace pagetide
