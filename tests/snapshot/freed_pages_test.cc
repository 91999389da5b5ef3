#include "pagetide/snapshot/freed_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "pagetide/allocator/free_mask.h"
#include "pagetide/base/hash.h"
#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/snapshot/verify.h"
#include "tests/support/arena_image.h"
#include "tests/support/crash_file_system.h"
#include "tests/support/free_span_pages.h"
#include "tests/support/heap_model.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"
#include "tests/support/test_scale.h"

// Under ClearPolicy::deferred a block that is freed in clean pages leaves them as they are. What
// snapshots make of the pages of whole spans that came back so.

namespace pagetide {
namespace {

using namespace literals;
using layout::kSpanBytes;

constexpr int kSecret = 0xab;

class FreedPagesTest : public testing::Test {
 protected:
  std::byte* allocate(std::size_t bytes) {
    auto* block = static_cast<std::byte*>(must(arena_.allocate(bytes)));
    std::memset(block, kSecret, bytes);
    return block;
  }
  SnapshotId take() { return must(snapshotter_->take()); }
  // How many of the pages of these bytes a snapshot refers to a segment for.
  std::size_t stored_pages(SnapshotId id, const std::byte* begin, std::size_t bytes) {
    const SnapshotImage image = must(store_.impl().resolve(id.value));
    const auto offset = static_cast<std::size_t>(begin - arena_.range().data());
    std::size_t stored = 0;
    for (std::size_t at = offset; at < offset + bytes; at += page_size()) {
      stored += image.pages.is_zero(at / page_size()) ? 0U : 1U;
    }
    return stored;
  }
  void expect_image_of_memory(SnapshotId id) {
    EXPECT_EQ(difference(image_of(arena_), must(image_of(store_, id))), "");
  }

