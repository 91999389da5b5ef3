// Collecting through the C API, and what is found, against what the C++ API finds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pagetide/pagetide.h"
#include "pagetide/tracker/tracker.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/tracker/tracker_c_support.h"

namespace pagetide {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

class TrackerCCollect : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(every_back_end, TrackerCCollect, kEveryBackEnd, back_end_name);

TEST_P(TrackerCCollect, a_take_reports_and_begins_a_new_epoch_and_a_peek_only_reports) {
  WatchedByC watched(200, GetParam());
  watched.take();
  watched.memory().write(3, 1);
  watched.memory().write(199, 1);
  EXPECT_EQ(watched.peek(), (Pages{3, 199}));
  EXPECT_EQ(pagetide_collected_pages(watched.collected()), 200);
  EXPECT_EQ(pagetide_collected_is_poisoned(watched.collected()), 0);
  EXPECT_STREQ(pagetide_collected_cause(watched.collected()), "");
  EXPECT_EQ(watched.take(), (Pages{3, 199}));
  EXPECT_EQ(watched.take(), Pages());
}

TEST_P(TrackerCCollect, only_the_parts_asked_for_are_collected) {
  WatchedByC watched(200, GetParam());
  watched.take();
  for (const std::size_t page : {1U, 70U, 130U}) watched.memory().write(page, 1);
  must_c(watched.collect(PAGETIDE_TAKE, {watched.part(60, 20), watched.part(0, 1)}));
  EXPECT_EQ(pages_of(watched.collected(), PAGETIDE_WRITTEN), (Pages{70}));
  EXPECT_EQ(pagetide_collected_pages(watched.collected()), 80);
  must_c(watched.collect(PAGETIDE_PEEK, {watched.part(100, 100)}));
  EXPECT_EQ(pages_of(watched.collected(), PAGETIDE_WRITTEN), (Pages{130}));
  EXPECT_EQ(watched.take(), (Pages{1, 130}));
}

TEST_P(TrackerCCollect, nothing_is_found_in_no_parts) {
  WatchedByC watched(4, GetParam());
  watched.memory().write(1, 1);
  must_c(pagetide_tracker_collect(watched.tracker(), watched.watch(), 0, PAGETIDE_TAKE, nullptr, 0,
                                  watched.collected()));
  EXPECT_EQ(pagetide_collected_pages(watched.collected()), 0);
  EXPECT_EQ(watched.take(), (Pages{1}));
}

TEST_P(TrackerCCollect, a_collect_that_is_refused_consumes_nothing) {
  WatchedByC watched(8, GetParam());
  watched.take();
  watched.memory().write(1, 1);
  EXPECT_EQ(watched.collect(PAGETIDE_TAKE, {watched.part(0, 4), watched.part(4, 5)}),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), HasSubstr("not inside the watched range"));
  EXPECT_EQ(watched.collect(2, {watched.part(0, 4)}), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(), "2 is not a pagetide_collect_mode.");
  EXPECT_EQ(pagetide_tracker_take(watched.tracker(), watched.watch(), 1, watched.collected()),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), HasSubstr("no such consumer"));
  EXPECT_EQ(watched.take(), (Pages{1}));
}

TEST_P(TrackerCCollect, marks_are_reported_once_or_always) {
  WatchedByC watched(100, GetParam());
  watched.take();
  must_c(pagetide_tracker_mark_dirty(watched.tracker(), watched.memory().page(4) - 1, 2));
  must_c(pagetide_tracker_mark_always_dirty(watched.tracker(), watched.memory().page(70), 1));
  EXPECT_EQ(watched.take(), (Pages{3, 4, 70}));
  EXPECT_EQ(watched.take(), (Pages{70}));
}

