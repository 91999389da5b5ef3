#include "pagetide/tracker/backends/fault_table.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "pagetide/tracker/kernel/populated_pages.h"
#include "tests/support/child_process.h"
#include "tests/support/mapping.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"

namespace pagetide {
namespace {

// --- the protocol of handler and take, step by step ---

TEST(ConsumeFaultsTest, takes_the_bits_that_were_asked_for) {
  FaultGroup group{0b1011, 0, 0};
  const ConsumedFaults found = consume_faults(group, 0b0110);
  EXPECT_EQ(found.pages, 0b0010U);
  EXPECT_TRUE(found.may_protect);
  EXPECT_EQ(group.dirty, 0b1001U);
}

TEST(ConsumeFaultsTest, finds_nothing_where_nothing_is) {
  FaultGroup group{0b1000, 3, 0};
  const ConsumedFaults found = consume_faults(group, 0b0111);
  EXPECT_EQ(found.pages, 0U);
  EXPECT_EQ(group.dirty, 0b1000U);
}

// A handler that has set its bit and not yet made the page writable: the page must stay dirty,
// because it becomes writable after this take.
TEST(ConsumeFaultsTest, leaves_the_bits_while_a_handler_is_at_work) {
  FaultGroup group{0b1011, 1, 0};
  const ConsumedFaults found = consume_faults(group, 0b0010);
  EXPECT_EQ(found.pages, 0b0010U);
  EXPECT_FALSE(found.may_protect);
  EXPECT_EQ(group.dirty, 0b1011U);
  group.resolving = 0;
  EXPECT_TRUE(consume_faults(group, 0b0010).may_protect);
  EXPECT_EQ(group.dirty, 0b1001U);
}

// --- slots ---

// A descriptor for which every ioctl fails: faults are recorded and not resolved.
constexpr int kNoUffd = -1;

TEST(FaultTableTest, an_address_outside_of_every_range_is_not_resolved_nor_recorded) {
  FaultTable table = must(FaultTable::create());
  std::array<FaultGroup, 1> groups{};
  const ByteRange range{100 * page_size(), 4 * page_size()};
  EXPECT_FALSE(table.resolve(range.begin).is_ours);
  const std::size_t slot = must(table.add(range, groups, kNoUffd));
  EXPECT_FALSE(table.resolve(range.begin - 1).is_ours);
  EXPECT_FALSE(table.resolve(range.end()).is_ours);
  EXPECT_EQ(groups[0].dirty, 0U);
  EXPECT_FALSE(table.resolve(range.begin + 2 * page_size() + 5).is_ours);  // the ioctl fails
  EXPECT_EQ(groups[0].dirty, 0b100U);
  EXPECT_EQ(groups[0].resolving, 0U);
  table.remove(slot);
  EXPECT_FALSE(table.resolve(range.begin).is_ours);
  EXPECT_EQ(groups[0].dirty, 0b100U);
}

TEST(FaultTableTest, each_range_has_its_own_groups) {
  FaultTable table = must(FaultTable::create());
  std::array<FaultGroup, 2> first{};
  std::array<FaultGroup, 2> second{};
  const ByteRange range{100 * page_size(), 100 * page_size()};
  must(table.add(range, first, kNoUffd));
  must(table.add({range.end(), range.size}, second, kNoUffd));
  table.resolve(range.begin + 70 * page_size());
  table.resolve(range.end() + 3 * page_size());
  EXPECT_EQ(first[0].dirty, 0U);
  EXPECT_EQ(first[1].dirty, 1U << 6U);
  EXPECT_EQ(second[0].dirty, 1U << 3U);
  EXPECT_EQ(second[1].dirty, 0U);
}

TEST(FaultTableTest, a_page_that_was_recorded_is_told_until_a_take_clears_it) {
  FaultTable table = must(FaultTable::create());
  std::array<FaultGroup, 1> groups{};
  const ByteRange range{100 * page_size(), 10 * page_size()};
  must(table.add(range, groups, kNoUffd));
  EXPECT_FALSE(table.resolve(range.begin).was_recorded);
  EXPECT_FALSE(table.resolve(range.begin + page_size()).was_recorded);
  const ResolvedFault again = table.resolve(range.begin);
  EXPECT_TRUE(again.was_recorded);
  EXPECT_EQ(table.resolve(range.begin).takes, again.takes);
  consume_faults(groups[0], ~std::uint64_t{0});
  const ResolvedFault after = table.resolve(range.begin);
  EXPECT_FALSE(after.was_recorded);
  EXPECT_NE(after.takes, again.takes);
}

TEST(FaultTableTest, slots_are_used_again) {
  FaultTable table = must(FaultTable::create());
  std::array<FaultGroup, 1> groups{};
  for (std::size_t i = 0; i < FaultTable::kMaxWatches; ++i) {
    ASSERT_EQ(must(table.add({i * page_size(), page_size()}, groups, kNoUffd)), i);
  }
  EXPECT_FALSE(table.add({0, page_size()}, groups, kNoUffd));
  table.remove(77);
  EXPECT_EQ(must(table.add({0, page_size()}, groups, kNoUffd)), 77U);
}

TEST(FaultTableTest, a_forked_child_sees_an_empty_table) {
  FaultTable table = must(FaultTable::create());
  std::array<FaultGroup, 1> groups{};
  const ByteRange range{100 * page_size(), page_size()};
  must(table.add(range, groups, kNoUffd));
  EXPECT_EQ(run_in_child([&]() -> std::string {
              table.resolve(range.begin);
              return groups[0].dirty == 0 ? "" : "recorded";
            }),
            "");
  table.resolve(range.begin);
  EXPECT_EQ(groups[0].dirty, 1U);
}

// --- populated pages, both ways ---

class PopulatedPagesTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) ::setenv("PAGETIDE_DISABLE", "pagemap_scan", 1);
  }
  void TearDown() override { ::unsetenv("PAGETIDE_DISABLE"); }
};