  CrashFileSystem files_;
  Store store_ = must(Store::open("store", {.files = &files_}));
  Arena arena_ = must(Arena::create({.reserve_bytes = 64_MiB, .clear = ClearPolicy::deferred}));
  std::optional<Snapshotter> snapshotter_{std::in_place, arena_, store_};
};

TEST_F(FreedPagesTest, a_freed_large_block_refers_to_no_segment) {
  constexpr std::size_t kBytes = 5 * kSpanBytes;
  allocate(1000);
  std::byte* block = allocate(kBytes);
  const SnapshotId live = take();
  ASSERT_EQ(stored_pages(live, block, kBytes), kBytes / page_size());
  arena_.deallocate(block);
  const SnapshotId freed = take();
  EXPECT_EQ(stored_pages(freed, block, kBytes), 0U);
  EXPECT_EQ(*block, std::byte{kSecret}) << "else it was not left alone";
  const SnapshotInfo info = must(store_.info(freed));
  EXPECT_EQ(info.reported_pages, 0U);
  EXPECT_EQ(info.zero_pages, kBytes / page_size());
  EXPECT_EQ(info.data_pages(), 0U);
  // Nothing is left to be said by the next one.
  EXPECT_EQ(must(store_.info(take())).changed_pages, 0U);
}

TEST_F(FreedPagesTest, a_freed_large_block_is_restored_as_zeros) {
  constexpr std::size_t kBytes = 5 * kSpanBytes;
  std::byte* block = allocate(kBytes);
  take();
  arena_.deallocate(block);
  const SnapshotId freed = take();
  EXPECT_TRUE(must(verify(store_)).sound());
  snapshotter_.reset();
  { const Arena ending = std::move(arena_); }
  // There was nothing else in it.
  must(files_.remove("store/000000000001.segment"));
  const Arena again = must(store_.open_arena(freed));
  EXPECT_TRUE(is_all_zero(block, kBytes));
}

TEST_F(FreedPagesTest, a_rollback_brings_the_block_back_and_takes_it_away) {
  constexpr std::size_t kBytes = 5 * kSpanBytes;
  std::byte* block = allocate(kBytes);
  const SnapshotId live = take();
  arena_.deallocate(block);
  const SnapshotId freed = take();
  must(snapshotter_->rollback(live));
  EXPECT_EQ(std::memcmp(block, std::vector(kBytes, std::byte{kSecret}).data(), kBytes), 0);
  must(snapshotter_->rollback(freed));
  EXPECT_TRUE(is_all_zero(block, kBytes));
}

// It was zero then, and is stored as zero now; memory is not.
TEST_F(FreedPagesTest, a_rollback_to_when_the_block_was_zero_makes_it_zero) {
  constexpr std::size_t kBytes = 5 * kSpanBytes;
  auto* block = static_cast<std::byte*>(must(arena_.allocate(kBytes)));
  const SnapshotId zero = take();
  std::memset(block, kSecret, kBytes);
  take();
  arena_.deallocate(block);
  take();
  ASSERT_EQ(*block, std::byte{kSecret}) << "else there is nothing to be undone";
  must(snapshotter_->rollback(zero));
  EXPECT_TRUE(is_all_zero(block, kBytes));
}

TEST_F(FreedPagesTest, spans_of_slots_that_came_back_refer_to_no_segment) {
  constexpr std::size_t kSlots = 20 * kSpanBytes / 1024;
  std::vector<std::byte*> blocks(kSlots);
  for (std::byte*& block : blocks) block = allocate(1024);
  take();
  for (std::byte* block : blocks) arena_.deallocate(block);
  const SnapshotId freed = take();
  // The heap keeps an empty span or two.
  const SnapshotImage image = must(store_.impl().resolve(freed.value));
  const std::size_t free = count_pages_of_free_spans(image);
  EXPECT_GE(free, 17 * kSpanBytes / page_size());
  EXPECT_EQ(count_stored_pages_of_free_spans(image), 0U);
}

TEST_F(FreedPagesTest, what_a_block_lost_refers_to_no_segment_and_the_rest_to_the_first) {
  std::byte* block = allocate(10 * kSpanBytes);
  take();
  ASSERT_EQ(must(arena_.reallocate(block, 4 * kSpanBytes)), block);
  const SnapshotId smaller = take();
  EXPECT_EQ(stored_pages(smaller, block, 4 * kSpanBytes), 4 * kSpanBytes / page_size());
  EXPECT_EQ(stored_pages(smaller, block + 4 * kSpanBytes, 6 * kSpanBytes), 0U);
  EXPECT_EQ(must(store_.info(smaller)).data_pages(), 0U);
}

TEST_F(FreedPagesTest, a_block_that_grew_in_place_loses_nothing) {
  std::byte* block = allocate(4 * kSpanBytes);
  std::byte* behind = allocate(3 * kSpanBytes);
  take();
  arena_.deallocate(behind);
  ASSERT_EQ(must(arena_.reallocate(block, 6 * kSpanBytes)), block);
  const SnapshotId grown = take();
  EXPECT_EQ(stored_pages(grown, block, 4 * kSpanBytes), 4 * kSpanBytes / page_size());
  EXPECT_EQ(stored_pages(grown, behind, 3 * kSpanBytes), 0U);
  expect_image_of_memory(grown);
}

TEST_F(FreedPagesTest, a_block_over_the_place_of_two_is_stored) {
  std::byte* first = allocate(2 * kSpanBytes);
  std::byte* second = allocate(2 * kSpanBytes);
  ASSERT_EQ(second, first + 2 * kSpanBytes);
  take();
  arena_.deallocate(first);
  arena_.deallocate(second);
  ASSERT_EQ(allocate(3 * kSpanBytes), first);
  const SnapshotId over = take();
  EXPECT_EQ(stored_pages(over, first, 3 * kSpanBytes), 3 * kSpanBytes / page_size());
  EXPECT_EQ(stored_pages(over, first + 3 * kSpanBytes, kSpanBytes), 0U);
  expect_image_of_memory(over);
}

// Of a span that is used for slots now, the pages where none was handed out.
TEST_F(FreedPagesTest, a_page_without_slots_in_the_place_of_a_block_refers_to_no_segment) {
  std::byte* block = allocate(2 * kSpanBytes);
  take();
  arena_.deallocate(block);
  std::byte* slot = allocate(100);
  ASSERT_EQ(slot, block) << "else it is of another span";
  const SnapshotId reused = take();
  EXPECT_EQ(stored_pages(reused, block, kSpanBytes), 1U);
  EXPECT_EQ(stored_pages(reused, block + kSpanBytes, kSpanBytes), 0U);
  expect_image_of_memory(reused);
}

TEST_F(FreedPagesTest, a_block_in_the_same_place_keeps_what_is_written_to_it) {
  std::byte* block = allocate(5 * kSpanBytes);
  take();
  arena_.deallocate(block);
  take();
  ASSERT_EQ(must(arena_.allocate(5 * kSpanBytes)), block);
  ASSERT_TRUE(is_all_zero(block, 5 * kSpanBytes));
  std::memset(block + kSpanBytes, 1, kSpanBytes);
  const SnapshotId again = take();
  EXPECT_EQ(stored_pages(again, block, 5 * kSpanBytes), kSpanBytes / page_size());
  expect_image_of_memory(again);
}

TEST_F(FreedPagesTest, what_a_failed_take_found_freed_is_in_the_next_one) {
  constexpr std::size_t kBytes = 5 * kSpanBytes;
  std::byte* block = allocate(kBytes);
  take();
  arena_.deallocate(block);
  files_.fail_at(files_.operations().size() + 2, EIO);
  ASSERT_FALSE(snapshotter_->take().has_value());
  EXPECT_EQ(stored_pages(take(), block, kBytes), 0U);
}

TEST_F(FreedPagesTest, a_full_index_does_not_name_what_was_freed) {
  constexpr std::size_t kBytes = 5 * kSpanBytes;
  std::byte* kept = allocate(1000);
  std::byte* block = allocate(kBytes);
  take();
  arena_.deallocate(block);
  SnapshotId id;
  do {
    *kept ^= std::byte{1};
    id = take();
    ASSERT_LT(id.value, 100U);
  } while (!must(store_.info(id)).has_full_index);
  EXPECT_EQ(stored_pages(id, block, kBytes), 0U);
}

// The bytes that are free belong to a snapshot there.
TEST(FreedPagesNeverTest, under_never_a_freed_block_stays_as_it_was) {
  CrashFileSystem files;
  Store store = must(Store::open("store", {.files = &files}));
  Arena arena = must(Arena::create({.reserve_bytes = 64_MiB, .clear = ClearPolicy::never}));
  Snapshotter snapshotter(arena, store);
  void* block = must(arena.allocate(5 * kSpanBytes));
  std::memset(block, kSecret, 5 * kSpanBytes);
  must(snapshotter.take());
  arena.deallocate(block);
  const SnapshotId freed = must(snapshotter.take());
  EXPECT_EQ(must(store.info(freed)).changed_pages, 0U);
  EXPECT_EQ(difference(image_of(arena), must(image_of(store, freed))), "");
}

// --- against a walk over everything ---

// Of all pages: those that are free, and of these the ones whose whole span is.
struct FreePages {
  explicit FreePages(const HeapMetadata& heap) {
    const std::size_t first_page = heap.geometry().data_offset / page_size();
    const std::size_t pages_per_span = kSpanBytes / page_size();
    FreeMask mask(heap);
    for (std::size_t page = 0; page < heap.geometry().span_count * pages_per_span; ++page) {
      free.push_back(mask.is_free(first_page + page));
    }
    in_free_spans.assign(free.size(), true);
    for (std::size_t span = 0; span < heap.spans_used(); ++span) {
      const layout::SpanEntry& entry = heap.entry(span);
      const std::size_t spans = entry.kind == layout::SpanKind::small ? 1 : entry.run_spans;
      std::fill_n(in_free_spans.begin() + static_cast<std::ptrdiff_t>(span * pages_per_span),
                  spans * pages_per_span, false);
    }
  }

