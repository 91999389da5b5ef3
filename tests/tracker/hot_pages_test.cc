#include "pagetide/tracker/hot_pages.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/watched_memory.h"

namespace pagetide {
namespace {

constexpr std::size_t kBlockPages = HotPages::kBlockBytes / 4096;  // where a page has 4 KiB
constexpr HotPageOptions kOn{
    .enabled = true, .stale_page_ns = 1, .fault_ns = 2, .ioctl_ns = 10, .relearn_takes = 0};

// --- the rule alone ---

// Takes over three blocks that need not be mapped.
class HotPagesTest : public testing::Test {
 protected:
  static constexpr std::size_t kBlocks = 3;

  HotPagesTest() : range_{std::uintptr_t{1} << 40, kBlocks * HotPages::kBlockBytes} {}
  void SetUp() override {
    if (page_size() != 4096) PAGETIDE_SKIP("the numbers of this test are for pages of 4 KiB");
  }

  HotPages made(const HotPageOptions& options) const {
    return must(HotPages::create(range_, options));
  }
  // One take that reports `reported`. With `unchanged` a consumer tells what had not changed.
  std::vector<bool> take(
      HotPages& hot, const std::vector<PageRange>& reported,
      const std::optional<std::vector<PageRange>>& unchanged = std::nullopt) const {
    std::vector<bool> armed;
    hot.plan(range_, [&](ByteRange run, bool arm) {
      for (std::size_t size = 0; size < run.size; size += HotPages::kBlockBytes) {
        armed.push_back(arm);
      }
    });
    DirtyBitmap bits(range_.size / page_size());
    for (const PageRange& run : reported) bits.set_range(run);
    hot.note_reported({0, bits.size()}, bits);
    if (unchanged) {
      bits.clear();
      for (const PageRange& run : *unchanged) bits.set_range(run);
      hot.note_unchanged(bits);
    }
    hot.next_take();
    return armed;
  }
  static PageRange in_block(std::size_t block, std::size_t pages) {
    return {block * kBlockPages, pages};
  }

