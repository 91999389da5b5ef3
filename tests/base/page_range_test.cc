#include "pagetide/base/page_range.h"

#include <gtest/gtest.h>
#include <sys/auxv.h>

#include <set>

#include "tests/support/random_source.h"

namespace pagetide {
namespace {

using namespace literals;

// The slow twin of a range: the set of its numbers.
using Numbers = std::set<std::size_t>;

Numbers numbers_of(std::size_t first, std::size_t count) {
  Numbers numbers;
  for (std::size_t i = 0; i < count; ++i) numbers.insert(first + i);
  return numbers;
}
Numbers numbers_of(ByteRange range) {
  return numbers_of(range.begin, range.size);
}
Numbers numbers_of(PageRange range) {
  return numbers_of(range.first, range.count);
}

Numbers common(const Numbers& a, const Numbers& b) {
  Numbers both;
  for (const std::size_t number : a) {
    if (b.contains(number)) both.insert(number);
  }
  return both;
}

bool is_part_of(const Numbers& part, const Numbers& whole) {
  return common(part, whole) == part;
}

TEST(BytesTest, units_are_powers_of_1024) {
  EXPECT_EQ(1_KiB, 1024U);
  EXPECT_EQ(3_MiB, 3U * 1024 * 1024);
  EXPECT_EQ(5_GiB, std::size_t{5} * 1024 * 1024 * 1024);
  EXPECT_EQ(2_TiB, std::size_t{2} * 1024 * 1024 * 1024 * 1024);
}

TEST(BytesTest, rounding_equals_counting) {
  for (std::size_t alignment = 1; alignment <= 64; alignment *= 2) {
    for (std::size_t value = 0; value <= 200; ++value) {
      std::size_t down = value;
      while (down % alignment != 0) --down;
      std::size_t up = value;
      while (up % alignment != 0) ++up;
      EXPECT_EQ(round_down(value, alignment), down) << value << " to " << alignment;
      EXPECT_EQ(round_up(value, alignment), up) << value << " to " << alignment;
    }
  }
}

TEST(BytesTest, divide_up_covers_all_and_not_more) {
  for (std::size_t value = 0; value <= 100; ++value) {
    for (std::size_t divisor = 1; divisor <= 20; ++divisor) {
      std::size_t parts = 0;
      while (parts * divisor < value) ++parts;
      EXPECT_EQ(divide_up(value, divisor), parts) << value << " by " << divisor;
    }
  }
  EXPECT_EQ(divide_up(SIZE_MAX, 2), SIZE_MAX / 2 + 1);
}

TEST(BytesTest, powers_of_two_are_those_with_one_bit) {
  Numbers powers;
  for (std::size_t power = 1; power <= 1024; power *= 2) powers.insert(power);
  for (std::size_t value = 0; value <= 1024; ++value) {
    EXPECT_EQ(is_power_of_two(value), powers.contains(value)) << value;
  }
  EXPECT_TRUE(is_power_of_two(std::size_t{1} << 63));
  EXPECT_FALSE(is_power_of_two(SIZE_MAX));
}

TEST(PageSizeTest, is_what_the_kernel_says) {
  EXPECT_EQ(page_size(), ::getauxval(AT_PAGESZ));
  EXPECT_TRUE(is_power_of_two(page_size()));
}

TEST(ByteRangeTest, arithmetic_equals_that_of_sets) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(4000); ++round) {
    const ByteRange a{random.below(20), random.below(20)};
    const ByteRange b{random.below(20), random.below(20)};
    const Numbers in_a = numbers_of(a);
    const Numbers in_b = numbers_of(b);
    EXPECT_EQ(numbers_of(a.intersect(b)), common(in_a, in_b));
    EXPECT_EQ(a.intersect(b), b.intersect(a));
    EXPECT_EQ(a.empty(), in_a.empty());
    if (!b.empty()) {
      EXPECT_EQ(a.contains(b), is_part_of(in_b, in_a));
    }
    for (std::uintptr_t address = 0; address < 45; ++address) {
      EXPECT_EQ(a.contains(address), in_a.contains(address));
    }
  }
}