INSTANTIATE_TEST_SUITE_P(by, PopulatedPagesTest, testing::Bool(), [](const auto& scans) {
  return std::string(scans.param ? "scan" : "read");
});

TEST_P(PopulatedPagesTest, finds_what_was_touched) {
  RandomSource random;
  PopulatedPages populated = must(PopulatedPages::open());
  ASSERT_LE(populated.knows_zero_pages(), GetParam());
  constexpr std::size_t kPages = 20'000;  // several reads, and more runs than one scan gives
  const Mapping memory(kPages);
  (void)::madvise(memory.page(0), memory.range().size, MADV_NOHUGEPAGE);
  std::vector<bool> touched(kPages);
  std::vector<bool> written(kPages);
  for (std::size_t page = 0; page < kPages; ++page) {
    if (random.one_in(2)) continue;
    touched[page] = true;
    written[page] = random.one_in(2);
    if (written[page]) {
      memory.write(page, 1);
    } else {
      (void)*static_cast<volatile char*>(memory.page(page));
    }
  }
  for (const PageState state : {PageState::populated, PageState::in_memory, PageState::not_zero}) {
    const bool only_written = state == PageState::not_zero && populated.knows_zero_pages();
    const std::vector<bool>& expected = only_written ? written : touched;
    for (int part = 0; part < 3; ++part) {
      const std::size_t first = part == 0 ? 0 : random.below(kPages);
      const std::size_t count = part == 0 ? kPages : random.between(1, kPages - first);
      std::vector<bool> found(kPages);
      must(populated.for_each(memory.pages(first, count), state, [&](ByteRange run) {
        const PageRange pages = PageRange::covering(run, memory.range());
        for (std::size_t page = pages.first; page < pages.end(); ++page) found[page] = true;
      }));
      for (std::size_t page = 0; page < kPages; ++page) {
        const bool inside = page >= first && page < first + count;
        ASSERT_EQ(found[page], inside && expected[page]) << page;
      }
    }
  }
}

}  // namespace
}  // namespace pagetide