TEST_P(TrackerCCollect, what_is_put_back_is_reported_again) {
  WatchedByC watched(100, GetParam());
  watched.take();
  watched.memory().write(5, 1);
  must_c(pagetide_tracker_note_purged(watched.tracker(), watched.memory().page(80), page_size()));
  EXPECT_EQ(watched.take(), (Pages{5}));
  EXPECT_EQ(pages_of(watched.collected(), PAGETIDE_ZEROED), (Pages{80}));
  must_c(pagetide_tracker_put_back(watched.tracker(), watched.watch(), 0, watched.collected()));
  EXPECT_EQ(watched.take(), (Pages{5, 80}));
}

TEST_P(TrackerCCollect, what_has_more_pages_than_the_watch_is_not_put_back) {
  WatchedByC watched(4, GetParam());
  WatchedByC larger(100, GetParam());
  larger.memory().fill(1);
  larger.take();
  EXPECT_EQ(pagetide_tracker_put_back(watched.tracker(), watched.watch(), 0, larger.collected()),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(),
            "the watched range has 4 pages, 100 were given; are they of another watch?");
  EXPECT_EQ(watched.take(), Pages());
}

TEST_P(TrackerCCollect, consumers_have_epochs_of_their_own) {
  WatchedByC watched(16, GetParam());
  watched.take();
  pagetide_consumer_id second = 0;
  must_c(pagetide_tracker_add_consumer(watched.tracker(), &second));
  EXPECT_NE(second, 0U);
  watched.memory().write(3, 1);
  EXPECT_EQ(watched.take(), (Pages{3}));
  watched.memory().write(5, 1);
  EXPECT_EQ(watched.take(), (Pages{5}));
  EXPECT_EQ(watched.peek(second), (Pages{3, 5}));
  EXPECT_EQ(watched.take(second), (Pages{3, 5}));
  EXPECT_EQ(watched.take(second), Pages());
  must_c(pagetide_tracker_remove_consumer(watched.tracker(), second));
  EXPECT_EQ(pagetide_tracker_take(watched.tracker(), watched.watch(), second, watched.collected()),
            PAGETIDE_INVALID_ARGUMENT);
}

TEST(TrackerCConsumers, are_at_most_eight) {
  const TrackerHandle tracker = create(PAGETIDE_BACKEND_COMPARE);
  pagetide_consumer_id consumer = 0;
  std::set<pagetide_consumer_id> given{0};
  for (int i = 1; i < 8; ++i) {
    must_c(pagetide_tracker_add_consumer(tracker.get(), &consumer));
    EXPECT_TRUE(given.insert(consumer).second);
  }
  const pagetide_consumer_id last = consumer;
  EXPECT_EQ(pagetide_tracker_add_consumer(tracker.get(), &consumer), PAGETIDE_OUT_OF_MEMORY);
  EXPECT_EQ(last_message(), "a tracker has at most 8 consumers; remove one.");
  EXPECT_EQ(consumer, last);
  must_c(pagetide_tracker_remove_consumer(tracker.get(), last));
  must_c(pagetide_tracker_add_consumer(tracker.get(), &consumer));
  EXPECT_TRUE(given.insert(consumer).second) << "a number is used again";
}

TEST(TrackerCConsumers, number_zero_cannot_be_removed) {
  WatchedByC watched(4);
  EXPECT_EQ(pagetide_tracker_remove_consumer(watched.tracker(), 0), PAGETIDE_OK);
  EXPECT_EQ(pagetide_tracker_remove_consumer(watched.tracker(), UINT32_MAX), PAGETIDE_OK);
  watched.memory().write(2, 1);
  EXPECT_EQ(watched.take(), (Pages{2}));
}

// --- What only the default back end shows ---

