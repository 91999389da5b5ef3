// What `pagetide check` looks for, against an oracle that looks at every byte of the arena.

#include "tools/cli/free_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "pagetide/allocator/arena.h"
#include "pagetide/base/hash.h"
#include "tests/support/must.h"
#include "tests/support/random_mutator.h"
#include "tests/support/random_source.h"

namespace pagetide::cli {
namespace {

using namespace literals;
using layout::kSpanBytes;

constexpr std::size_t kEverything = SIZE_MAX;

class FreeMemoryTest : public ::testing::Test {
 protected:
  FreeMemoryTest()
      : arena_(must(Arena::create(
            {.name = "free", .reserve_bytes = 64_MiB, .clear = ClearPolicy::on_free}))) {
    info_.region_base = arena_.range().begin;
    info_.reserve_bytes = arena_.range().size;
  }

  const layout::Geometry& geometry() const { return arena_.heap().geometry(); }
  std::size_t spans_used() const {
    return reinterpret_cast<const layout::Superblock*>(arena_.range().data())->spans_used;
  }
  // The data area as far as it was ever used.
  std::span<std::byte> data() const {
    return {arena_.range().data() + geometry().data_offset, spans_used() * kSpanBytes};
  }
  std::vector<std::byte> metadata() const {
    return {arena_.range().data(), arena_.range().data() + geometry().data_offset};
  }

  // Offsets in the data of all that is free, ascending.
  std::vector<std::size_t> free_offsets() const {
    std::vector<bool> is_live(data().size());
    arena_.heap().for_each_allocation([&](void* block, std::size_t size) {
      const auto first = is_live.begin() + (static_cast<std::byte*>(block) - data().data());
      std::fill(first, first + static_cast<std::ptrdiff_t>(size), true);
    });
    std::vector<std::size_t> offsets;
    for (std::size_t i = 0; i < is_live.size(); ++i) {
      if (!is_live[i]) offsets.push_back(i);
    }
    return offsets;
  }

