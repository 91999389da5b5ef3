#include "pagetide/allocator/heap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pagetide/allocator/heap_change_log.h"
#include "pagetide/base/hash.h"
#include "tests/support/child_process.h"
#include "tests/support/heap_model.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"

namespace pagetide {
namespace {

using namespace literals;
using layout::kSlotBytes;
using layout::kSpanBytes;
using ::testing::Eq;
using ::testing::KilledBySignal;

std::byte* allocate(Heap& heap, std::size_t bytes, std::size_t alignment = 16) {
  auto* block = static_cast<std::byte*>(heap.allocate(bytes, alignment));
  EXPECT_NE(block, nullptr) << bytes;
  return block;
}

// So many that another span of the class has a block too.
std::vector<std::byte*> fill_spans(Heap& heap, std::size_t bytes, std::size_t spans) {
  std::vector<std::byte*> blocks;
  const std::size_t slots = layout::slots_per_span(layout::size_class_of(bytes));
  for (std::size_t i = 0; i < slots * spans; ++i) blocks.push_back(allocate(heap, bytes));
  return blocks;
}

// --- what a process does first ---

TEST(HeapTest, the_first_block_of_every_class_can_be_filled_to_its_end) {
  const TestHeap heap;
  for (const std::uint32_t bytes : kSlotBytes) {
    std::byte* block = allocate(*heap, bytes);
    EXPECT_EQ(heap->usable_size(block), bytes);
    std::memset(block, 0xab, heap->usable_size(block));
  }
  EXPECT_EQ(must(heap->check()).live_blocks, kSlotBytes.size());
}

TEST(HeapTest, a_new_heap_is_empty_and_knows_its_name) {
  const TestHeap heap(32_MiB, ClearPolicy::never);
  EXPECT_EQ(heap->name(), "test heap");
  EXPECT_EQ(heap->clear_policy(), ClearPolicy::never);
  EXPECT_FALSE(heap->holds_code_addresses());
  const HeapStats stats = must(heap->check());
  EXPECT_EQ(stats.live_blocks, 0U);
  EXPECT_EQ(stats.live_bytes, 0U);
  EXPECT_EQ(stats.spans_in_use, 0U);
  EXPECT_EQ(stats.reserve_bytes, 32_MiB);
  heap->for_each_allocation([](void*, std::size_t) { FAIL(); });
}

// --- blocks ---

TEST(HeapTest, blocks_of_every_size_are_aligned_to_16_and_large_enough) {
  const TestHeap heap(64_MiB);
  for (std::size_t bytes = 0; bytes <= 70'000; bytes += bytes < 2100 ? 1 : 97) {
    std::byte* block = allocate(*heap, bytes);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block) % 16, 0U) << bytes;
    ASSERT_GE(heap->usable_size(block), bytes);
    std::memset(block, 1, bytes);
    heap->deallocate(block);
  }
}

TEST(HeapTest, blocks_of_no_bytes_are_unique) {
  const TestHeap heap;
  std::set<void*> blocks;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(blocks.insert(heap->allocate(0)).second);
  EXPECT_FALSE(blocks.contains(nullptr));
}

TEST(HeapTest, every_alignment_up_to_1_GiB_is_kept) {
  const TestHeap heap(4_GiB);
  for (std::size_t alignment = 1; alignment <= 1_GiB; alignment *= 2) {
    for (const std::size_t bytes : {1U, 100U, 32768U, 32769U, 100'000U}) {
      std::byte* block = allocate(*heap, bytes, alignment);
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0U)
          << bytes << " " << alignment;
      ASSERT_GE(heap->usable_size(block), bytes);
      std::memset(block, 1, bytes);
      // Few blocks of the largest alignments fit at once.
      if (alignment > 1_MiB) heap->deallocate(block);
    }
  }
  EXPECT_TRUE(heap->check());
}