TEST(ByteRangeTest, of_takes_address_and_size) {
  const int value = 0;
  const ByteRange range = ByteRange::of(&value, sizeof(value));
  EXPECT_EQ(static_cast<const void*>(range.data()), &value);
  EXPECT_EQ(range.size, sizeof(value));
  EXPECT_EQ(range.end() - range.begin, sizeof(value));
}

TEST(ByteRangeTest, an_empty_range_at_the_border_is_contained) {
  const ByteRange range{100, 50};
  EXPECT_TRUE(range.contains(ByteRange{100, 0}));
  EXPECT_TRUE(range.contains(ByteRange{150, 0}));
  EXPECT_FALSE(range.contains(ByteRange{151, 0}));
}

TEST(ByteRangeTest, a_size_that_wraps_around_is_not_contained) {
  const ByteRange range{100, 50};
  EXPECT_FALSE(range.contains(ByteRange{120, SIZE_MAX - 60}));
}

TEST(ByteRangeTest, only_whole_pages_are_page_aligned) {
  const std::size_t page = page_size();
  EXPECT_TRUE((ByteRange{3 * page, 2 * page}.is_page_aligned()));
  EXPECT_TRUE((ByteRange{0, 0}.is_page_aligned()));
  EXPECT_FALSE((ByteRange{3 * page + 16, 2 * page}.is_page_aligned()));
  EXPECT_FALSE((ByteRange{3 * page, 2 * page - 1}.is_page_aligned()));
}

TEST(ByteRangeTest, page_cover_is_the_pages_that_hold_its_bytes) {
  RandomSource random;
  const std::size_t page = page_size();
  for (std::size_t round = 0; round < scaled(2000); ++round) {
    const ByteRange range{random.below(5 * page), random.below(3 * page)};
    const ByteRange cover = range.page_cover();
    EXPECT_TRUE(cover.is_page_aligned());
    if (range.empty()) {
      EXPECT_TRUE(cover.empty());
      continue;
    }
    EXPECT_EQ(cover.begin / page, range.begin / page);
    EXPECT_EQ((cover.end() - 1) / page, (range.end() - 1) / page);
  }
}

TEST(PageRangeTest, arithmetic_equals_that_of_sets) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(4000); ++round) {
    const PageRange a{random.below(20), random.below(20)};
    const PageRange b{random.below(20), random.below(20)};
    EXPECT_EQ(numbers_of(a.intersect(b)), common(numbers_of(a), numbers_of(b)));
    EXPECT_EQ(a.empty(), numbers_of(a).empty());
    for (std::size_t page = 0; page < 45; ++page) {
      EXPECT_EQ(a.contains(page), numbers_of(a).contains(page));
    }
  }
}

TEST(PageRangeTest, covering_names_every_page_with_a_byte_of_it) {
  RandomSource random;
  const std::size_t page = page_size();
  for (std::size_t round = 0; round < scaled(500); ++round) {
    const ByteRange inside{random.below(100) * page, 6 * page};
    const std::size_t offset = random.below(inside.size);
    const ByteRange bytes{inside.begin + offset, random.between(1, inside.size - offset)};
    Numbers pages;
    for (std::uintptr_t at = bytes.begin; at < bytes.end(); ++at) {
      pages.insert((at - inside.begin) / page);
    }
    EXPECT_EQ(numbers_of(PageRange::covering(bytes, inside)), pages);
  }
}

TEST(PageRangeTest, bytes_from_undoes_covering) {
  const std::size_t page = page_size();
  const ByteRange inside{7 * page, 20 * page};
  for (std::size_t first = 0; first < 20; ++first) {
    for (std::size_t count = 0; first + count <= 20; ++count) {
      const PageRange pages{first, count};
      EXPECT_EQ(PageRange::covering(pages.bytes_from(inside.begin), inside), pages);
    }
  }
}

}  // namespace
}  // namespace pagetide