TEST_F(TrackerCUffdAsync, purged_pages_are_zeroed_and_not_written) {
  WatchedByC watched(8, PAGETIDE_BACKEND_UFFD_ASYNC);
  watched.memory().fill(42);
  watched.take();
  must_c(pagetide_tracker_purge(watched.tracker(), watched.memory().page(2), 3 * page_size()));
  EXPECT_EQ(*watched.memory().page(2), 0);
  EXPECT_EQ(*watched.memory().page(5), 42);
  watched.memory().write(3, 1);
  const Pages written = watched.take();
  EXPECT_TRUE(written.contains(3));
  EXPECT_FALSE(written.contains(4));
  EXPECT_TRUE(pagetide_collected_has(watched.collected(), PAGETIDE_ZEROED, 4));
  EXPECT_FALSE(pagetide_collected_has(watched.collected(), PAGETIDE_ZEROED, 3));
}

TEST_P(TrackerCCollect, a_purge_that_is_not_all_watched_purges_nothing) {
  const Mapping mapping(8);
  const TrackerHandle tracker = create(GetParam());
  pagetide_watch_id watch = 0;
  must_c(pagetide_tracker_watch(tracker.get(), mapping.page(0), 4 * page_size(), &watch));
  mapping.fill(42);
  EXPECT_EQ(pagetide_tracker_purge(tracker.get(), mapping.page(2), 4 * page_size()),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(*mapping.page(2), 42);
  EXPECT_EQ(*mapping.page(5), 42);
}

// The lock stops the purge behind the pages that are zero by then.
TEST_P(TrackerCCollect, after_a_purge_that_fails_part_way_all_its_pages_are_written) {
  WatchedByC watched(8, GetParam());
  watched.memory().fill(42);
  ASSERT_TRUE(lock_memory(watched.memory().pages(5, 1)));
  watched.take();
  EXPECT_EQ(pagetide_tracker_purge(watched.tracker(), watched.memory().page(2), 5 * page_size()),
            PAGETIDE_SYSTEM_FAILURE);
  EXPECT_EQ(*watched.memory().page(2), 0) << "nothing was purged, so this shows little";
  EXPECT_EQ(watched.take(), (Pages{2, 3, 4, 5, 6}));
  EXPECT_EQ(pages_of(watched.collected(), PAGETIDE_ZEROED), Pages());
}

// A byte of page 1 and one of page 2.
TEST_F(TrackerCUffdAsync, prefill_takes_any_bytes) {
  WatchedByC watched(8, PAGETIDE_BACKEND_UFFD_ASYNC);
  must_c(pagetide_tracker_prefill(watched.tracker(), watched.memory().page(2) - 1, 2,
                                  PAGETIDE_PREFILL_ZERO_PAGE));
  for (const std::size_t page : {1U, 2U, 3U}) {
    EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(page)), 0);
  }
  EXPECT_EQ(watched.take(), (Pages{3})) << "a page that was not armed counts as written when read";
}

TEST_F(TrackerCUffdAsync, prefill_does_what_its_policy_says) {
  for (const int policy : {PAGETIDE_PREFILL_AUTO, PAGETIDE_PREFILL_ZERO_PAGE,
                           PAGETIDE_PREFILL_MARKER, PAGETIDE_PREFILL_NONE}) {
    WatchedByC watched(8, PAGETIDE_BACKEND_UFFD_ASYNC);
    must_c(pagetide_tracker_prefill(watched.tracker(), watched.memory().page(0), 8 * page_size(),
                                    policy));
    EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(2)), 0);
    WatchedMemory expected{Mapping(8)};
    must(expected.tracker().prefill(expected.memory().range(), static_cast<Prefill>(policy)));
    EXPECT_EQ(*static_cast<volatile char*>(expected.memory().page(2)), 0);
    EXPECT_EQ(watched.take(), expected.take()) << pagetide_prefill_name(policy);
    EXPECT_EQ(resident_pages(watched.memory().range()), resident_pages(expected.memory().range()))
        << pagetide_prefill_name(policy);
  }
}

TEST(TrackerCPrefill, with_a_number_that_is_no_policy_is_refused) {
  WatchedByC watched(8);
  EXPECT_EQ(pagetide_tracker_prefill(watched.tracker(), watched.memory().page(0), page_size(), 4),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(), "4 is not a pagetide_prefill.");
}

