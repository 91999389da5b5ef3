#include "pagetide/tracker/dirty_bitmap.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/support/random_source.h"

namespace pagetide {
namespace {

// The slow twin: the numbers of the pages in the set.
using Model = std::set<std::size_t>;

Model pages_of(const DirtyBitmap& bitmap) {
  Model pages;
  for (std::size_t page = 0; page < bitmap.size(); ++page) {
    if (bitmap.test(page)) pages.insert(page);
  }
  return pages;
}

std::vector<PageRange> runs_of(const Model& pages) {
  std::vector<PageRange> runs;
  for (const std::size_t page : pages) {
    if (!runs.empty() && runs.back().end() == page) {
      ++runs.back().count;
    } else {
      runs.push_back({page, 1});
    }
  }
  return runs;
}

std::vector<PageRange> runs_of(const DirtyBitmap& bitmap) {
  std::vector<PageRange> runs;
  bitmap.for_each_run([&](PageRange run) { runs.push_back(run); });
  return runs;
}

// Sizes around the borders of words.
std::size_t random_size(RandomSource& random) {
  const std::size_t words = random.below(4) * 64;
  return words + (random.one_in(3) ? 0 : random.below(64));
}

PageRange random_range(RandomSource& random, std::size_t size) {
  const std::size_t first = random.below(size + 1);
  return {first, random.below(size - first + 1)};
}

// Runs of set and clear pages of all lengths.
DirtyBitmap random_bitmap(RandomSource& random, std::size_t size) {
  DirtyBitmap bitmap(size);
  for (std::size_t i = random.below(8); i > 0; --i) {
    const PageRange range = random_range(random, size);
    random.one_in(3) ? bitmap.reset_range(range) : bitmap.set_range(range);
  }
  for (std::size_t i = random.below(8); i > 0 && size > 0; --i) bitmap.set(random.below(size));
  return bitmap;
}

TEST(DirtyBitmapTest, is_all_clear_at_first) {
  for (const std::size_t size : {0U, 1U, 63U, 64U, 65U, 1000U}) {
    const DirtyBitmap bitmap(size);
    EXPECT_EQ(bitmap.size(), size);
    EXPECT_EQ(bitmap.count(), 0U);
    EXPECT_FALSE(bitmap.any());
    EXPECT_TRUE(runs_of(bitmap).empty());
    EXPECT_TRUE(pages_of(bitmap).empty());
  }
  EXPECT_EQ(DirtyBitmap(), DirtyBitmap(0));
}

TEST(DirtyBitmapTest, changes_as_a_set_does) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(500); ++round) {
    const std::size_t size = random_size(random) + 1;
    DirtyBitmap bitmap(size);
    Model model;
    for (int step = 0; step < 20; ++step) {
      const std::size_t page = random.below(size);
      const PageRange range = random_range(random, size);
      switch (random.below(4)) {
        case 0:
          bitmap.set(page), model.insert(page);
          break;
        case 1:
          bitmap.reset(page), model.erase(page);
          break;
        case 2:
          bitmap.set_range(range);
          for (std::size_t i = range.first; i < range.end(); ++i) model.insert(i);
          break;
        default:
          bitmap.reset_range(range);
          for (std::size_t i = range.first; i < range.end(); ++i) model.erase(i);
      }
      ASSERT_EQ(pages_of(bitmap), model);
      ASSERT_EQ(bitmap.count(), model.size());
      ASSERT_EQ(bitmap.any(), !model.empty());
    }
    bitmap.clear();
    EXPECT_FALSE(bitmap.any());
    EXPECT_EQ(bitmap.size(), size);
  }
}

TEST(DirtyBitmapTest, no_page_is_set_outside_its_bounds) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(2000); ++round) {
    DirtyBitmap bitmap = random_bitmap(random, random_size(random));
    if (random.one_in(4)) bitmap |= random_bitmap(random, random_size(random));
    if (random.one_in(4)) bitmap.resize(random_size(random));
    const PageRange bounds = bitmap.bounds();
    EXPECT_LE(bounds.end(), bitmap.size());
    for (const std::size_t page : pages_of(bitmap)) ASSERT_TRUE(bounds.contains(page));
    ASSERT_EQ(bitmap.count(), pages_of(bitmap).size());
  }
}

TEST(DirtyBitmapTest, words_there_and_back_are_the_same_set) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(500); ++round) {
    const DirtyBitmap bitmap = random_bitmap(random, random_size(random));
    ASSERT_EQ(DirtyBitmap::from_words(bitmap.words(), bitmap.size()), bitmap);
  }
}

TEST(DirtyBitmapTest, bits_beyond_the_last_page_are_left_out) {
  const std::vector<std::uint64_t> words(2, ~std::uint64_t{0});
  const DirtyBitmap bitmap = DirtyBitmap::from_words(words, 70);
  EXPECT_EQ(bitmap.count(), 70U);
  EXPECT_EQ(bitmap.words()[1], 0x3fU);
}

TEST(DirtyBitmapTest, assigning_clears_whatever_was_set_before) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(500); ++round) {
    DirtyBitmap bitmap = random_bitmap(random, random_size(random));
    const std::size_t size = random_size(random);
    bitmap.assign_clear(size);
    ASSERT_EQ(bitmap, DirtyBitmap(size));
    // Also what only shows when it grows again.
    bitmap.assign_clear(300);
    ASSERT_EQ(bitmap, DirtyBitmap(300));
  }
}

