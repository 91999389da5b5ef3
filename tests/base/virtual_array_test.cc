#include "pagetide/base/virtual_array.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "tests/support/memory_facts.h"
#include "tests/support/must.h"

namespace pagetide {
namespace {

using namespace literals;

using Array = VirtualArray<std::uint64_t>;

template <typename T>
ByteRange range_of(const VirtualArray<T>& array) {
  return ByteRange::of(array.span().data(), array.size() * sizeof(T)).page_cover();
}

TEST(VirtualArrayTest, is_all_zero_at_first) {
  const Array array = must(Array::create(10'000));
  ASSERT_EQ(array.size(), 10'000U);
  EXPECT_TRUE(std::all_of(array.span().begin(), array.span().end(),
                          [](std::uint64_t value) { return value == 0; }));
}

TEST(VirtualArrayTest, keeps_what_is_stored) {
  Array array = must(Array::create(10'000));
  for (std::size_t i = 0; i < array.size(); ++i) array[i] = i * i;
  const Array& same = array;
  for (std::size_t i = 0; i < array.size(); ++i) ASSERT_EQ(same[i], i * i);
  EXPECT_EQ(array.span().size(), 10'000U);
  EXPECT_EQ(&array.span()[17], &array[17]);
}

TEST(VirtualArrayTest, costs_memory_only_where_it_was_touched) {
  Array array = must(Array::create(1_GiB / sizeof(std::uint64_t)));
  EXPECT_EQ(resident_pages(range_of(array)), 0U);
  array[0] = 1;
  array[array.size() / 2] = 1;
  array[array.size() - 1] = 1;
  const std::size_t touched = resident_pages(range_of(array));
  EXPECT_GE(touched, 3U);
  EXPECT_LE(touched, 3 * (4_MiB / page_size()));  // were each to get a huge page
}

TEST(VirtualArrayTest, reset_zeroes_it_and_gives_the_memory_back) {
  Array array = must(Array::create(100'000));
  std::fill(array.span().begin(), array.span().end(), 7);
  array.reset();
  EXPECT_EQ(resident_pages(range_of(array)), 0U);
  EXPECT_EQ(array.size(), 100'000U);
  EXPECT_EQ(std::count(array.span().begin(), array.span().end(), 0U), 100'000);
}

TEST(VirtualArrayTest, its_end_unmaps_it) {
  ByteRange range;
  {
    const Array array = must(Array::create(5000));
    range = range_of(array);
    EXPECT_FALSE(is_unmapped(range));
  }
  EXPECT_TRUE(is_unmapped(range));
}

TEST(VirtualArrayTest, moving_hands_the_memory_over) {
  Array from = must(Array::create(100));
  from[3] = 33;
  const std::uint64_t* const data = from.span().data();
  Array to(std::move(from));
  EXPECT_EQ(to.span().data(), data);
  EXPECT_EQ(to[3], 33U);
  EXPECT_EQ(from.size(), 0U);        // NOLINT: what a moved-from array is, is the point
  EXPECT_TRUE(from.span().empty());  // NOLINT
}

TEST(VirtualArrayTest, move_assignment_keeps_one_and_loses_neither) {
  ByteRange first_range;
  ByteRange second_range;
  {
    Array first = must(Array::create(100));
    Array second = must(Array::create(200));
    first_range = range_of(first);
    second_range = range_of(second);
    first = std::move(second);
    EXPECT_EQ(first.size(), 200U);
    EXPECT_EQ(range_of(first), second_range);
  }
  EXPECT_TRUE(is_unmapped(first_range));
  EXPECT_TRUE(is_unmapped(second_range));
}

TEST(VirtualArrayTest, may_have_no_elements) {
  Array array = must(Array::create(0));
  EXPECT_EQ(array.size(), 0U);
  EXPECT_TRUE(array.span().empty());
  array.reset();
}

TEST(VirtualArrayTest, more_than_the_address_space_is_an_error_with_a_way_out) {
  const auto array = Array::create(std::size_t{1} << 60);
  ASSERT_FALSE(array);
  EXPECT_EQ(array.error().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(array.error().message(),
            "cannot map a table of the library: Cannot allocate memory. Lower the reservation, or "
            "raise ulimit -v or vm.overcommit_memory.");
}

TEST(VirtualArrayTest, a_size_in_bytes_that_wraps_around_is_an_error) {
  // 8 * (2^61 + 1) is 8 in 64 bits.
  for (const std::size_t count :
       {(std::size_t{1} << 61) + 1, std::size_t{1} << 61, std::numeric_limits<std::size_t>::max(),
        std::numeric_limits<std::size_t>::max() / sizeof(std::uint64_t)}) {
    const auto array = Array::create(count);
    ASSERT_FALSE(array) << count;
    EXPECT_EQ(array.error().code(), ErrorCode::out_of_memory) << array.error().message();
  }
}

}  // namespace
}  // namespace pagetide