TEST_F(TrackerCUffdAsync, a_failing_scan_poisons_with_a_cause) {
  WatchedByC watched(8, PAGETIDE_BACKEND_UFFD_ASYNC);
  watched.take();
  lose_registration(watched.memory());
  EXPECT_EQ(watched.take(), all_pages(8));
  EXPECT_EQ(pagetide_collected_is_poisoned(watched.collected()), 1);
  EXPECT_THAT(pagetide_collected_cause(watched.collected()), HasSubstr("(PAGEMAP_SCAN)"));
  EXPECT_EQ(stats_of(watched.tracker()).poisoned_takes, 1U);
  must_c(watched.collect(PAGETIDE_TAKE, {watched.part(4, 4)}));
  EXPECT_EQ(pagetide_collected_is_poisoned(watched.collected()), 0);
  EXPECT_STREQ(pagetide_collected_cause(watched.collected()), "");
}

// One block of 2 MiB, written in whole in each of some epochs, and half of it told to be unchanged
// in the first ones: what the statistics say of hot blocks after each take.
constexpr std::size_t kHotRounds = 9;
bool tells(std::size_t round) {
  return round < 5;
}

std::vector<std::uint64_t> hot_blocks_by_cpp(const HotPageOptions& hot) {
  const std::size_t pages = (std::size_t{2} << 20) / page_size();
  WatchedMemory watched(Mapping::aligned(pages, std::size_t{2} << 20),
                        {BackendKind::uffd_async, false, false, hot});
  std::vector<std::uint64_t> blocks;
  for (std::size_t round = 0; round < kHotRounds; ++round) {
    watched.memory().fill(static_cast<char>(round));
    const Collected taken = watched.collect(CollectMode::take);
    DirtyBitmap unchanged(pages);
    unchanged.set_range({0, pages / 2});
    if (tells(round)) watched.tracker().report_unchanged(watched.watch(), unchanged);
    blocks.push_back(watched.tracker().stats().hot_blocks);
  }
  return blocks;
}

std::vector<std::uint64_t> hot_blocks_by_c(const HotPageOptions& hot) {
  const std::size_t pages = (std::size_t{2} << 20) / page_size();
  pagetide_tracker_options options = default_options();
  options.backend = PAGETIDE_BACKEND_UFFD_ASYNC;
  options.adapt_to_hot_pages = hot.enabled ? 1 : 0;
  options.hot_stale_page_ns = hot.stale_page_ns;
  options.hot_fault_ns = hot.fault_ns;
  options.hot_ioctl_ns = hot.ioctl_ns;
  options.hot_relearn_takes = hot.relearn_takes;
  WatchedByC watched(Mapping::aligned(pages, std::size_t{2} << 20), create(options));
  std::vector<std::uint64_t> unchanged((pages + 63) / 64);
  for (std::size_t page = 0; page < pages / 2; ++page) {
    unchanged[page / 64] |= std::uint64_t{1} << (page % 64);
  }
  std::vector<std::uint64_t> blocks;
  for (std::size_t round = 0; round < kHotRounds; ++round) {
    watched.memory().fill(static_cast<char>(round));
    watched.take();
    if (tells(round)) {
      must_c(pagetide_tracker_report_unchanged(watched.tracker(), watched.watch(), unchanged.data(),
                                               pages));
    }
    blocks.push_back(stats_of(watched.tracker()).hot_blocks);
  }
  return blocks;
}

