#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/allocator/heap.h"
#include "pagetide/base/hash.h"
#include "tests/support/must.h"
#include "tests/support/test_heap.h"

// ClearPolicy::deferred: when freed bytes are cleared, and that no free dirties a page.

namespace pagetide {
namespace {

using namespace literals;

constexpr std::byte kSecret{0xab};

class DeferredClearTest : public testing::TestWithParam<std::size_t> {
 protected:
  // Filled with a secret.
  std::vector<std::byte*> allocate(std::size_t count) {
    std::vector<std::byte*> blocks(count);
    for (std::byte*& block : blocks) {
      block = static_cast<std::byte*>(heap_->allocate(GetParam()));
      std::memset(block, static_cast<int>(kSecret), heap_->usable_size(block));
    }
    return blocks;
  }
  // Begins an epoch; how many pages were written before it.
  std::size_t end_epoch() {
    const Collected collected =
        must(heap_.region().tracker().collect(heap_.region().watch(), CollectMode::take));
    const auto first = static_cast<std::size_t>(heap_.data() - heap_.region().base()) / page_size();
    std::size_t pages = 0;
    collected.written.for_each_run([&](PageRange run) {
      for (std::size_t page = run.first; page < run.end(); ++page) pages += page >= first;
    });
    return pages;
  }
  bool is_zero(const std::byte* block) { return is_all_zero(block, GetParam()); }

  TestHeap heap_{64_MiB, ClearPolicy::deferred};
};

INSTANTIATE_TEST_SUITE_P(sizes, DeferredClearTest, testing::Values(16, 48, 100, 1000, 5000, 30'000),
                         [](const auto& bytes) { return std::to_string(bytes.param); });

TEST_P(DeferredClearTest, a_block_in_a_page_that_is_dirty_is_cleared_at_once) {
  for (std::byte* block : allocate(300)) {
    heap_->deallocate(block);
    ASSERT_TRUE(is_zero(block));
  }
}

TEST_P(DeferredClearTest, a_block_in_a_clean_page_is_left_alone) {
  const std::vector<std::byte*> blocks = allocate(300);
  end_epoch();
  for (std::byte* block : blocks) heap_->deallocate(block);
  EXPECT_EQ(end_epoch(), 0U);
  for (const std::byte* block : blocks) {
    if (heap_->usable_size(block) == 0) continue;  // of a span that came back
    EXPECT_EQ(*block, kSecret);
  }
}

// Also where slots of other pages of its span are handed out.
TEST(DeferredClearSpanTest, a_block_in_a_clean_page_of_a_dirty_span_is_left_alone) {
  constexpr std::size_t kBytes = 512;
  TestHeap heap(64_MiB, ClearPolicy::deferred);
  std::vector<std::byte*> blocks(layout::kSpanBytes / kBytes);
  for (std::byte*& block : blocks) {
    block = static_cast<std::byte*>(heap->allocate(kBytes));
    std::memset(block, static_cast<int>(kSecret), kBytes);
  }
  must(heap.region().tracker().collect(heap.region().watch(), CollectMode::take));
  heap->deallocate(blocks.front());
  ASSERT_EQ(heap->allocate(kBytes), blocks.front());
  heap->deallocate(blocks.back());
  EXPECT_EQ(*blocks.back(), kSecret);
}

TEST_P(DeferredClearTest, every_block_is_handed_out_zero) {
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 400; ++i) {
      auto* block = static_cast<std::byte*>(heap_->allocate(GetParam()));
      ASSERT_TRUE(is_all_zero(block, heap_->usable_size(block))) << epoch << ' ' << i;
      std::memset(block, static_cast<int>(kSecret), heap_->usable_size(block));
      blocks.push_back(block);
    }
    end_epoch();
    for (std::byte* block : blocks) heap_->deallocate(block);
  }
}

// Calls free(block) for each on another thread.
void free_elsewhere(TestHeap& heap, const std::vector<std::byte*>& blocks) {
  std::thread([&] {
    for (std::byte* block : blocks) heap->deallocate(block);
  }).join();
}

TEST_P(DeferredClearTest, what_another_thread_freed_in_a_clean_page_is_handed_out_zero) {
  const std::vector<std::byte*> blocks = allocate(300);
  end_epoch();
  free_elsewhere(heap_, blocks);
  for (int i = 0; i < 400; ++i) {
    auto* block = static_cast<std::byte*>(heap_->allocate(GetParam()));
    ASSERT_TRUE(is_all_zero(block, heap_->usable_size(block))) << i;
  }
}

// Which a program can see by writing to memory that is not its own any more.
TEST(DeferredClearSpanTest, what_another_thread_cleared_is_not_cleared_again) {
  constexpr std::size_t kBytes = 512;
  TestHeap heap(64_MiB, ClearPolicy::deferred);
  std::vector<std::byte*> blocks(layout::kSpanBytes / kBytes);
  for (std::byte*& block : blocks) block = static_cast<std::byte*>(heap->allocate(kBytes));
  free_elsewhere(heap, blocks);
  for (std::byte* block : blocks) *block = kSecret;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(*static_cast<std::byte*>(heap->allocate(kBytes)), kSecret) << i;
  }
}

// Nor by one that hands memory out again.
TEST_P(DeferredClearTest, no_page_is_written_to_but_those_of_blocks_that_are_handed_out) {
  std::vector<std::byte*> blocks = allocate(GetParam() < 10'000 ? 3000 : 1000);
  end_epoch();
  for (std::size_t i = 0; i < blocks.size(); i += 2) heap_->deallocate(blocks[i]);
  std::set<std::uintptr_t> pages;
  for (int i = 0; i < 40; ++i) {
    const auto begin = reinterpret_cast<std::uintptr_t>(heap_->allocate(GetParam()));
    const std::uintptr_t end = begin + heap_->usable_size(reinterpret_cast<void*>(begin));
    for (std::uintptr_t at = begin / page_size(); at <= (end - 1) / page_size(); ++at)
      pages.insert(at);
  }
  EXPECT_LE(end_epoch(), pages.size());
}

TEST_P(DeferredClearTest, what_another_thread_freed_is_handed_out_zero_too) {
  for (const bool dirty : {true, false}) {
    const std::vector<std::byte*> blocks = allocate(300);
    if (!dirty) end_epoch();
    std::thread([&] {
      for (std::byte* block : blocks) heap_->deallocate(block);
    }).join();
    for (const std::byte* block : blocks) {
      EXPECT_TRUE(!dirty || is_zero(block));
    }
    for (int i = 0; i < 400; ++i) {
      auto* block = static_cast<std::byte*>(heap_->allocate(GetParam()));
      ASSERT_TRUE(is_zero(block)) << i;
    }
  }
}

}  // namespace
}  // namespace pagetide
