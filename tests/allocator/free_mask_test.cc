#include "pagetide/allocator/free_mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "pagetide/base/hash.h"
#include "tests/support/heap_model.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;
using layout::kSpanBytes;

// Marks every byte of the data that belongs to a block, by the heap's own walk.
std::vector<bool> live_bytes(TestHeap& heap) {
  std::vector<bool> live(heap.superblock().spans_used * kSpanBytes);
  heap->for_each_allocation([&](void* block, std::size_t bytes) {
    const auto first = live.begin() + (static_cast<std::byte*>(block) - heap.data());
    std::fill(first, first + static_cast<std::ptrdiff_t>(bytes), true);
  });
  return live;
}

class FreeMaskTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kReserveBytes = 32_MiB;

  std::size_t first_page() { return heap_->geometry().data_offset / page_size(); }
  std::size_t page_of(const void* address) {
    return static_cast<std::size_t>(static_cast<const std::byte*>(address) -
                                    heap_.region().base()) /
           page_size();
  }
  // A page of ones after the mask.
  std::vector<std::byte> masked(std::size_t page, bool* changed = nullptr) {
    std::vector<std::byte> copy(page_size(), std::byte{0xff});
    const bool any = FreeMask(heap_->metadata()).apply(page, copy.data());
    if (changed != nullptr) *changed = any;
    return copy;
  }
  std::size_t ones(const std::vector<std::byte>& page) {
    return static_cast<std::size_t>(std::count(page.begin(), page.end(), std::byte{0xff}));
  }

  TestHeap heap_{kReserveBytes, ClearPolicy::never};
};

TEST_F(FreeMaskTest, keeps_a_page_whose_slots_are_all_taken) {
  std::byte* block = nullptr;
  for (std::size_t i = 0; i < kSpanBytes / 64; ++i) {
    block = static_cast<std::byte*>(heap_->allocate(64));
  }
  bool changed = true;
  EXPECT_EQ(ones(masked(page_of(block), &changed)), page_size());
  EXPECT_FALSE(changed);
}

TEST_F(FreeMaskTest, keeps_the_one_slot_that_is_taken) {
  auto* block = static_cast<std::byte*>(heap_->allocate(64));
  const std::vector<std::byte> page = masked(page_of(block));
  EXPECT_EQ(ones(page), 64U);
  const std::size_t offset = reinterpret_cast<std::uintptr_t>(block) % page_size();
  EXPECT_EQ(page[offset], std::byte{0xff});
  EXPECT_EQ(page[offset + 63], std::byte{0xff});
}

TEST_F(FreeMaskTest, follows_a_slot_over_the_end_of_its_page) {
  // Slots of 1280 bytes: the fourth one lies in two pages.
  std::vector<std::byte*> blocks;
  for (int i = 0; i < 51; ++i) blocks.push_back(static_cast<std::byte*>(heap_->allocate(1280)));
  std::sort(blocks.begin(), blocks.end());
  heap_->deallocate(blocks[3]);
  const std::size_t page = page_of(blocks[0]);
  EXPECT_EQ(ones(masked(page)), 3 * 1280U);
  EXPECT_EQ(ones(masked(page + 1)), page_size() - (4 * 1280 - page_size()));
}

TEST_F(FreeMaskTest, clears_what_is_left_behind_the_last_slot) {
  for (int i = 0; i < 51; ++i) heap_->allocate(1280);
  const std::size_t page = first_page() + (kSpanBytes / page_size()) - 1;
  EXPECT_EQ(ones(masked(page)), page_size() - (kSpanBytes - 51 * 1280));
}

TEST_F(FreeMaskTest, keeps_all_spans_of_a_large_block_and_clears_those_of_a_freed_one) {
  auto* freed = static_cast<std::byte*>(heap_->allocate(5 * kSpanBytes));
  auto* kept = static_cast<std::byte*>(heap_->allocate(5 * kSpanBytes));
  heap_->deallocate(freed);
  for (const std::size_t offset : {std::size_t{0}, kSpanBytes, 5 * kSpanBytes - 1}) {
    EXPECT_EQ(ones(masked(page_of(kept + offset))), page_size());
    EXPECT_EQ(ones(masked(page_of(freed + offset))), 0U);
  }
}

