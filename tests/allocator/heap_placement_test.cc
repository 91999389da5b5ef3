#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "pagetide/allocator/heap.h"
#include "pagetide/tracker/hot_pages.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"

// Where the heap allocates, so that little gets dirty.

namespace pagetide {
namespace {

using namespace literals;

class PlacementTest : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 512;  // 128 slots a span, eight a page

  void* allocate(std::size_t bytes = kBytes) { return heap_->allocate(bytes); }
  std::vector<void*> allocate_spans(std::size_t spans) {
    std::vector<void*> blocks(spans * layout::kSpanBytes / kBytes);
    for (void*& block : blocks) block = allocate();
    return blocks;
  }
  std::size_t span_of(const void* block) {
    return static_cast<std::size_t>(static_cast<const std::byte*>(block) - heap_.data()) /
           layout::kSpanBytes;
  }
  // Begins an epoch; how many pages were written before it.
  std::size_t end_epoch() {
    return must(heap_.region().tracker().collect(heap_.region().watch(), CollectMode::take))
        .written.count();
  }
  // Frees `share` eighths of the slots of a span.
  void free_eighths(std::vector<void*>& blocks, std::size_t span, std::size_t share) {
    std::size_t i = 0;
    for (void*& block : blocks) {
      if (block == nullptr || span_of(block) != span) continue;
      if (i++ % 8 < share) heap_->deallocate(std::exchange(block, nullptr));
    }
  }

