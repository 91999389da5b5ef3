#include "pagetide/tracker/page_bits.h"

#include <gtest/gtest.h>

#include "tests/support/memory_facts.h"
#include "tests/support/page_sets.h"
#include "tests/support/random_source.h"

namespace pagetide {
namespace {

Pages all_of(const PageBits& bits, std::size_t page_count) {
  DirtyBitmap target(page_count);
  bits.add_to(target, {0, page_count});
  return pages_of(target);
}

TEST(PageBitsTest, equal_a_set_of_numbers_in_random_use) {
  RandomSource random;
  constexpr std::size_t kPages = 500;
  PageBits bits(kPages);
  Pages model;
  for (std::size_t step = 0; step < scaled(2000); ++step) {
    const std::size_t first = random.below(kPages);
    const PageRange run{first, random.between(1, kPages - first)};
    switch (random.below(3)) {
      case 0:
        bits.reset(run);
        std::erase_if(model, [&](std::size_t page) { return run.contains(page); });
        break;
      case 1: {
        const PageRange few{run.first, std::min<std::size_t>(run.count, 5)};
        bits.set(few);
        for (std::size_t page = few.first; page < few.end(); ++page) model.insert(page);
        break;
      }
      default: {
        DirtyBitmap source(kPages);
        for (int i = 0; i < 5; ++i) source.set(random.below(kPages));
        bits.set_from(source, run);
        for (const std::size_t page : pages_of(source)) {
          if (run.contains(page)) model.insert(page);
        }
      }
    }
    ASSERT_EQ(all_of(bits, kPages), model);
  }
}

TEST(PageBitsTest, only_the_part_asked_for_is_added) {
  PageBits bits(200);
  bits.set({0, 200});
  DirtyBitmap target(200);
  bits.add_to(target, {63, 3});
  EXPECT_EQ(pages_of(target), (Pages{63, 64, 65}));
}

TEST(PageBitsTest, an_empty_set_costs_no_memory) {
  const std::size_t before = status_kib("VmSize");
  PageBits bits(std::size_t{1} << 30U);  // of a 4 TiB range
  bits.reset({0, std::size_t{1} << 30U});
  EXPECT_LT(status_kib("VmSize"), before + 1024);
}

TEST(PageBitsTest, without_memory_for_its_words_it_holds_every_page) {
  PageBits bits(std::size_t{1} << 30U);
  {
    const NoMoreMemory no_more;
    bits.set({5, 1});
  }
  DirtyBitmap target(100);
  bits.add_to(target, {0, 100});
  EXPECT_EQ(target.count(), 100U);
}

TEST(PageBitsTest, every_page_is_forgotten_only_as_a_whole) {
  constexpr std::size_t kPages = std::size_t{1} << 30U;
  PageBits bits(kPages);
  {
    const NoMoreMemory no_more;
    bits.set({5, 1});
  }
  bits.reset({0, 50});
  DirtyBitmap target(100);
  bits.add_to(target, {0, 100});
  EXPECT_EQ(target.count(), 100U);
  bits.reset({0, kPages});
  target.clear();
  bits.add_to(target, {0, 100});
  EXPECT_EQ(target.count(), 0U);
}

}  // namespace
}  // namespace pagetide