TEST(HeapTest, blocks_of_no_bytes_at_a_large_alignment_are_blocks_like_others) {
  const TestHeap heap;
  // In front of, between and behind blocks in use.
  std::vector<std::byte*> blocks = {allocate(*heap, 100)};
  for (const std::size_t alignment : {64_KiB, 64_KiB, 128_KiB, 1_MiB}) {
    blocks.push_back(allocate(*heap, 0, alignment));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back()) % alignment, 0U);
    EXPECT_GT(heap->usable_size(blocks.back()), 0U);
    blocks.push_back(allocate(*heap, 50'000));
  }
  EXPECT_EQ(std::set<std::byte*>(blocks.begin(), blocks.end()).size(), blocks.size());
  EXPECT_EQ(must(heap->check()).live_blocks, blocks.size());
  for (std::byte* block : blocks) heap->deallocate(block);
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

TEST(HeapTest, what_is_no_alignment_is_refused) {
  const TestHeap heap;
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{24},
                                      std::size_t{2_GiB}, SIZE_MAX, std::size_t{1} << 63}) {
    EXPECT_EQ(heap->allocate(16, alignment), nullptr) << alignment;
  }
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

TEST(HeapTest, more_than_the_reservation_is_refused) {
  const TestHeap heap;
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - kSpanBytes, SIZE_MAX / 2,
                                  heap->geometry().span_count * kSpanBytes + 1}) {
    for (const std::size_t alignment : {16_KiB, 64_KiB, 1_GiB}) {
      EXPECT_EQ(heap->allocate(bytes, alignment), nullptr) << bytes;
    }
  }
  EXPECT_NE(heap->allocate(heap->geometry().span_count * kSpanBytes), nullptr);
}

TEST(HeapTest, freeing_nothing_does_nothing) {
  const TestHeap heap;
  heap->deallocate(nullptr);
  EXPECT_EQ(heap->usable_size(nullptr), 0U);
  EXPECT_TRUE(heap->check());
}

TEST(HeapTest, owns_the_data_and_nothing_else) {
  TestHeap heap;
  const std::byte* first = heap.data();
  const std::byte* end = first + heap->geometry().span_count * kSpanBytes;
  EXPECT_TRUE(heap->owns(first));
  EXPECT_TRUE(heap->owns(end - 1));
  EXPECT_FALSE(heap->owns(first - 1));
  EXPECT_FALSE(heap->owns(end));
  EXPECT_FALSE(heap->owns(nullptr));
  EXPECT_FALSE(heap->owns(&heap));
  EXPECT_EQ(heap->usable_size(&heap), 0U);
}

// --- against the model ---

class HeapPolicyTest : public testing::TestWithParam<ClearPolicy> {};

INSTANTIATE_TEST_SUITE_P(clear, HeapPolicyTest,
                         testing::Values(ClearPolicy::deferred, ClearPolicy::on_free,
                                         ClearPolicy::never),
                         [](const auto& policy) { return name_of(policy.param); });

TEST_P(HeapPolicyTest, random_use_equals_the_model) {
  RandomSource random;
  const TestHeap heap(64_MiB, GetParam());
  HeapModel model(*heap, random);
  for (std::size_t round = 0; round < scaled(40); ++round) {
    for (int i = 0; i < 200; ++i) ASSERT_EQ(model.step(), "");
    ASSERT_EQ(model.check(), "");
  }
  ASSERT_EQ(model.free_all(), "");
  EXPECT_EQ(model.check(), "");
}

TEST_P(HeapPolicyTest, random_use_of_many_small_blocks_equals_the_model) {
  RandomSource random;
  const TestHeap heap(16_MiB, GetParam());
  HeapModel model(*heap, random, HeapModel::kManySmall);
  for (std::size_t round = 0; round < scaled(12); ++round) {
    for (int i = 0; i < 5000; ++i) ASSERT_EQ(model.step(), "");
    ASSERT_EQ(model.check(), "");
  }
}