  TestHeap heap_{64_MiB, ClearPolicy::never};
};

// As soon as the word that the thread allocates from is used up.
TEST_F(PlacementTest, a_slot_freed_in_a_dirty_span_is_used_again_next) {
  std::vector<void*> blocks = allocate_spans(3);
  for (const std::size_t i : {10U, 200U, 300U}) {
    heap_->deallocate(blocks[i]);
    std::set<void*> next;
    for (int n = 0; n < 65; ++n) next.insert(allocate());
    EXPECT_TRUE(next.contains(blocks[i])) << i;
  }
}

TEST_F(PlacementTest, a_free_into_a_clean_page_writes_nothing_there) {
  std::vector<void*> blocks = allocate_spans(4);
  for (void* block : blocks) std::memset(block, 1, kBytes);
  end_epoch();
  for (std::size_t i = 0; i < blocks.size(); i += 3) heap_->deallocate(blocks[i]);
  EXPECT_EQ(end_epoch(), 0U);
}

TEST_F(PlacementTest, no_allocation_writes_to_a_data_page) {
  allocate_spans(4);
  allocate(1_MiB);
  EXPECT_EQ(end_epoch(), 0U);
}

// After an epoch has begun: of the clean spans the emptiest one is used, and to its end.
TEST_F(PlacementTest, the_emptiest_clean_span_comes_first_and_is_used_up) {
  std::vector<void*> blocks = allocate_spans(6);
  const std::size_t first = span_of(blocks.front());
  end_epoch();
  free_eighths(blocks, first + 1, 5);
  free_eighths(blocks, first + 3, 7);
  free_eighths(blocks, first + 4, 6);
  // What is left of the span that is current is used first.
  std::vector<std::size_t> order;
  for (int i = 0; i < 400; ++i) {
    const std::size_t span = span_of(allocate());
    if (order.empty() || order.back() != span) order.push_back(span);
  }
  const auto at = [&](std::size_t span) { return std::find(order.begin(), order.end(), span); };
  ASSERT_NE(at(first + 3), order.end());
  EXPECT_LT(at(first + 3), at(first + 4));
  EXPECT_LT(at(first + 4), at(first + 1));
  EXPECT_EQ(std::count(order.begin(), order.end(), first + 3), 1);
}

// What was freed in pages that were dirty is not what is used first when they are clean.
TEST_F(PlacementTest, the_first_free_of_an_epoch_puts_back_what_was_stacked_before) {
  std::vector<void*> blocks = allocate_spans(4);
  const std::size_t first = span_of(blocks.front());
  free_eighths(blocks, first + 1, 2);
  end_epoch();
  free_eighths(blocks, first + 2, 7);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(span_of(allocate()), first + 2) << i;
}

TEST_F(PlacementTest, of_what_another_thread_freed_only_slots_of_dirty_pages_are_used_next) {
  const std::vector<void*> blocks = allocate_spans(1);
  end_epoch();
  void* const of_dirty_page = blocks[0];
  void* const of_clean_page = blocks[100];
  heap_->deallocate(of_dirty_page);
  ASSERT_EQ(allocate(), of_dirty_page);
  std::thread([&] {
    heap_->deallocate(of_clean_page);
    heap_->deallocate(of_dirty_page);
  }).join();
  EXPECT_EQ(allocate(), of_dirty_page);
}

TEST_F(PlacementTest, what_another_thread_freed_in_a_clean_span_is_not_used_first) {
  std::vector<void*> blocks = allocate_spans(4);
  const std::size_t first = span_of(blocks.front());
  end_epoch();
  free_eighths(blocks, first + 2, 7);
  std::thread([&] { free_eighths(blocks, first + 1, 2); }).join();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(span_of(allocate()), first + 2) << i;
}

TEST_F(PlacementTest, a_clean_span_that_yields_little_is_left_alone_while_little_is_free) {
  std::vector<void*> blocks = allocate_spans(40);
  const std::size_t first = span_of(blocks.front());
  end_epoch();
  free_eighths(blocks, first + 3, 2);
  const std::size_t spans = must(heap_->check()).spans_in_use;
  for (std::size_t i = 0; i < 2 * layout::kSpanBytes / kBytes; ++i) {
    EXPECT_NE(span_of(allocate()), first + 3);
  }
  EXPECT_GT(must(heap_->check()).spans_in_use, spans);
}

// More slack: fewer pages, more memory.
TEST(SlackTest, slack_trades_memory_for_clean_pages) {
  struct Outcome {
    std::size_t pages = 0;
    std::size_t spans = 0;
  };
  const auto churn = [](unsigned slack) {
    TestHeap heap(256_MiB, ClearPolicy::deferred);
    heap->set_slack_percent(slack);
    std::mt19937 random(1);
    std::vector<void*> objects(200'000);
    for (void*& object : objects) object = heap->allocate(112);
    Outcome outcome;
    for (int epoch = 0; epoch < 20; ++epoch) {
      const Collected written =
          must(heap.region().tracker().collect(heap.region().watch(), CollectMode::take));
      if (epoch >= 15) outcome.pages += written.written.count();
      for (int i = 0; i < 10'000; ++i) {
        void*& object = objects[random() % objects.size()];
        heap->deallocate(object);
        object = heap->allocate(112);
        std::memset(object, 1, 112);
      }
    }
    outcome.spans = must(heap->check()).spans_in_use;
    return outcome;
  };
  const Outcome little = churn(5);
  const Outcome much = churn(30);
  EXPECT_LT(much.pages * 3, little.pages * 2);
  EXPECT_GT(much.spans, little.spans);
}

// Against choosing at random: a thousand objects of a hundred thousand are replaced, all over.
TEST_F(PlacementTest, replacements_dirty_a_fraction_of_the_pages) {
  RandomSource random;
  TestHeap heap(256_MiB, ClearPolicy::never);
  std::vector<void*> objects(200'000);
  const auto make = [&](void*& object) {
    const std::size_t bytes = 16 + random.below(241);
    object = heap->allocate(bytes);
    std::memset(object, 1, bytes);
  };
  for (void*& object : objects) make(object);
  std::size_t dirty = 0;
  for (int epoch = 0; epoch < 6; ++epoch) {
    must(heap.region().tracker().collect(heap.region().watch(), CollectMode::take));
    for (int i = 0; i < 2000; ++i) {
      void*& object = objects[random.below(objects.size())];
      heap->deallocate(object);
      make(object);
    }
    dirty = must(heap.region().tracker().collect(heap.region().watch(), CollectMode::take))
                .written.count();
  }
  // Nearly as many as were replaced, if each took the first free slot.
  EXPECT_LT(dirty, 600U);
}

// --- what is kept together --------------------------------------------------------------------

class TogetherTest : public testing::Test {
 protected:
  // The block of 2 MiB, the unit of adaptive arming, that memory lies in.
  static std::uintptr_t block_of(const void* memory) {
    return reinterpret_cast<std::uintptr_t>(memory) / HotPages::kBlockBytes;
  }
  static constexpr std::size_t kBlockSpans = HotPages::kBlockBytes / layout::kSpanBytes;
};

TEST_F(TogetherTest, size_classes_that_grow_large_do_not_share_blocks) {
  TestHeap heap(256_MiB);
  std::map<std::uintptr_t, std::set<std::size_t>> classes_in_block;
  for (std::size_t i = 0; i < 200'000; ++i) {
    for (const std::size_t bytes : {64U, 96U, 128U}) {
      classes_in_block[block_of(heap->allocate(bytes))].insert(bytes);
    }
  }
  ASSERT_GT(classes_in_block.size(), 20U);
  std::size_t shared = 0;
  for (const auto& [block, classes] : classes_in_block) shared += classes.size() > 1;
  EXPECT_LE(shared, 3U);  // those that they had in common when they were small
}

TEST_F(TogetherTest, small_classes_share_a_block) {
  TestHeap heap(256_MiB);
  std::set<std::uintptr_t> blocks;
  for (std::size_t bytes = 16; bytes <= 512; bytes += 16) {
    blocks.insert(block_of(heap->allocate(bytes)));
  }
  EXPECT_LE(blocks.size(), 2U);
}

TEST_F(TogetherTest, what_is_kept_for_a_class_is_used_by_others_before_the_arena_is_exhausted) {
  TestHeap heap(32_MiB);
  std::size_t allocated_bytes = 0;
  std::size_t failed = 0;
  // Two large classes begin blocks, and one of them stops.
  for (std::size_t i = 0; i < 3 * kBlockSpans / 2 * (layout::kSpanBytes / 1024); ++i) {
    for (const std::size_t bytes : {1024U, 2048U}) {
      if (heap->allocate(bytes) != nullptr) allocated_bytes += bytes;
    }
  }
  while (heap->allocate(1024) != nullptr) allocated_bytes += 1024;
  while (heap->allocate(layout::kSpanBytes) != nullptr) ++failed;
  EXPECT_EQ(failed, 0U);
  EXPECT_GE(allocated_bytes + layout::kSpanBytes, heap->geometry().span_count * layout::kSpanBytes);
}

}  // namespace
}  // namespace pagetide
