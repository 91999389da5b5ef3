// What the C API allocates, and what it does when there is no memory. This file replaces malloc and
// operator new of its program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "pagetide/pagetide.h"
#include "tests/support/failing_new.h"
#include "tests/tracker/allocation_guard.h"
#include "tests/tracker/tracker_c_support.h"

namespace pagetide {
namespace {

class TrackerCMemoryOf : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(every_back_end, TrackerCMemoryOf, kEveryBackEnd, back_end_name);

TEST_P(TrackerCMemoryOf, into_a_reserved_value_allocates_nothing) {
  WatchedByC watched(300, GetParam());
  must_c(pagetide_tracker_reserve(watched.tracker(), watched.watch(), 2, watched.collected()));
  for (std::size_t page = 0; page < 300; page += 2) watched.memory().write(page, 1);
  must_c(pagetide_tracker_note_purged(watched.tracker(), watched.memory().page(5), page_size()));
  const std::array parts = {watched.part(0, 100), watched.part(100, 200)};
  pagetide_page_run run = {0, 0};
  std::array<std::uint64_t, 5> words{};
  AllocationGuard::violations = 0;
  AllocationGuard::forbidden = true;
  allocations_left = 0;
  const int peeked =
      pagetide_tracker_peek(watched.tracker(), watched.watch(), 0, watched.collected());
  const int partly_peeked =
      pagetide_tracker_collect(watched.tracker(), watched.watch(), 0, PAGETIDE_PEEK, parts.data(),
                               parts.size(), watched.collected());
  const int taken =
      pagetide_tracker_take(watched.tracker(), watched.watch(), 0, watched.collected());
  const int found = pagetide_collected_next_run(watched.collected(), PAGETIDE_WRITTEN, &run);
  const int exported =
      pagetide_collected_export(watched.collected(), PAGETIDE_WRITTEN, words.data(), words.size());
  AllocationGuard::forbidden = false;
  allocations_left = SIZE_MAX;
  EXPECT_EQ(AllocationGuard::violations, 0);
  EXPECT_EQ(peeked, PAGETIDE_OK);
  EXPECT_EQ(partly_peeked, PAGETIDE_OK);
  EXPECT_EQ(taken, PAGETIDE_OK);
  EXPECT_EQ(exported, PAGETIDE_OK);
  EXPECT_EQ(found, 1);
  EXPECT_EQ(pagetide_collected_count(watched.collected(), PAGETIDE_WRITTEN), 150);
}

TEST(TrackerCMemory, an_error_allocates_nothing_beyond_the_cpp_apis_own) {
  AllocationGuard::violations = 0;
  AllocationGuard::forbidden = true;
  allocations_left = 0;
  const int result = pagetide_tracker_backend(nullptr);
  const bool has_message = *pagetide_last_error_message() != '\0';
  AllocationGuard::forbidden = false;
  allocations_left = SIZE_MAX;
  EXPECT_EQ(AllocationGuard::violations, 0);
  EXPECT_EQ(result, PAGETIDE_INVALID_ARGUMENT);
  EXPECT_TRUE(has_message);
}

#if PAGETIDE_COUNTS_ALLOCATIONS
TEST(TrackerCMemory, the_count_of_allocations_counts) {
  AllocationGuard::violations = 0;
  AllocationGuard::forbidden = true;
  pagetide_collected* collected = nullptr;
  const int result = pagetide_collected_create(&collected);
  AllocationGuard::forbidden = false;
  pagetide_collected_destroy(collected);
  EXPECT_EQ(result, PAGETIDE_OK);
  EXPECT_GT(AllocationGuard::violations, 0);
}
#endif

// Every failure must be out_of_memory.
int count_failures(const std::function<int()>& call) {
  return count_failed_allocations(call, [](int result) {
    if (result >= 0) return false;
    EXPECT_EQ(result, PAGETIDE_OUT_OF_MEMORY) << last_message();
    EXPECT_EQ(last_message(), "the program is out of memory.");
    EXPECT_EQ(pagetide_last_errno(), ENOMEM);
    return result == PAGETIDE_OUT_OF_MEMORY;
  });
}

TEST_P(TrackerCMemoryOf, running_out_of_memory_is_an_error_and_the_call_can_be_repeated) {
  must_c(pagetide_check_backend(PAGETIDE_BACKEND_COMPARE));
  const pagetide_tracker_options options = [] {
    pagetide_tracker_options chosen = default_options();
    chosen.backend = GetParam();
    return chosen;
  }();
  pagetide_tracker* tracker = nullptr;
  const TrackerHandle probed = create(options);  // what is probed once is probed
  EXPECT_GT(count_failures([&] { return pagetide_tracker_create(&options, &tracker); }), 1);
  const TrackerHandle owner(tracker, pagetide_tracker_destroy);
  const Mapping mapping(100);
  pagetide_watch_id watch = 0;
  EXPECT_GT(count_failures([&] {
              return pagetide_tracker_watch(tracker, mapping.page(0), 100 * page_size(), &watch);
            }),
            1);
  pagetide_collected* collected = nullptr;
  EXPECT_GT(count_failures([&] { return pagetide_collected_create(&collected); }), 0);
  const CollectedHandle collected_owner(collected, pagetide_collected_destroy);
  EXPECT_GT(count_failures([&] { return pagetide_tracker_reserve(tracker, watch, 3, collected); }),
            1);
  const std::uint64_t words[2] = {1, 0};
  EXPECT_GT(
      count_failures([&] { return pagetide_tracker_report_unchanged(tracker, watch, words, 100); }),
      0);
  mapping.write(3, 1);
  EXPECT_EQ(pagetide_tracker_take(tracker, watch, 0, collected), PAGETIDE_OK);
  EXPECT_EQ(pages_of(collected, PAGETIDE_WRITTEN), (Pages{3}));
}

TEST_P(TrackerCMemoryOf, a_take_that_runs_out_of_memory_loses_nothing) {
  WatchedByC watched(100, GetParam());
  watched.take();
  watched.memory().write(3, 1);
  const CollectedHandle unreserved = new_collected();
  EXPECT_GT(count_failures([&] {
              return pagetide_tracker_take(watched.tracker(), watched.watch(), 0, unreserved.get());
            }),
            0);
  EXPECT_EQ(pages_of(unreserved.get(), PAGETIDE_WRITTEN), (Pages{3}));
  EXPECT_EQ(watched.take(), Pages());
}

// The scan has consumed what it found by the time its error is put into words: without memory for
// those, it is all written still.
TEST_F(TrackerCUffdAsync, a_failing_scan_that_runs_out_of_memory_loses_nothing) {
  WatchedByC watched(8, PAGETIDE_BACKEND_UFFD_ASYNC);
  watched.memory().fill(1);
  watched.take();
  must_c(pagetide_tracker_reserve(watched.tracker(), watched.watch(), 1, watched.collected()));
  watched.memory().write(0, 2);
  lose_registration(watched.memory());
  const int failures = count_failures([&] {
    return pagetide_tracker_take(watched.tracker(), watched.watch(), 0, watched.collected());
  });
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(pagetide_collected_is_poisoned(watched.collected()), 1);
  EXPECT_EQ(pages_of(watched.collected(), PAGETIDE_WRITTEN), all_pages(8));
}

TEST(TrackerCMemory, room_for_more_parts_than_memory_can_hold_is_an_error) {
  WatchedByC watched(4);
  for (const std::size_t parts : {SIZE_MAX, SIZE_MAX / sizeof(pagetide_range)}) {
    EXPECT_EQ(
        pagetide_tracker_reserve(watched.tracker(), watched.watch(), parts, watched.collected()),
        PAGETIDE_OUT_OF_MEMORY);
  }
}

}  // namespace
}  // namespace pagetide