  std::vector<bool> free;
  std::vector<bool> in_free_spans;
};

TEST(FreedPagesWalkTest, all_pages_of_freed_spans_are_found_and_only_free_ones) {
  TestHeap heap(32_MiB, ClearPolicy::never);
  RandomSource random;
  HeapModel model(*heap, random);
  HeapDraft draft = must(HeapDraft::create(heap->geometry().span_count));
  const std::size_t metadata_bytes = heap->geometry().data_offset;
  const auto* region = reinterpret_cast<const std::byte*>(&heap->metadata().superblock());
  for (std::size_t round = 0; round < scaled(100); ++round) {
    const std::vector<std::byte> copy(region, region + metadata_bytes);
    const HeapMetadata before(copy.data(), heap->geometry());
    draft.capture(heap->metadata(), heap->changes(), false);
    must(heap.region().tracker().collect(heap.region().watch(), CollectMode::take));
    // Many first, so that blocks take the place of several.
    for (std::size_t i = random.below(300); i > 0 && model.size() > 20; --i) {
      ASSERT_EQ(model.free_one(), "");
    }
    for (std::size_t i = random.below(300); i > 0; --i) ASSERT_EQ(model.step(), "");
    heap->settle();
    draft.capture(heap->metadata(), heap->changes(), false);
    const FreePages then(before);
    const FreePages now(heap->metadata());
    DirtyBitmap freed(now.free.size());
    add_freed_pages(draft, before, heap->metadata(), freed);
    for (std::size_t page = 0; page < now.free.size(); ++page) {
      if (freed.test(page)) {
        ASSERT_TRUE(now.free[page]) << page;
      } else {
        ASSERT_TRUE(then.in_free_spans[page] || !now.in_free_spans[page]) << page;
      }
    }
  }
}

// --- everything at once ---

// Blocks of a few spans and slots that fill spans, found again by the heap's own walk.
void change(Arena& arena, RandomSource& random) {
  std::vector<void*> blocks;
  arena.heap().for_each_allocation([&](void* block, std::size_t) { blocks.push_back(block); });
  for (std::size_t i = random.below(60); i > 0; --i) {
    const std::size_t what = random.below(10);
    const std::size_t bytes =
        random.one_in(2) ? random.between(1, 9) * kSpanBytes - 100 : random.between(5000, 30'000);
    void* block = nullptr;
    if (blocks.size() > 100 || (what < 5 && !blocks.empty())) {
      std::swap(blocks[random.below(blocks.size())], blocks.back());
      if (what < 4) {
        arena.deallocate(blocks.back());
      } else {
        block = must(arena.reallocate(blocks.back(), bytes));
      }
      blocks.pop_back();
    } else {
      block = must(arena.allocate(bytes));
      // Parts of blocks stay as they were handed out, zero.
      std::memset(block, static_cast<int>(random.between(1, 255)), random.below(bytes));
    }
    if (block != nullptr) blocks.push_back(block);
  }
}

void random_history(RandomSource& random) {
  CrashFileSystem files;
  Store store = must(Store::open("store", {.files = &files}));
  std::optional<Arena> arena =
      must(Arena::create({.reserve_bytes = 64_MiB, .clear = ClearPolicy::deferred}));
  std::optional<Snapshotter> snapshotter(std::in_place, *arena, store);
  std::map<SnapshotId, ArenaImage> reference;
  for (int step = 0; step < 40; ++step) {
    change(*arena, random);
    const std::size_t what = reference.empty() ? 0 : random.below(8);
    if (what < 5) {
      if (random.one_in(6)) {
        files.fail_at(files.operations().size() + random.between(1, 4), EIO);
        ASSERT_FALSE(snapshotter->take().has_value());
        change(*arena, random);
      }
      const SnapshotId id = must(snapshotter->take());
      reference[id] = image_of(*arena);
      ASSERT_EQ(count_stored_pages_of_free_spans(must(store.impl().resolve(id.value))), 0U)
          << "snapshot " << id.value;
      continue;
    }
    const auto target =
        std::next(reference.begin(), static_cast<long>(random.below(reference.size())));
    if (what < 7) {
      must(snapshotter->rollback(target->first));
    } else {
      snapshotter.reset();
      arena.reset();
      arena = must(store.open_arena(target->first, {.clear = ClearPolicy::deferred}));
      snapshotter.emplace(*arena, store);
    }
    ASSERT_EQ(difference(target->second, image_of(*arena)), "") << "step " << step;
    ASSERT_TRUE(arena->heap().check().has_value());
  }
  for (const auto& [id, image] : reference) {
    ASSERT_EQ(difference(image, must(image_of(store, id))), "") << "snapshot " << id.value;
  }
}

TEST(FreedPagesHistory, random_histories_match_the_memory_and_keep_nothing_of_free_spans) {
  RandomSource random;
  for (std::size_t i = 0; i < scaled(10); ++i) {
    SCOPED_TRACE("seed " + std::to_string(random.seed()) + " history " + std::to_string(i));
    random_history(random);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace pagetide