TEST_P(HeapPolicyTest, an_exhausted_heap_says_so_and_works_on_after_frees) {
  RandomSource random;
  const TestHeap heap(4_MiB, GetParam());
  HeapModel model(*heap, random);
  for (std::size_t round = 0; round < scaled(8); ++round) {
    const std::size_t bytes = random.one_in(2) ? random.between(2000, 30'000) : 100'000;
    std::size_t before = 0;
    do {
      before = model.size();
      ASSERT_EQ(model.allocate(bytes, 16), "");
    } while (model.size() > before);
    ASSERT_EQ(heap->allocate(300'000), nullptr);
    ASSERT_EQ(model.check(), "");
    for (std::size_t i = random.between(1, before); i > 0; --i) ASSERT_EQ(model.free_one(), "");
    ASSERT_EQ(model.check(), "");
  }
  ASSERT_EQ(model.free_all(), "");
  EXPECT_EQ(model.check(), "");
}

// The empty spans that classes keep for themselves are no reason to refuse anything.
TEST(HeapExhaustionTest, an_emptied_heap_can_give_all_of_it_to_one_block) {
  const TestHeap heap(4_MiB);
  for (const std::uint32_t bytes : kSlotBytes) heap->deallocate(allocate(*heap, bytes));
  EXPECT_EQ(must(heap->check()).spans_in_use, kSlotBytes.size());
  std::byte* all = allocate(*heap, heap->geometry().span_count * kSpanBytes);
  EXPECT_EQ(must(heap->check()).live_blocks, 1U);
  EXPECT_EQ(heap->allocate(1), nullptr);
  heap->deallocate(all);
  for (const std::uint32_t bytes : kSlotBytes) allocate(*heap, bytes);
}

TEST(HeapExhaustionTest, a_small_block_gets_the_empty_span_of_another_class) {
  const TestHeap heap(4_MiB);
  heap->deallocate(allocate(*heap, 5000));
  allocate(*heap, (heap->geometry().span_count - 1) * kSpanBytes);
  EXPECT_NE(heap->allocate(100), nullptr);
  EXPECT_EQ(must(heap->check()).spans_in_use, heap->geometry().span_count);
  EXPECT_EQ(heap->allocate(5000), nullptr);
}

// --- clearing ---

TEST(HeapClearTest, freed_bytes_are_zero_at_once) {
  const TestHeap heap;
  for (const std::size_t bytes : {1U, 16U, 100U, 1000U, 5000U, 32768U, 65536U, 300'000U}) {
    // The neighbour keeps the span, so that it is the clearing that is seen.
    std::byte* neighbour = allocate(*heap, bytes);
    std::byte* block = allocate(*heap, bytes);
    const std::size_t usable = heap->usable_size(block);
    std::memset(neighbour, 0xcd, usable);
    std::memset(block, 0xab, usable);
    heap->deallocate(block);
    EXPECT_TRUE(is_all_zero(block, usable)) << bytes;
    EXPECT_EQ(std::memcmp(neighbour, neighbour + 1, usable - 1), 0) << bytes;
    EXPECT_EQ(*neighbour, std::byte{0xcd});
  }
}

TEST(HeapClearTest, never_leaves_freed_bytes_also_of_whole_spans) {
  const TestHeap heap(32_MiB, ClearPolicy::never);
  std::vector<std::byte*> blocks = fill_spans(*heap, 1000, 8);
  blocks.push_back(allocate(*heap, 1_MiB));
  for (std::byte* block : blocks) std::memset(block, 0xab, heap->usable_size(block));
  for (std::byte* block : blocks) heap->deallocate(block);
  EXPECT_LE(must(heap->check()).spans_in_use, 4U);
  for (std::byte* block : blocks) EXPECT_EQ(block[999], std::byte{0xab});
}

TEST(HeapClearTest, large_runs_read_as_zero_after_free_under_on_free) {
  const TestHeap heap(32_MiB, ClearPolicy::on_free);
  std::byte* block = allocate(*heap, 1_MiB);
  std::memset(block, 0xab, 1_MiB);
  heap->deallocate(block);
  EXPECT_TRUE(is_all_zero(block, 1_MiB));
}

TEST(HeapClearTest, large_runs_read_as_zero_when_they_come_again) {
  for (const ClearPolicy policy : {ClearPolicy::on_free, ClearPolicy::deferred}) {
    const TestHeap heap(32_MiB, policy);
    std::byte* block = allocate(*heap, 1_MiB);
    std::memset(block, 0xab, 1_MiB);
    heap->deallocate(block);
    EXPECT_EQ(allocate(*heap, 2_MiB), block);
    EXPECT_TRUE(is_all_zero(block, 2_MiB));
  }
}

TEST(HeapClearTest, locked_memory_is_zero_after_free_too) {
  const TestHeap heap(32_MiB, ClearPolicy::on_free);
  std::byte* block = allocate(*heap, 128_KiB);
  std::memset(block, 0xab, 128_KiB);
  ASSERT_TRUE(lock_memory(ByteRange::of(block, 128_KiB)));
  heap->deallocate(block);
  EXPECT_TRUE(is_all_zero(block, 128_KiB));
  ::munlock(block, 128_KiB);
}

// --- spans ---

// In spans that are dirty anyway. A few may stay free where they are, up to an eighth of a span.
TEST(HeapSpanTest, freed_slots_are_used_again_before_another_span) {
  RandomSource random;
  for (const std::size_t bytes : {16U, 48U, 112U, 128U, 1000U, 5000U, 32768U}) {
    const TestHeap heap;
    std::vector<std::byte*> blocks = fill_spans(*heap, bytes, 4);
    for (std::size_t round = 0; round < scaled(8); ++round) {
      std::size_t freed = 0;
      for (std::byte*& block : blocks) {
        if (!random.one_in(round % 2 == 0 ? 2 : 20)) continue;
        heap->deallocate(block);
        block = nullptr;
        ++freed;
      }
      for (std::byte*& block : blocks) {
        if (block == nullptr) block = allocate(*heap, bytes);
      }
      ASSERT_LE(must(heap->check()).spans_in_use, 5U) << bytes << ", " << freed << " freed";
    }
  }
}

TEST(HeapSpanTest, every_slot_can_be_used_before_the_heap_is_exhausted) {
  RandomSource random;
  for (const std::size_t bytes : {16U, 1000U, 32768U}) {
    const TestHeap heap(4_MiB);
    std::vector<void*> blocks;
    while (void* block = heap->allocate(bytes)) blocks.push_back(block);
    for (std::size_t i = 0; i < blocks.size(); i += 1 + random.below(40)) {
      heap->deallocate(std::exchange(blocks[i], nullptr));
    }
    for (void*& block : blocks) {
      if (block == nullptr) block = heap->allocate(bytes);
      ASSERT_NE(block, nullptr) << bytes;
    }
    EXPECT_EQ(heap->allocate(bytes), nullptr);
  }
}

TEST(HeapSpanTest, a_block_that_comes_and_goes_keeps_its_span) {
  const TestHeap heap;
  std::byte* block = allocate(*heap, 100);
  for (int i = 0; i < 10; ++i) {
    heap->deallocate(block);
    EXPECT_EQ(must(heap->check()).spans_in_use, 1U);
    EXPECT_EQ(allocate(*heap, 100), block);
  }
}

// One is kept empty, and one is the current one of its thread.
TEST(HeapSpanTest, empty_spans_but_two_a_class_come_back) {
  const TestHeap heap(64_MiB);
  std::vector<std::byte*> blocks;
  for (const std::size_t bytes : {16U, 128U, 5000U, 32768U}) {
    const auto more = fill_spans(*heap, bytes, 5);
    blocks.insert(blocks.end(), more.begin(), more.end());
  }
  EXPECT_EQ(must(heap->check()).spans_in_use, 20U);
  for (std::byte* block : blocks) heap->deallocate(block);
  EXPECT_LE(must(heap->check()).spans_in_use, 8U);
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

TEST(HeapSpanTest, statistics_count_slots_and_spans) {
  const TestHeap heap;
  allocate(*heap, 100);     // 112
  allocate(*heap, 5000);    // 5120
  allocate(*heap, 70'000);  // 2 spans
  const HeapStats stats = must(heap->check());
  EXPECT_EQ(stats.live_blocks, 3U);
  EXPECT_EQ(stats.live_bytes, 112U + 5120U + 2 * kSpanBytes);
  EXPECT_EQ(stats.spans_in_use, 4U);
  EXPECT_EQ(stats.heap_bytes, heap->heap_bytes());
  EXPECT_GE(stats.heap_bytes, 4 * kSpanBytes);
  EXPECT_EQ(heap->stats().live_bytes, stats.live_bytes);
}

// --- what a snapshot needs ---

// Whether all bytes of the region that are not zero lie in metadata_ranges(), in used_ranges() or
// in the run-time page.
bool used_ranges_hold_everything(TestHeap& heap, std::size_t committed_bytes) {
  std::vector<bool> used(committed_bytes / page_size(), false);
  const auto mark = [&](ByteRange range) {
    const PageRange pages = PageRange::covering(range, heap.region().range());
    for (std::size_t page = pages.first; page < pages.end(); ++page) used.at(page) = true;
  };
  for (const UsedRanges& ranges : {heap->metadata_ranges(), heap->used_ranges()}) {
    std::uintptr_t end = 0;
    for (const ByteRange& range : ranges.span()) {
      EXPECT_TRUE(range.is_page_aligned());
      EXPECT_GT(range.begin, end) << "ranges must ascend and not touch";
      end = range.end();
      mark(range);
    }
    EXPECT_EQ(ranges.end(), end);
  }
  EXPECT_LE(heap->metadata_ranges().end(), reinterpret_cast<std::uintptr_t>(heap.data()));
  const std::size_t runtime_page = heap->geometry().runtime_offset / page_size();
  EXPECT_FALSE(used.at(runtime_page)) << "the run-time page is in no snapshot";
  used.at(runtime_page) = true;
  for (std::size_t page = 0; page < used.size(); ++page) {
    if (!used[page] && !is_all_zero(heap.region().base() + page * page_size(), page_size())) {
      return false;
    }
  }
  return true;
}

TEST(HeapUsedRangesTest, hold_everything_that_is_not_zero) {
  RandomSource random;
  TestHeap heap(16_MiB);
  *reinterpret_cast<char*>(heap.region().base() + heap->geometry().runtime_offset) = 1;
  // To look at all of it; a heap without a block has nothing beyond its tables.
  must(heap.region().commit(heap.region().range()));
  EXPECT_TRUE(used_ranges_hold_everything(heap, 16_MiB));
  HeapModel model(*heap, random);
  for (std::size_t round = 0; round < scaled(10); ++round) {
    for (int i = 0; i < 30; ++i) ASSERT_EQ(model.step(), "");
    ASSERT_TRUE(used_ranges_hold_everything(heap, 16_MiB));
  }
  // Spans of so many slots that all groups of bitmaps are in use.
  fill_spans(*heap, 16, 3);
  EXPECT_TRUE(used_ranges_hold_everything(heap, 16_MiB));
}

TEST(HeapUsedRangesTest, join_neighbours_and_skip_what_is_empty) {
  UsedRanges ranges;
  EXPECT_EQ(ranges.end(), 0U);
  ranges.add({100, 0});
  ranges.add({100, 10});
  ranges.add({110, 5});
  ranges.add({120, 1});
  const std::vector<ByteRange> found(ranges.span().begin(), ranges.span().end());
  EXPECT_EQ(found, (std::vector<ByteRange>{{100, 15}, {120, 1}}));
  EXPECT_EQ(ranges.end(), 121U);
}

// The promise that makes frees cheap to snapshot.
TEST(HeapTrackingTest, a_free_without_clearing_writes_no_data_page) {
  TestHeap heap(32_MiB, ClearPolicy::never);
  const std::vector<std::byte*> blocks = fill_spans(*heap, 64, 4);
  Tracker& tracker = heap.region().tracker();
  must(tracker.collect(heap.region().watch(), CollectMode::take));
  // Half of them: no span gets empty.
  for (std::size_t i = 0; i < blocks.size(); i += 2) heap->deallocate(blocks[i]);
  const Collected collected = must(tracker.collect(heap.region().watch(), CollectMode::take));
  EXPECT_FALSE(collected.written.any());
  EXPECT_FALSE(collected.zeroed.any());
}

TEST(HeapTrackingTest, metadata_is_not_tracked_and_a_change_of_it_is_logged) {
  TestHeap heap;
  Tracker& tracker = heap.region().tracker();
  std::byte* first = allocate(*heap, 256);
  must(tracker.collect(heap.region().watch(), CollectMode::take));
  heap->changes().clear();
  std::byte* second = allocate(*heap, 256);
  heap->deallocate(first);
  (void)second;
  const Collected collected = must(tracker.collect(heap.region().watch(), CollectMode::take));
  // The cleared bytes of the freed block.
  EXPECT_EQ(collected.written.count(), 1U);
  EXPECT_TRUE(collected.written.test(0));
  // The bits of both: one line.
  std::size_t spans = 0;
  heap->changes().for_each([&](std::size_t span, std::uint8_t lines, bool entry) {
    ++spans;
    EXPECT_EQ(span, 0U);
    EXPECT_EQ(lines, 1U);
    EXPECT_FALSE(entry);
  });
  EXPECT_EQ(spans, 1U);
}

TEST(HeapFlagsTest, code_addresses_once_held_stay_noted) {
  TestHeap heap;
  heap->set_holds_code_addresses();
  heap->set_holds_code_addresses();
  EXPECT_TRUE(heap->holds_code_addresses());
  EXPECT_EQ(heap.superblock().flags, layout::kHoldsCodeAddresses);
  EXPECT_TRUE(heap->check());
}

TEST(HeapFlagsTest, free_bytes_are_zero_where_every_free_clears) {
  EXPECT_TRUE(TestHeap()->free_bytes_are_zero());
  EXPECT_FALSE(TestHeap(32_MiB, ClearPolicy::never)->free_bytes_are_zero());
}

TEST(HeapFlagsTest, free_bytes_that_come_from_elsewhere_are_zero_where_both_sides_clear) {
  TestHeap clearing;
  clearing->inherit_free_bytes_are_zero(false);
  EXPECT_FALSE(clearing->free_bytes_are_zero());
  clearing->inherit_free_bytes_are_zero(true);
  EXPECT_TRUE(clearing->free_bytes_are_zero());
  TestHeap keeping(32_MiB, ClearPolicy::never);
  keeping->inherit_free_bytes_are_zero(true);
  EXPECT_FALSE(keeping->free_bytes_are_zero());
}

// --- creation ---

RegionOptions region_options(std::size_t reserve_bytes, std::uintptr_t base = 0) {
  RegionOptions options;
  options.reserve_bytes = reserve_bytes;
  options.base = base;
  return options;
}

TEST(HeapFormatTest, refuses_a_name_that_does_not_fit) {
  Region region = must(Region::reserve(region_options(1_MiB)));
  const auto heap = Heap::format(region, std::string(64, 'n'), ClearPolicy::never);
  ASSERT_FALSE(heap);
  EXPECT_EQ(heap.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(heap.error().message(), "the arena's name has 64 bytes; at most 63 fit.");
  EXPECT_EQ(must(Heap::format(region, std::string(63, 'n'), ClearPolicy::never))->name(),
            std::string(63, 'n'));
}

TEST(HeapFormatTest, refuses_a_region_that_is_too_small) {
  Region region = must(Region::reserve(region_options(64_KiB)));
  const auto heap = Heap::format(region, "small", ClearPolicy::never);
  ASSERT_FALSE(heap);
  EXPECT_EQ(heap.error().code(), ErrorCode::invalid_argument);
}

TEST(HeapFormatTest, refuses_a_base_that_is_not_aligned_to_spans) {
  Region region = must(Region::reserve(region_options(1_MiB, 0x5540'0000'0000 + page_size())));
  const auto heap = Heap::format(region, "crooked", ClearPolicy::never);
  ASSERT_FALSE(heap);
  EXPECT_EQ(heap.error().message(),
            "a heap's base must be a multiple of 65536 bytes; 0x554000001000 is not.");
}

TEST(HeapFormatTest, the_smallest_region_holds_a_block) {
  const auto told = layout::geometry_for(1).error().message();
  const std::size_t bytes = std::stoul(told.substr(told.rfind(' ') + 1));
  Region region = must(Region::reserve(region_options(bytes)));
  const auto heap = must(Heap::format(region, "smallest", ClearPolicy::on_free));
  EXPECT_NE(heap->allocate(kSpanBytes), nullptr);
  EXPECT_EQ(must(heap->check()).live_bytes, kSpanBytes);
}

// --- proven corruption ---

std::string message(const std::string& before, const void* address, const std::string& after) {
  std::ostringstream text;
  text << "pagetide: heap corruption: " << before << address << after << '\n';
  return text.str();
}

void expect_abort(Heap& heap, void* block, const std::string& expected) {
  EXPECT_EXIT(heap.deallocate(block), KilledBySignal(SIGABRT), Eq(expected));
}

TEST(HeapDeathTest, double_free) {
  const TestHeap heap;
  std::byte* block = allocate(*heap, 100);
  heap->deallocate(block);
  expect_abort(*heap, block, message("double free of ", block, ""));
}

TEST(HeapDeathTest, free_of_a_slot_that_was_never_allocated) {
  const TestHeap heap;
  std::byte* block = allocate(*heap, 112);
  expect_abort(*heap, block + 112, message("double free of ", block + 112, ""));
}

TEST(HeapDeathTest, double_free_of_a_large_block) {
  const TestHeap heap;
  std::byte* block = allocate(*heap, 200'000);
  heap->deallocate(block);
  expect_abort(*heap, block, message("invalid free of ", block, ": nothing is allocated there"));
}

TEST(HeapDeathTest, double_free_of_a_block_whose_span_came_back) {
  const TestHeap heap;
  const std::vector<std::byte*> blocks = fill_spans(*heap, 1000, 8);
  for (std::byte* block : blocks) heap->deallocate(block);
  const auto came_back = [&](std::byte* block) { return heap->usable_size(block) == 0; };
  std::byte* gone = *std::find_if(blocks.begin(), blocks.end(), came_back);
  expect_abort(*heap, gone, message("invalid free of ", gone, ": nothing is allocated there"));
}

TEST(HeapDeathTest, free_of_an_interior_pointer) {
  const TestHeap heap;
  std::byte* block = allocate(*heap, 100);
  for (const std::ptrdiff_t offset : {1, 16, 111}) {
    expect_abort(
        *heap, block + offset,
        message("invalid free of ", block + offset, ": not the start of an allocated block"));
  }
}

TEST(HeapDeathTest, free_of_the_rest_behind_the_last_slot_of_a_span) {
  TestHeap heap;
  // 65536 bytes are 585 slots of 112 bytes and 16 bytes more.
  allocate(*heap, 112);
  std::byte* rest = heap.data() + std::ptrdiff_t{585} * 112;
  expect_abort(*heap, rest,
               message("invalid free of ", rest, ": not the start of an allocated block"));
}

TEST(HeapDeathTest, free_of_an_interior_pointer_of_a_large_block) {
  const TestHeap heap;
  std::byte* block = allocate(*heap, 200'000);
  expect_abort(*heap, block + 16,
               message("invalid free of ", block + 16, ": not the start of an allocated block"));
  std::byte* second_span = block + kSpanBytes;
  expect_abort(*heap, second_span,
               message("invalid free of ", second_span, ": nothing is allocated there"));
}

TEST(HeapDeathTest, free_of_a_foreign_pointer) {
  TestHeap heap;
  const TestHeap other;
  int on_the_stack = 0;
  std::byte* of_another_heap = allocate(*other, 100);
  std::byte* metadata = heap.region().base();
  for (void* foreign :
       {static_cast<void*>(&on_the_stack), static_cast<void*>(of_another_heap),
        static_cast<void*>(metadata), static_cast<void*>(heap.region().range().data() + 32_MiB)}) {
    expect_abort(*heap, foreign,
                 message("invalid free of ", foreign, ": outside the arena's data"));
  }
}

TEST(HeapDeathTest, free_where_nothing_was_ever_allocated) {
  TestHeap heap;
  std::byte* nothing = heap.data() + 10 * kSpanBytes;
  expect_abort(*heap, nothing,
               message("invalid free of ", nothing, ": nothing is allocated there"));
}

// --- threads and processes ---

// A block with what its owner stored in it.
struct Parcel {
  unsigned char* data;
  std::size_t size;
  unsigned char content;

  bool is_intact() const {
    for (std::size_t i = 0; i < size; i += i < 64 ? 1 : 61) {
      if (data[i] != content) return false;
    }
    return size == 0 || data[size - 1] == content;
  }
};

// Blocks on their way from the thread that allocated them to the one that frees them.
class Exchange {
 public:
  // Gives one, gets another.
  Parcel swap(Parcel parcel, RandomSource& random) {
    const std::lock_guard lock(mutex_);
    parcels_.push_back(parcel);
    std::swap(parcels_.back(), parcels_[random.below(parcels_.size())]);
    if (parcels_.size() < 200) return {nullptr, 0, 0};
    parcel = parcels_.back();
    parcels_.pop_back();
    return parcel;
  }
  const std::vector<Parcel>& rest() const { return parcels_; }

 private:
  std::mutex mutex_;
  std::vector<Parcel> parcels_;
};

TEST_P(HeapPolicyTest, threads_allocate_and_free_also_what_others_allocated) {
  RandomSource random;
  const TestHeap heap(64_MiB, GetParam());
  Exchange exchange;
  std::atomic<int> damaged{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, seed = random.next()] {
      RandomSource own(seed);
      for (std::size_t step = scaled(15'000); step > 0; --step) {
        const std::size_t bytes = own.one_in(40) ? own.below(200'000) : own.below(2000);
        Parcel parcel{static_cast<unsigned char*>(heap->allocate(bytes)), bytes,
                      static_cast<unsigned char>(own.between(1, 255))};
        if (parcel.data == nullptr) continue;
        std::memset(parcel.data, parcel.content, bytes);
        parcel = exchange.swap(parcel, own);
        if (parcel.data == nullptr) continue;
        if (!parcel.is_intact()) ++damaged;
        heap->deallocate(parcel.data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(damaged.load(), 0);
  EXPECT_EQ(must(heap->check()).live_blocks, exchange.rest().size());
  for (const Parcel& parcel : exchange.rest()) {
    EXPECT_TRUE(parcel.is_intact());
    heap->deallocate(parcel.data);
  }
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

TEST(HeapForkTest, a_child_goes_on_with_its_copy_and_the_parent_with_its_own) {
  RandomSource random;
  const TestHeap heap(64_MiB);
  HeapModel model(*heap, random);
  for (int i = 0; i < 200; ++i) ASSERT_EQ(model.step(), "");
  EXPECT_EQ(run_in_child([&]() -> std::string {
              for (int i = 0; i < 500; ++i) {
                if (std::string wrong = model.step(); !wrong.empty()) return wrong;
              }
              return model.check();
            }),
            "");
  for (int i = 0; i < 200; ++i) ASSERT_EQ(model.step(), "");
  EXPECT_EQ(model.check(), "");
}

TEST(HeapExhaustionTest, a_machine_without_memory_gives_no_block_and_passes) {
  const TestHeap heap;
  void* during = nullptr;
  {
    const NoMoreMemory limit;
    during = heap->allocate(100);
  }
  EXPECT_EQ(during, nullptr);
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
  EXPECT_NE(heap->allocate(100), nullptr);
}

}  // namespace
}  // namespace pagetide