  ByteRange range_;
};

using Armed = std::vector<bool>;

TEST_F(HotPagesTest, switched_off_everything_is_armed) {
  HotPages hot = made({});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(take(hot, {in_block(0, 512)}), (Armed{true, true, true}));
}

TEST_F(HotPagesTest, a_block_that_changes_twice_in_a_row_is_left_unarmed) {
  HotPages hot = made(kOn);
  EXPECT_EQ(take(hot, {in_block(1, 100)}), (Armed{true, true, true}));
  EXPECT_EQ(take(hot, {in_block(1, 100)}), (Armed{true, true, true}));
  EXPECT_EQ(take(hot, {in_block(1, 100)}), (Armed{true, false, true}));
  EXPECT_EQ(hot.blocks_left_unarmed(), 1U);
}

TEST_F(HotPagesTest, what_changes_every_other_time_is_armed) {
  HotPages hot = made(kOn);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(take(hot, i % 2 == 0 ? std::vector{in_block(1, 100)} : std::vector<PageRange>{}),
              (Armed{true, true, true}));
  }
}

// 50 hot pages cost 100 in faults and 10 for the call: 110 copies of pages that did not change are
// as dear, one more is dearer.
TEST_F(HotPagesTest, a_block_is_armed_when_its_stale_pages_cost_more_than_its_faults) {
  for (const auto& [stale, armed] : {std::pair{110U, false}, std::pair{111U, true}}) {
    HotPages hot = made(kOn);
    const PageRange all = in_block(0, 50 + stale);
    const PageRange cold{50, stale};
    (void)take(hot, {all}, {{cold}});
    (void)take(hot, {all}, {{cold}});
    EXPECT_EQ(take(hot, {all}, {{cold}})[0], armed) << stale;
  }
}

TEST_F(HotPagesTest, a_block_that_cooled_down_is_armed_again) {
  HotPages hot = made(kOn);
  const PageRange pages = in_block(2, 200);
  for (int i = 0; i < 3; ++i) (void)take(hot, {pages});
  // Unarmed pages are reported whether they changed or not.
  EXPECT_FALSE(take(hot, {pages}, {{pages}})[2]);
  EXPECT_TRUE(take(hot, {pages}, {{pages}})[2]);
}

TEST_F(HotPagesTest, everything_is_armed_now_and_then) {
  HotPageOptions options = kOn;
  options.relearn_takes = 4;
  HotPages hot = made(options);
  std::string history;
  for (int i = 0; i < 12; ++i) history += take(hot, {in_block(0, 100)})[0] ? 'A' : '-';
  EXPECT_EQ(history, "AA--A---A---");
}

TEST_F(HotPagesTest, nothing_is_armed_for_its_own_sake_while_a_consumer_tells_what_changed) {
  HotPageOptions options = kOn;
  options.relearn_takes = 4;
  HotPages hot = made(options);
  std::string history;
  for (int i = 0; i < 12; ++i) {
    const std::vector<PageRange> none;
    history += take(hot, {in_block(0, 100)}, none)[0] ? 'A' : '-';
  }
  EXPECT_EQ(history, "AA----------");
}

TEST_F(HotPagesTest, neighbours_with_one_decision_are_one_run) {
  HotPages hot = made(kOn);
  for (int i = 0; i < 2; ++i) (void)take(hot, {in_block(0, 100), in_block(1, 100)});
  std::vector<std::pair<std::size_t, bool>> runs;
  hot.plan(range_, [&](ByteRange run, bool arm) {
    runs.emplace_back(run.size / HotPages::kBlockBytes, arm);
  });
  EXPECT_EQ(runs, (std::vector<std::pair<std::size_t, bool>>{{2, false}, {1, true}}));
}

TEST_F(HotPagesTest, a_part_is_planned_without_gap_or_overlap) {
  HotPages hot = made(kOn);
  for (int i = 0; i < 2; ++i) (void)take(hot, {in_block(1, 100)});
  const ByteRange part{range_.begin + 5 * page_size(), 2 * HotPages::kBlockBytes};
  std::uintptr_t at = part.begin;
  hot.plan(part, [&](ByteRange run, bool) {
    EXPECT_EQ(run.begin, at);
    at = run.end();
  });
  EXPECT_EQ(at, part.end());
}

// --- on the real kernel ---

long faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

constexpr std::size_t kHotPages = 400;

void write_hot_pages(WatchedMemory& watched, char value) {
  for (std::size_t page = 0; page < kHotPages; ++page) watched.memory().write(page, value);
}

WatchedMemory hot_memory(bool enabled) {
  TrackerOptions options;
  options.backend = BackendKind::uffd_async;
  options.hot_pages.enabled = enabled;
  WatchedMemory watched(Mapping::aligned(2 * kBlockPages, HotPages::kBlockBytes), options);
  watched.arm();
  return watched;
}

TEST_F(UffdAsyncTest, hot_pages_take_no_faults_once_they_are_known) {
  for (const bool enabled : {false, true}) {
    WatchedMemory watched = hot_memory(enabled);
    for (char round = 2; round < 6; ++round) {
      write_hot_pages(watched, round);
      EXPECT_GE(watched.take().size(), kHotPages);
    }
    EXPECT_EQ(watched.tracker().stats().hot_blocks > 0, enabled);
    const long before = faults();
    write_hot_pages(watched, 9);
    const long taken = faults() - before;
    if (enabled) {
      EXPECT_LT(taken, static_cast<long>(kHotPages / 10));
    } else {
      EXPECT_GE(taken, static_cast<long>(kHotPages));
    }
  }
}

TEST_F(UffdAsyncTest, hot_pages_are_reported_in_every_take_and_the_cold_ones_only_when_written) {
  WatchedMemory watched = hot_memory(true);
  for (char round = 2; round < 6; ++round) {
    write_hot_pages(watched, round);
    (void)watched.take();
  }
  ASSERT_GT(watched.tracker().stats().hot_blocks, 0U);
  // Nothing was written: a surplus, and no page of the other block.
  const Pages surplus = watched.take();
  EXPECT_EQ(surplus.size(), kHotPages);
  EXPECT_EQ(surplus, all_pages(kHotPages));
  watched.memory().write(kBlockPages + 3, 9);
  EXPECT_TRUE(watched.take().contains(kBlockPages + 3));
}

TEST_F(UffdAsyncTest, a_consumer_that_tells_what_did_not_change_gets_rid_of_the_surplus) {
  WatchedMemory watched = hot_memory(true);
  for (char round = 2; round < 6; ++round) {
    write_hot_pages(watched, round);
    (void)watched.take();
  }
  std::size_t takes = 0;
  for (Pages surplus = all_pages(1); !surplus.empty(); ++takes) {
    ASSERT_LT(takes, 5U);
    const Collected collected = watched.collect(CollectMode::take);
    surplus = pages_of(collected.written);
    watched.tracker().report_unchanged(watched.watch(), collected.written);
  }
  EXPECT_GT(takes, 1U);
}

}  // namespace
}  // namespace pagetide