TEST_F(TrackerCUffdAsync, every_hot_page_option_arrives) {
  const HotPageOptions base{.enabled = true};
  const std::vector<std::uint64_t> expected = hot_blocks_by_cpp(base);
  EXPECT_EQ(hot_blocks_by_c(base), expected);
  HotPageOptions off = base;
  off.enabled = false;
  HotPageOptions copies_cost = base;
  copies_cost.stale_page_ns = 1'000'000;
  HotPageOptions faults_cost_nothing = base;
  faults_cost_nothing.fault_ns = 0;
  HotPageOptions relearns = base;
  relearns.relearn_takes = 2;
  for (const HotPageOptions& other : {off, copies_cost, faults_cost_nothing, relearns}) {
    const std::vector<std::uint64_t> others = hot_blocks_by_cpp(other);
    EXPECT_NE(others, expected) << "shows nothing";
    EXPECT_EQ(hot_blocks_by_c(other), others);
  }
  HotPageOptions calls_cost = faults_cost_nothing;
  calls_cost.ioctl_ns = 1'000'000'000;
  EXPECT_NE(hot_blocks_by_cpp(calls_cost), hot_blocks_by_cpp(faults_cost_nothing));
  EXPECT_EQ(hot_blocks_by_c(calls_cost), hot_blocks_by_cpp(calls_cost));
}

// --- What was collected ---

// Pages at the borders of words and of the range.
class TrackerCCollected : public testing::Test {
 protected:
  TrackerCCollected() : watched_(130) {
    watched_.take();
    for (const std::size_t page : {0U, 1U, 2U, 63U, 64U, 100U, 129U}) {
      watched_.memory().write(page, 1);
    }
    must_c(pagetide_tracker_note_purged(watched_.tracker(), watched_.memory().page(100),
                                        2 * page_size()));
    watched_.take();
  }
  const pagetide_collected* collected() const { return watched_.collected(); }

  WatchedByC watched_;
};

TEST_F(TrackerCCollected, runs_ascend_and_are_as_long_as_they_can_be) {
  std::vector<std::pair<std::size_t, std::size_t>> runs;
  pagetide_page_run run = {0, 0};
  while (pagetide_collected_next_run(collected(), PAGETIDE_WRITTEN, &run) == 1) {
    runs.emplace_back(run.first, run.count);
  }
  EXPECT_THAT(runs,
              ElementsAre(std::pair(0, 3), std::pair(63, 2), std::pair(100, 1), std::pair(129, 1)));
  EXPECT_EQ(run.first, 129U) << "the end stores nothing";
  EXPECT_EQ(pagetide_collected_next_run(collected(), PAGETIDE_WRITTEN, &run), 0);
}

TEST_F(TrackerCCollected, runs_can_begin_anywhere) {
  pagetide_page_run run = {1, 1};
  EXPECT_EQ(pagetide_collected_next_run(collected(), PAGETIDE_WRITTEN, &run), 1);
  EXPECT_EQ(run.first, 2U);
  EXPECT_EQ(run.count, 1U);
  run = {130, 1000};
  EXPECT_EQ(pagetide_collected_next_run(collected(), PAGETIDE_WRITTEN, &run), 0);
  run = {2, SIZE_MAX};
  EXPECT_EQ(pagetide_collected_next_run(collected(), PAGETIDE_WRITTEN, &run),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), EndsWith("begin with {0, 0}."));
}

TEST_F(TrackerCCollected, counts_and_tests_agree_with_the_runs) {
  for (const int set : {PAGETIDE_WRITTEN, PAGETIDE_ZEROED}) {
    const Pages pages = pages_of(collected(), set);
    EXPECT_EQ(pagetide_collected_count(collected(), set), static_cast<std::int64_t>(pages.size()));
    for (std::size_t page = 0; page < 300; ++page) {
      EXPECT_EQ(pagetide_collected_has(collected(), set, page), pages.contains(page) ? 1 : 0)
          << page;
    }
    EXPECT_EQ(pagetide_collected_has(collected(), set, SIZE_MAX), 0);
  }
  EXPECT_EQ(pages_of(collected(), PAGETIDE_WRITTEN), (Pages{0, 1, 2, 63, 64, 100, 129}));
  EXPECT_EQ(pages_of(collected(), PAGETIDE_ZEROED), (Pages{101}));
}