  // Writes some bytes here and there into free memory.
  void write_to_free_memory(RandomSource& random, std::size_t times) {
    const std::vector<std::size_t> free = free_offsets();
    for (std::size_t i = 0; i < times; ++i) {
      const std::size_t first = random.below(free.size());
      const std::size_t count = random.one_in(4) ? random.between(1, 20'000) : random.between(1, 9);
      for (std::size_t k = first; k < std::min(first + count, free.size()); ++k) {
        data()[free[k]] = static_cast<std::byte>(random.below(3));
      }
    }
  }

  // Scans the arena as it is, with this metadata; the data comes in runs of any length, without
  // some of the pages that are zero.
  Result<FreeMemory> scan(const std::vector<std::byte>& metadata, RandomSource& random,
                          std::size_t max_findings = kEverything) const {
    SparseImage image;
    image.add({0, metadata.size() / page_size()}, metadata);
    auto heap = decode_heap(image, info_);
    if (!heap) return propagate(heap);
    FreeMemoryScan scan(image, std::move(*heap), max_findings);
    const std::size_t pages = data().size() / page_size();
    for (std::size_t page = 0; page < pages;) {
      const std::size_t count = std::min(random.between(1, 40), pages - page);
      const auto content = data().subspan(page * page_size(), count * page_size());
      const bool is_left_out = is_all_zero(content.data(), content.size()) && random.one_in(2);
      if (!is_left_out) {
        scan.add({geometry().data_offset / page_size() + page, count}, content);
      }
      page += count;
    }
    return scan.finish();
  }

  Arena arena_;
  SnapshotInfo info_;
};

TEST_F(FreeMemoryTest, random_use_leaves_nothing_behind) {
  RandomSource random;
  RandomMutator mutator(arena_, random.next());
  for (std::size_t round = 0; round < scaled(20); ++round) {
    mutator.steps(200);
    const FreeMemory memory = must(scan(metadata(), random));
    EXPECT_EQ(memory.finding_count, 0U);
    EXPECT_EQ(memory.free_bytes, data().size() - arena_.heap().stats().live_bytes);
  }
}

TEST_F(FreeMemoryTest, what_was_written_to_free_memory_is_found_and_nothing_else) {
  RandomSource random;
  RandomMutator mutator(arena_, random.next());
  for (std::size_t round = 0; round < scaled(8); ++round) {
    mutator.steps(300);
    write_to_free_memory(random, random.between(1, 50));
    std::vector<std::uintptr_t> expected;  // ascending
    for (const std::size_t offset : free_offsets()) {
      if (data()[offset] != std::byte{0}) {
        expected.push_back(reinterpret_cast<std::uintptr_t>(&data()[offset]));
      }
    }
    const FreeMemory memory = must(scan(metadata(), random));
    std::uintptr_t end = 0;
    std::size_t nonzero_bytes = 0;
    for (const Finding& f : memory.findings) {
      EXPECT_GE(f.address, end) << "ascending, and one finding a place";
      end = f.address + f.place.size_bytes;
      const auto first = std::lower_bound(expected.begin(), expected.end(), f.address);
      const auto last = std::lower_bound(first, expected.end(), end);
      ASSERT_NE(first, last);
      EXPECT_EQ(*first, f.address + f.first_offset);
      EXPECT_EQ(*std::prev(last), f.address + f.last_offset);
      EXPECT_EQ(std::distance(first, last), f.nonzero_bytes);
      const auto* content = reinterpret_cast<const std::byte*>(*first);  // NOLINT
      EXPECT_EQ(std::memcmp(f.content.data(), content, f.content_bytes()), 0);
      nonzero_bytes += f.nonzero_bytes;
    }
    EXPECT_EQ(nonzero_bytes, expected.size());
  }
}

TEST_F(FreeMemoryTest, findings_beyond_what_was_asked_for_are_only_counted) {
  RandomSource random;
  std::array<void*, 10> blocks{};
  for (void*& block : blocks) block = must(arena_.allocate(64));
  for (void* block : blocks) arena_.deallocate(block);
  for (void* block : blocks) static_cast<char*>(block)[63] = 1;
  const FreeMemory memory = must(scan(metadata(), random, 3));
  EXPECT_EQ(memory.finding_count, 10U);
  ASSERT_EQ(memory.findings.size(), 3U);
  EXPECT_EQ(memory.findings[2].address, reinterpret_cast<std::uintptr_t>(blocks[2]));
}

// The zeros between stand where they were, although their page was not stored.
TEST_F(FreeMemoryTest, content_goes_on_over_a_page_that_is_left_out) {
  auto* block = static_cast<std::byte*>(must(arena_.allocate(32_KiB)));
  arena_.deallocate(block);
  block[page_size() - 3] = std::byte{7};
  block[3 * page_size()] = std::byte{8};
  SparseImage image;
  image.add({0, metadata().size() / page_size()}, metadata());
  FreeMemoryScan scan(image, must(decode_heap(image, info_)), kEverything);
  const std::size_t first_page = geometry().data_offset / page_size();
  for (const std::size_t page : {0U, 3U}) {
    scan.add({first_page + page, 1}, data().subspan(page * page_size(), page_size()));
  }
  const FreeMemory memory = scan.finish();
  ASSERT_EQ(memory.findings.size(), 1U);
  const Finding& f = memory.findings[0];
  EXPECT_EQ(f.first_offset, page_size() - 3);
  EXPECT_EQ(f.last_offset, 3 * page_size());
  EXPECT_EQ(f.nonzero_bytes, 2U);
  EXPECT_EQ(f.content_bytes(), Finding::kContentBytes);
  std::array<std::byte, Finding::kContentBytes> content{std::byte{7}};
  EXPECT_EQ(f.content, content);
}

TEST_F(FreeMemoryTest, data_beyond_the_last_span_that_was_used_is_free) {
  must(arena_.allocate(64));
  std::vector<std::byte> page(page_size());
  page[5] = std::byte{1};
  SparseImage image;
  image.add({0, metadata().size() / page_size()}, metadata());
  FreeMemoryScan scan(image, must(decode_heap(image, info_)), kEverything);
  const std::size_t span = geometry().span_count;
  scan.add({(geometry().data_offset + span * kSpanBytes) / page_size(), 1}, page);
  const FreeMemory memory = scan.finish();
  ASSERT_EQ(memory.findings.size(), 1U);
  EXPECT_EQ(memory.findings[0].place.kind, FreeKind::span);
  EXPECT_EQ(memory.findings[0].place.span, span);
  EXPECT_EQ(memory.findings[0].first_offset, 5U);
}

// Spans behind an entry that is none may belong to it: a large block's have no entries.
TEST_F(FreeMemoryTest, what_an_undecodable_entry_may_stand_for_is_not_called_free) {
  RandomSource random;
  auto* large = static_cast<std::byte*>(must(arena_.allocate(3 * kSpanBytes)));
  must(arena_.allocate(64));
  std::memset(large, 1, 3 * kSpanBytes);
  std::vector<std::byte> damaged = metadata();
  damaged[geometry().spans_offset] = std::byte{9};  // the kind of span 0
  const FreeMemory memory = must(scan(damaged, random));
  EXPECT_EQ(memory.heap.problem_count, 1U);
  EXPECT_EQ(memory.finding_count, 0U);
  EXPECT_EQ(memory.free_spans, 0U);
}

// Whatever the metadata is, the scan ends and every finding lies in the data.
TEST_F(FreeMemoryTest, survives_random_damage) {
  RandomSource random;
  RandomMutator(arena_, random.next()).steps(2000);
  const std::vector<std::byte> whole = metadata();
  const std::size_t spans_end = geometry().spans_offset + spans_used() * sizeof(layout::SpanEntry);
  std::size_t decoded = 0;
  for (std::size_t round = 0; round < scaled(200); ++round) {
    std::vector<std::byte> damaged = whole;
    for (std::size_t i = 0; i < 1 + round % 20; ++i) {
      // Half of the damage hits the used part of the span table.
      const std::size_t at = random.one_in(2) ? random.between(geometry().spans_offset, spans_end)
                                              : random.below(damaged.size());
      damaged[at] = static_cast<std::byte>(random.below(256));
    }
    const auto memory = scan(damaged, random);
    if (!memory) continue;
    ++decoded;
    EXPECT_LE(memory->free_spans, geometry().span_count);
    for (const Finding& f : memory->findings) {
      ASSERT_TRUE(arena_.heap().owns(reinterpret_cast<void*>(f.address)));  // NOLINT
      ASSERT_LE(f.place.offset + f.place.size_bytes, kSpanBytes);
      ASSERT_LE(f.first_offset, f.last_offset);
      ASSERT_LT(f.last_offset, f.place.size_bytes);
    }
  }
  EXPECT_GT(decoded, 0U);
}

}  // namespace
}  // namespace pagetide::cli