TEST(DirtyBitmapTest, runs_are_maximal_complete_and_ascending) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(3000); ++round) {
    const DirtyBitmap bitmap = random_bitmap(random, random_size(random));
    ASSERT_EQ(runs_of(bitmap), runs_of(pages_of(bitmap)));
  }
}

TEST(DirtyBitmapTest, next_run_begins_at_or_after_the_page) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(200); ++round) {
    const DirtyBitmap bitmap = random_bitmap(random, random_size(random));
    const Model model = pages_of(bitmap);
    for (std::size_t page = 0; page <= bitmap.size() + 1; ++page) {
      const auto rest = runs_of(Model(model.lower_bound(page), model.end()));
      const PageRange run = bitmap.next_run(page);
      ASSERT_EQ(run.empty(), rest.empty()) << page;
      if (!rest.empty()) {
        ASSERT_EQ(run, rest.front()) << page;
      }
    }
  }
}

TEST(DirtyBitmapTest, set_algebra_equals_that_of_sets) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(2000); ++round) {
    // Half of the time of different sizes: the shorter one counts as clear beyond its end.
    const std::size_t size = random_size(random);
    const DirtyBitmap a = random_bitmap(random, size);
    const DirtyBitmap b = random_bitmap(random, random.one_in(2) ? size : random_size(random));
    const Model in_a = pages_of(a);
    const Model in_b = pages_of(b);
    Model either = in_a;
    either.insert(in_b.begin(), in_b.end());
    Model both;
    Model only_a;
    for (const std::size_t page : in_a) (in_b.contains(page) ? both : only_a).insert(page);

    DirtyBitmap result = a;
    ASSERT_EQ(pages_of(result |= b), either);
    ASSERT_GE(result.size(), a.size());
    result = a;
    ASSERT_EQ(pages_of(result &= b), both);
    ASSERT_EQ(result.count(), both.size());
    result = a;
    ASSERT_EQ(pages_of(result -= b), only_a);
    ASSERT_EQ(result.size(), a.size());
  }
}

TEST(DirtyBitmapTest, resizing_keeps_the_pages_that_remain_and_adds_clear_ones) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(1000); ++round) {
    DirtyBitmap bitmap = random_bitmap(random, random_size(random));
    Model model = pages_of(bitmap);
    for (int step = 0; step < 4; ++step) {
      const std::size_t size = random_size(random);
      bitmap.resize(size);
      model.erase(model.lower_bound(size), model.end());
      ASSERT_EQ(bitmap.size(), size);
      ASSERT_EQ(pages_of(bitmap), model);
      // Nothing stays behind the end: what counts words would find it.
      ASSERT_EQ(bitmap.count(), model.size());
    }
  }
}

TEST(DirtyBitmapTest, assign_clear_forgets_everything_and_reuses_reserved_memory) {
  DirtyBitmap bitmap;
  bitmap.reserve(1000);
  bitmap.assign_clear(10);
  const std::uint64_t* const words = bitmap.words().data();
  bitmap.set_range({0, 10});
  bitmap.assign_clear(1000);
  EXPECT_EQ(bitmap.words().data(), words);
  EXPECT_EQ(bitmap.size(), 1000U);
  EXPECT_FALSE(bitmap.any());
}

TEST(DirtyBitmapTest, equality_is_that_of_size_and_pages) {
  DirtyBitmap a(100);
  DirtyBitmap b(100);
  a.set_range({10, 80});
  b.set_range({10, 70});
  EXPECT_NE(a, b);
  b.set_range({60, 30});
  EXPECT_EQ(a, b);
  b.resize(101);
  EXPECT_NE(a, b);
}

TEST(DirtyBitmapTest, the_layout_is_that_of_kvms_dirty_log) {
  DirtyBitmap bitmap(200);
  for (const std::size_t page : {0U, 1U, 63U, 64U, 130U, 199U}) bitmap.set(page);
  ASSERT_EQ(bitmap.words().size(), 4U);
  EXPECT_EQ(bitmap.words()[0], 0x8000'0000'0000'0003ULL);
  EXPECT_EQ(bitmap.words()[1], 0x1ULL);
  EXPECT_EQ(bitmap.words()[2], 0x4ULL);
  EXPECT_EQ(bitmap.words()[3], 0x80ULL);
}

TEST(BitsOfWordsTest, set_and_clear_touch_exactly_the_range) {
  constexpr std::size_t kPages = 4 * 64;
  for (std::size_t first = 0; first < kPages; first += 3) {
    for (std::size_t count = 0; first + count <= kPages; ++count) {
      std::vector<std::uint64_t> set(4, 0);
      std::vector<std::uint64_t> cleared(4, ~std::uint64_t{0});
      set_bits(set, {first, count});
      clear_bits(cleared, {first, count});
      for (std::size_t page = 0; page < kPages; ++page) {
        const bool inside = page >= first && page < first + count;
        ASSERT_EQ((set[page / 64] >> (page % 64) & 1U) != 0, inside);
        ASSERT_EQ((cleared[page / 64] >> (page % 64) & 1U) == 0, inside);
      }
    }
  }
}

}  // namespace
}  // namespace pagetide