// KVM_GET_DIRTY_LOG fills a bitmap with bit p % 8 of byte p / 8 for page p, rounded up to 64 bits.
TEST_F(TrackerCCollected, is_exported_as_kvms_dirty_log) {
  for (const int set : {PAGETIDE_WRITTEN, PAGETIDE_ZEROED}) {
    std::array<std::uint64_t, 5> words;
    words.fill(UINT64_MAX);
    must_c(pagetide_collected_export(collected(), set, words.data(), 4));
    std::array<unsigned char, 32> log{};
    for (const std::size_t page : pages_of(collected(), set)) {
      log.at(page / 8) = static_cast<unsigned char>(log.at(page / 8) | 1U << (page % 8));
    }
    EXPECT_EQ(std::memcmp(words.data(), log.data(), log.size()), 0);
    EXPECT_EQ(words[4], UINT64_MAX) << "beyond what was given";
  }
}

TEST_F(TrackerCCollected, is_not_exported_to_too_few_words) {
  std::array<std::uint64_t, 3> words{7, 7, 7};
  EXPECT_EQ(pagetide_collected_export(collected(), PAGETIDE_WRITTEN, words.data(), 2),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(), "130 pages need 3 words, there is room for 2.");
  EXPECT_THAT(words, ElementsAre(7, 7, 7));
  EXPECT_EQ(pagetide_collected_export(collected(), PAGETIDE_WRITTEN, words.data(), 3), PAGETIDE_OK);
}