TEST_F(FreeMaskTest, clears_spans_that_were_never_in_use) {
  heap_->allocate(16);
  EXPECT_EQ(ones(masked(first_page() + 3 * kSpanBytes / page_size())), 0U);
}

TEST_F(FreeMaskTest, tells_whether_a_byte_has_changed) {
  heap_->allocate(64);
  std::vector<std::byte> zeros(page_size());
  FreeMask mask(heap_->metadata());
  EXPECT_FALSE(mask.apply(first_page(), zeros.data()));
  zeros[page_size() - 1] = std::byte{1};
  EXPECT_TRUE(mask.apply(first_page(), zeros.data()));
  EXPECT_TRUE(is_all_zero(zeros.data(), zeros.size()));
}

// What the metadata does not make sense of may be anybody's, and is kept.
TEST_F(FreeMaskTest, keeps_what_a_damaged_entry_may_stand_for) {
  heap_->allocate(3 * kSpanBytes);
  heap_->allocate(16);
  heap_.entry(0).kind = static_cast<layout::SpanKind>(9);
  for (std::size_t span = 0; span < 3; ++span) {
    EXPECT_EQ(ones(masked(first_page() + span * kSpanBytes / page_size())), page_size()) << span;
  }
}

TEST_F(FreeMaskTest, random_heaps_match_a_walk_byte_for_byte) {
  RandomSource random;
  HeapModel model(*heap_, random);
  for (std::size_t round = 0; round < scaled(15); ++round) {
    for (int i = 0; i < 150; ++i) ASSERT_EQ(model.step(), "");
    const std::vector<bool> live = live_bytes(heap_);
    FreeMask mask(heap_->metadata());
    const std::size_t pages = live.size() / page_size();
    std::vector<std::byte> copy(page_size());
    for (std::size_t i = 0; i < pages; ++i) {
      // Ascending, with jumps back and forth.
      const std::size_t page = random.one_in(4) ? random.below(pages) : i;
      std::fill(copy.begin(), copy.end(), std::byte{0xff});
      mask.apply(first_page() + page, copy.data());
      for (std::size_t at = 0; at < page_size(); ++at) {
        ASSERT_EQ(copy[at] == std::byte{0xff}, live[page * page_size() + at])
            << "page " << page << " byte " << at << " seed " << random.seed();
      }
      ASSERT_EQ(mask.is_free(first_page() + page), ones(copy) == 0)
          << "page " << page << " seed " << random.seed();
    }
  }
}

// The metadata may be anything: no page outside the copy is touched, and nothing else is read than
// the metadata.
TEST_F(FreeMaskTest, random_damage_is_harmless) {
  RandomSource random;
  const layout::Geometry& g = heap_->geometry();
  HeapModel model(*heap_, random);
  for (int i = 0; i < 300; ++i) ASSERT_EQ(model.step(), "");
  std::vector<std::byte> copy(page_size() + 64, std::byte{0xff});
  for (std::size_t round = 0; round < scaled(200); ++round) {
    std::vector<std::byte> metadata(heap_.region().base(), heap_.region().base() + g.data_offset);
    for (int i = 0; i < 50; ++i) {
      const std::size_t at = random.one_in(3) ? random.below(sizeof(layout::Superblock))
                                              : g.spans_offset + random.below(8 * 100);
      metadata[at] = static_cast<std::byte>(random.next());
    }
    FreeMask mask(HeapMetadata(metadata.data(), g));
    for (std::size_t i = 0; i < 200; ++i) {
      std::fill(copy.begin(), copy.end(), std::byte{0xff});
      const std::size_t page = first_page() + random.below(g.span_count * kSpanBytes / page_size());
      mask.apply(page, copy.data());
      EXPECT_EQ(mask.is_free(page), is_all_zero(copy.data(), page_size()));
      for (std::size_t at = page_size(); at < copy.size(); ++at)
        ASSERT_EQ(copy[at], std::byte{0xff});
    }
  }
}

}  // namespace
}  // namespace pagetide