TEST_F(TrackerCCollected, has_no_third_set) {
  std::uint64_t word = 0;
  pagetide_page_run run = {0, 0};
  for (const int set : {-1, 2}) {
    EXPECT_EQ(pagetide_collected_count(collected(), set), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(last_message(), std::to_string(set) + " is not a pagetide_page_set.");
    EXPECT_EQ(pagetide_collected_has(collected(), set, 0), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(pagetide_collected_next_run(collected(), set, &run), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(pagetide_collected_export(collected(), set, &word, 1), PAGETIDE_INVALID_ARGUMENT);
  }
}

TEST(TrackerCCollectedNew, is_empty) {
  const CollectedHandle collected = new_collected();
  pagetide_page_run run = {0, 0};
  EXPECT_EQ(pagetide_collected_pages(collected.get()), 0);
  EXPECT_EQ(pagetide_collected_count(collected.get(), PAGETIDE_WRITTEN), 0);
  EXPECT_EQ(pagetide_collected_has(collected.get(), PAGETIDE_WRITTEN, 0), 0);
  EXPECT_EQ(pagetide_collected_next_run(collected.get(), PAGETIDE_ZEROED, &run), 0);
  EXPECT_EQ(pagetide_collected_is_poisoned(collected.get()), 0);
}

// --- Unchanged pages and statistics ---

TEST(TrackerCStats, count_what_consumers_tell_and_no_bits_beyond_the_pages) {
  WatchedByC watched(70);
  const std::array<std::uint64_t, 2> words{0b1011, UINT64_MAX};
  must_c(pagetide_tracker_report_unchanged(watched.tracker(), watched.watch(), words.data(), 70));
  EXPECT_EQ(stats_of(watched.tracker()).pages_unchanged, 3U + 6U);
  must_c(pagetide_tracker_report_unchanged(watched.tracker(), watched.watch(), words.data(), 64));
  EXPECT_EQ(stats_of(watched.tracker()).pages_unchanged, 3U + 6U + 3U);
  must_c(pagetide_tracker_report_unchanged(watched.tracker(), watched.watch(), words.data(), 0));
  EXPECT_EQ(stats_of(watched.tracker()).pages_unchanged, 3U + 6U + 3U);
  EXPECT_EQ(pagetide_tracker_report_unchanged(watched.tracker(), watched.watch(), words.data(), 71),
            PAGETIDE_INVALID_ARGUMENT);
}

TEST(TrackerCStats, count_nothing_where_nothing_is_told) {
  WatchedByC watched(70);
  EXPECT_EQ(pagetide_tracker_report_unchanged(watched.tracker(), watched.watch(), nullptr, 0),
            PAGETIDE_OK)
      << last_message();
  EXPECT_EQ(stats_of(watched.tracker()).pages_unchanged, 0U);
}

TEST(TrackerCStats, count_what_was_done) {
  WatchedByC watched(10);
  watched.memory().write(3, 1);
  must_c(pagetide_tracker_purge(watched.tracker(), watched.memory().page(8), 2 * page_size()));
  watched.peek();
  watched.peek();
  watched.take();
  const pagetide_tracker_stats stats = stats_of(watched.tracker());
  EXPECT_EQ(stats.size, sizeof stats);
  EXPECT_EQ(stats.takes, 1U);
  EXPECT_EQ(stats.peeks, 2U);
  EXPECT_EQ(stats.pages_reported, 3U);
  EXPECT_EQ(stats.pages_purged, 2U);
  EXPECT_EQ(stats.pages_unchanged, 0U);
  EXPECT_EQ(stats.hot_blocks, 0U);
  EXPECT_EQ(stats.poisoned_takes, 0U);
  EXPECT_GT(stats.last_collect_ns, 0U);
  EXPECT_GT(stats.total_collect_ns, stats.last_collect_ns);
}

TEST(TrackerCStats, of_an_older_program_are_filled_to_its_end_and_no_further) {
  WatchedByC watched(10);
  watched.take();
  pagetide_tracker_stats stats;
  std::memset(&stats, 0x5a, sizeof stats);
  stats.size = offsetof(pagetide_tracker_stats, peeks);
  must_c(pagetide_tracker_get_stats(watched.tracker(), &stats));
  EXPECT_EQ(stats.size, offsetof(pagetide_tracker_stats, peeks));
  EXPECT_EQ(stats.takes, 1U);
  EXPECT_EQ(stats.peeks, 0x5a5a5a5a5a5a5a5aU);
}

TEST(TrackerCStats, of_a_newer_program_say_what_they_do_not_know) {
  struct {
    pagetide_tracker_stats known;
    std::uint64_t added;
  } stats;
  std::memset(&stats, 0x5a, sizeof stats);
  stats.known.size = sizeof stats;
  WatchedByC watched(10);
  watched.take();
  must_c(pagetide_tracker_get_stats(watched.tracker(), &stats.known));
  EXPECT_EQ(stats.known.size, sizeof stats.known);
  EXPECT_EQ(stats.known.takes, 1U);
  EXPECT_EQ(stats.added, 0U);
}

TEST(TrackerCStats, need_a_size) {
  WatchedByC watched(10);
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{1025}}) {
    pagetide_tracker_stats stats{};
    stats.size = size;
    EXPECT_EQ(pagetide_tracker_get_stats(watched.tracker(), &stats), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_THAT(last_message(), EndsWith("set it to sizeof(pagetide_tracker_stats)."));
  }
}

// --- Both APIs side by side ---

// A tracker of each API over the same memory, which compare allows.
class BothApis {
 public:
  static constexpr std::size_t kPages = 150;

  BothApis()
      : by_c_(kPages),
        tracker_(must(Tracker::create({BackendKind::compare}))),
        watch_(must(tracker_.watch(by_c_.memory().range()))) {}

  void write(std::size_t page, char value) { by_c_.memory().write(page, value); }
  void mark(PageRange pages) {
    const ByteRange bytes = bytes_of(pages);
    tracker_.mark_dirty(bytes);
    must_c(pagetide_tracker_mark_dirty(by_c_.tracker(), bytes.data(), bytes.size));
  }
  void note_purged(PageRange pages) {
    const ByteRange bytes = bytes_of(pages);
    tracker_.note_purged(bytes);
    must_c(pagetide_tracker_note_purged(by_c_.tracker(), bytes.data(), bytes.size));
  }
  void mark_always(PageRange pages) {
    const ByteRange bytes = bytes_of(pages);
    tracker_.mark_always_dirty(bytes);
    must_c(pagetide_tracker_mark_always_dirty(by_c_.tracker(), bytes.data(), bytes.size));
  }
  void put_back(std::uint32_t consumer) {
    tracker_.put_back(watch_, latest_, ConsumerId{consumer});
    must_c(pagetide_tracker_put_back(by_c_.tracker(), by_c_.watch(), consumer, by_c_.collected()));
  }
  std::uint32_t add_consumer() {
    pagetide_consumer_id consumer = 0;
    must_c(pagetide_tracker_add_consumer(by_c_.tracker(), &consumer));
    EXPECT_EQ(consumer, must(tracker_.add_consumer()).value);
    return consumer;
  }
  void collect(PageRange pages, CollectMode mode, std::uint32_t consumer) {
    const ByteRange bytes = bytes_of(pages);
    latest_ = must(tracker_.collect(watch_, {&bytes, 1}, mode, ConsumerId{consumer}));
    const pagetide_range part = {bytes.data(), bytes.size};
    must_c(pagetide_tracker_collect(by_c_.tracker(), by_c_.watch(), consumer,
                                    mode == CollectMode::take ? PAGETIDE_TAKE : PAGETIDE_PEEK,
                                    &part, 1, by_c_.collected()));
  }
  void expect_same() {
    EXPECT_EQ(pages_of(by_c_.collected(), PAGETIDE_WRITTEN), pagetide::pages_of(latest_.written));
    EXPECT_EQ(pages_of(by_c_.collected(), PAGETIDE_ZEROED), pagetide::pages_of(latest_.zeroed));
    EXPECT_EQ(pagetide_collected_pages(by_c_.collected()),
              static_cast<std::int64_t>(latest_.written.size()));
  }
  void expect_same_stats() {
    const pagetide_tracker_stats stats = stats_of(by_c_.tracker());
    const TrackerStats expected = tracker_.stats();
    EXPECT_EQ(stats.takes, expected.takes);
    EXPECT_EQ(stats.peeks, expected.peeks);
    EXPECT_EQ(stats.pages_reported, expected.pages_reported);
    EXPECT_EQ(stats.pages_purged, expected.pages_purged);
  }

 private:
  ByteRange bytes_of(PageRange pages) const {
    return pages.bytes_from(by_c_.memory().range().begin);
  }

  WatchedByC by_c_;
  Tracker tracker_;
  WatchId watch_;
  Collected latest_;
};

TEST(TrackerC, random_use_finds_what_the_cpp_api_finds) {
  BothApis both;
  RandomSource random;
  const std::uint32_t second = both.add_consumer();
  for (int step = 0; step < 3000; ++step) {
    const std::size_t first = random.below(BothApis::kPages);
    const PageRange run{first,
                        random.between(1, std::min<std::size_t>(40, BothApis::kPages - first))};
    const std::uint32_t consumer = random.one_in(2) ? second : 0;
    switch (random.below(random.one_in(100) ? 6 : 5)) {
      case 0:
        both.write(first, static_cast<char>(step));
        break;
      case 1:
        both.mark(run);
        break;
      case 2:
        both.note_purged(run);
        break;
      case 3:
        both.collect(run, random.one_in(2) ? CollectMode::take : CollectMode::peek, consumer);
        both.expect_same();
        break;
      case 4:
        both.put_back(consumer);
        break;
      case 5:
        both.mark_always({first, 1});
        break;
    }
    if (testing::Test::HasFailure()) return;
  }
  both.expect_same_stats();
}

}  // namespace
}  // namespace pagetide
