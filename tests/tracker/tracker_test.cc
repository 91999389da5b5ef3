#include "pagetide/tracker/tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pagetide/tracker/any_backend.h"
#include "tests/support/child_process.h"
#include "tests/support/fake_backend.h"
#include "tests/support/mapping.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/page_sets.h"
#include "tests/support/random_source.h"
#include "tests/support/skip.h"

namespace pagetide {
namespace {

thread_local std::size_t allocations = 0;

}  // namespace
}  // namespace pagetide

// Counts what this thread allocates. The sanitizers, which have a malloc of their own, call a hook.
#define PAGETIDE_SEEN_BY_LIBRARIES extern "C" __attribute__((visibility("default")))
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
PAGETIDE_SEEN_BY_LIBRARIES void __sanitizer_malloc_hook(const volatile void*,
                                                        std::size_t);  // NOLINT
void __sanitizer_malloc_hook(const volatile void*, std::size_t) {
  ++pagetide::allocations;
}  // NOLINT
#else
extern "C" {
void* __libc_malloc(std::size_t);               // NOLINT: the name is that of glibc
void* __libc_calloc(std::size_t, std::size_t);  // NOLINT
void* __libc_realloc(void*, std::size_t);       // NOLINT
}
PAGETIDE_SEEN_BY_LIBRARIES void* malloc(std::size_t size) noexcept {
  ++pagetide::allocations;
  return __libc_malloc(size);
}
PAGETIDE_SEEN_BY_LIBRARIES void* calloc(std::size_t count, std::size_t size) noexcept {
  ++pagetide::allocations;
  return __libc_calloc(count, size);
}
PAGETIDE_SEEN_BY_LIBRARIES void* realloc(void* block, std::size_t size) noexcept {
  ++pagetide::allocations;
  return __libc_realloc(block, size);
}
#endif

namespace pagetide {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A watched range of kPages pages that need not be mapped, and one behind it with a gap.
class TrackerTest : public testing::Test {
 protected:
  static constexpr std::size_t kPages = 200;

  TrackerTest()
      : range_{std::uintptr_t{1} << 40, kPages * page_size()},
        other_{range_.end() + page_size(), 10 * page_size()},
        tracker_(Tracker::over(AnyBackend(FakeBackend(kernel_)))),
        watch_(must(tracker_.watch(range_))) {}

  ByteRange pages(std::size_t first, std::size_t count) const {
    return PageRange{first, count}.bytes_from(range_.begin);
  }
  void write(std::size_t page) { kernel_.written.insert(pages(page, 1).begin); }
  Collected take() { return must(tracker_.collect(watch_, CollectMode::take)); }
  Collected peek() { return must(tracker_.collect(watch_, CollectMode::peek)); }
  Collected take(const std::vector<ByteRange>& parts) {
    return must(tracker_.collect(watch_, parts, CollectMode::take));
  }

  FakeKernel kernel_;
  ByteRange range_;
  ByteRange other_;
  Tracker tracker_;
  WatchId watch_;
};

TEST_F(TrackerTest, a_take_reports_what_was_written_since_the_last_take) {
  write(3);
  write(199);
  const Collected first = take();
  EXPECT_EQ(pages_of(first.written), (Pages{3, 199}));
  EXPECT_EQ(first.written.size(), kPages);
  EXPECT_FALSE(first.poisoned);
  EXPECT_EQ(first.cause, "");
  EXPECT_EQ(pages_of(take().written), Pages());
  write(4);
  EXPECT_EQ(pages_of(take().written), (Pages{4}));
}

TEST_F(TrackerTest, a_peek_reports_and_changes_nothing) {
  write(3);
  tracker_.mark_dirty(pages(5, 1));
  tracker_.note_purged(pages(7, 2));
  for (int round = 0; round < 2; ++round) {
    const Collected seen = peek();
    EXPECT_EQ(pages_of(seen.written), (Pages{3, 5}));
    EXPECT_EQ(pages_of(seen.zeroed), (Pages{7, 8}));
  }
  const Collected taken = take();
  EXPECT_EQ(pages_of(taken.written), (Pages{3, 5}));
  EXPECT_EQ(pages_of(taken.zeroed), (Pages{7, 8}));
  EXPECT_EQ(pages_of(take().zeroed), Pages());
}

TEST_F(TrackerTest, only_the_parts_asked_for_are_scanned_and_begin_a_new_epoch) {
  for (const std::size_t page : {1U, 70U, 130U}) write(page);
  tracker_.mark_dirty(pages(0, kPages));
  tracker_.note_purged(pages(0, kPages));
  kernel_.collected.clear();
  // Borders inside words of the bitmaps.
  const Collected part = take({pages(1, 2), pages(66, 10)});
  EXPECT_THAT(kernel_.collected, ElementsAre(pages(1, 2), pages(66, 10)));
  Pages expected{1, 2};
  for (std::size_t page = 66; page < 76; ++page) expected.insert(page);
  EXPECT_EQ(pages_of(part.written), expected);
  EXPECT_EQ(pages_of(part.zeroed), Pages());
  EXPECT_EQ(part.written.size(), 76U);

  const Collected rest = take();
  Pages others;
  for (std::size_t page = 0; page < kPages; ++page) {
    if (!expected.contains(page)) others.insert(page);
  }
  EXPECT_EQ(pages_of(rest.written), others);
}

TEST_F(TrackerTest, parts_may_be_empty_or_none) {
  write(3);
  EXPECT_EQ(take({}).written.size(), 0U);
  EXPECT_FALSE(take({pages(3, 0)}).written.any());
  EXPECT_EQ(pages_of(take().written), (Pages{3}));
}

TEST_F(TrackerTest, overlapping_parts_report_each_page) {
  write(3);
  tracker_.note_purged(pages(4, 1));
  const Collected collected = take({pages(2, 3), pages(3, 4)});
  EXPECT_EQ(pages_of(collected.written), (Pages{3}));
  EXPECT_EQ(pages_of(collected.zeroed), (Pages{4}));
}

TEST_F(TrackerTest, marked_pages_are_reported_once) {
  tracker_.mark_dirty(pages(60, 10));
  EXPECT_EQ(take().written.count(), 10U);
  EXPECT_EQ(take().written.count(), 0U);
}

TEST_F(TrackerTest, a_marked_byte_marks_its_page) {
  tracker_.mark_dirty({range_.begin + 5 * page_size() + 100, 1});
  tracker_.mark_dirty({range_.begin + 8 * page_size() - 1, 2});
  EXPECT_EQ(pages_of(take().written), (Pages{5, 7, 8}));
}

TEST_F(TrackerTest, marks_outside_watched_memory_are_ignored) {
  tracker_.mark_dirty({range_.begin - 10 * page_size(), 10 * page_size()});
  tracker_.mark_dirty({range_.end(), page_size()});
  tracker_.mark_always_dirty({range_.end(), page_size()});
  tracker_.note_purged({range_.end(), page_size()});
  const Collected collected = take();
  EXPECT_FALSE(collected.written.any());
  EXPECT_FALSE(collected.zeroed.any());
}

TEST_F(TrackerTest, marks_across_two_watches_reach_both) {
  const WatchId other = must(tracker_.watch(other_));
  tracker_.mark_dirty({range_.begin + 198 * page_size(), 5 * page_size()});
  EXPECT_EQ(pages_of(take().written), (Pages{198, 199}));
  EXPECT_EQ(pages_of(must(tracker_.collect(other, CollectMode::take)).written), (Pages{0, 1}));
}

TEST_F(TrackerTest, always_dirty_pages_are_in_every_collect) {
  tracker_.mark_always_dirty(pages(63, 2));
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(pages_of(peek().written), (Pages{63, 64}));
    EXPECT_EQ(pages_of(take().written), (Pages{63, 64}));
  }
  // Purged or not: somebody else may write to them at any time.
  tracker_.note_purged(pages(62, 2));
  const Collected collected = take();
  EXPECT_EQ(pages_of(collected.written), (Pages{63, 64}));
  EXPECT_EQ(pages_of(collected.zeroed), (Pages{62}));
}

TEST_F(TrackerTest, put_back_gives_everything_to_the_next_take) {
  write(3);
  tracker_.note_purged(pages(100, 3));
  const Collected taken = take();
  write(4);
  tracker_.put_back(watch_, taken);
  EXPECT_EQ(pages_of(take().written), (Pages{3, 4, 100, 101, 102}));
  EXPECT_FALSE(take().written.any());
}

TEST_F(TrackerTest, put_back_of_parts_keeps_their_numbers) {
  write(90);
  const Collected taken = take({pages(80, 20)});
  tracker_.put_back(watch_, taken);
  EXPECT_EQ(pages_of(take().written), (Pages{90}));
}

TEST_F(TrackerTest, purged_pages_are_zeroed_and_not_written) {
  tracker_.note_purged(pages(10, 3));
  const Collected collected = take();
  EXPECT_EQ(pages_of(collected.zeroed), (Pages{10, 11, 12}));
  EXPECT_FALSE(collected.written.any());
  EXPECT_FALSE(take().zeroed.any());
}

TEST_F(TrackerTest, purged_pages_that_were_written_since_are_only_written) {
  tracker_.note_purged(pages(10, 3));
  write(11);
  tracker_.mark_dirty(pages(12, 1));
  const Collected collected = take();
  EXPECT_EQ(pages_of(collected.zeroed), (Pages{10}));
  EXPECT_EQ(pages_of(collected.written), (Pages{11, 12}));
}

TEST_F(TrackerTest, purge_gives_the_memory_back_and_logs_it_as_one_step) {
  const Mapping mapping(8);
  const WatchId watch = must(tracker_.watch(mapping.range()));
  mapping.fill(42);
  must(tracker_.purge(mapping.pages(2, 3)));
  for (std::size_t page = 0; page < 8; ++page) {
    EXPECT_EQ(*mapping.page(page), page >= 2 && page < 5 ? 0 : 42) << page;
  }
  EXPECT_EQ(pages_of(must(tracker_.collect(watch, CollectMode::take)).zeroed), (Pages{2, 3, 4}));
}

TEST_F(TrackerTest, a_purge_of_locked_memory_fails_and_is_not_logged) {
  const Mapping mapping(2);
  const WatchId watch = must(tracker_.watch(mapping.range()));
  mapping.fill(42);
  ASSERT_TRUE(lock_memory(mapping.pages(0, 1)));
  const auto r = tracker_.purge(mapping.pages(0, 1));
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().message(),
            "cannot purge memory (MADV_DONTNEED): Invalid argument. Memory locked with mlock() "
            "cannot be purged; unlock it.");
  EXPECT_EQ(*mapping.page(0), 42);
  EXPECT_FALSE(must(tracker_.collect(watch, CollectMode::take)).zeroed.any());
  EXPECT_EQ(tracker_.stats().pages_purged, 0U);
}

TEST_F(TrackerTest, memory_that_is_not_watched_is_not_purged) {
  const Mapping mapping(8);
  const WatchId watch = must(tracker_.watch(mapping.pages(2, 4)));
  mapping.fill(42);
  for (const ByteRange wrong :
       {mapping.pages(0, 1), mapping.pages(1, 2), mapping.pages(5, 2), mapping.range()}) {
    const auto r = tracker_.purge(wrong);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument);
  }
  for (std::size_t page = 0; page < 8; ++page) EXPECT_EQ(*mapping.page(page), 42) << page;
  EXPECT_FALSE(must(tracker_.collect(watch, CollectMode::take)).zeroed.any());
}

TEST_F(TrackerTest, a_failing_scan_makes_the_whole_part_written) {
  write(3);
  write(150);
  kernel_.collect_fails = true;
  const Collected broken = take({pages(60, 10)});
  EXPECT_TRUE(broken.poisoned);
  EXPECT_EQ(broken.cause, "the scan broke.");
  EXPECT_EQ(pages_of(broken.written), (Pages{60, 61, 62, 63, 64, 65, 66, 67, 68, 69}));
  const Collected all = take();
  EXPECT_EQ(all.written.count(), kPages);
  kernel_.collect_fails = false;
  const Collected after = take();
  EXPECT_FALSE(after.poisoned);
  EXPECT_EQ(after.cause, "");
  EXPECT_FALSE(after.written.any());
}

TEST_F(TrackerTest, a_scan_without_memory_for_its_error_makes_the_whole_part_written) {
  kernel_.no_memory = true;
  const Collected collected = take({pages(4, 3)});
  EXPECT_TRUE(collected.poisoned);
  EXPECT_EQ(pages_of(collected.written), (Pages{4, 5, 6}));
}

TEST_F(TrackerTest, pages_of_a_larger_watch_cannot_be_put_back_beyond_the_end) {
  Collected larger;
  larger.written = DirtyBitmap(kPages + 100);
  larger.written.set_range({kPages - 1, 50});
  tracker_.put_back(watch_, larger);
  EXPECT_EQ(pages_of(take().written), (Pages{kPages - 1}));
}

TEST_F(TrackerTest, only_whole_pages_are_purged) {
  const Mapping mapping(2);
  mapping.fill(7);
  for (const ByteRange wrong : {ByteRange{mapping.range().begin + 8, page_size()},
                                ByteRange{mapping.range().begin, page_size() + 1}}) {
    const auto r = tracker_.purge(wrong);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument);
  }
  EXPECT_EQ(*mapping.page(1), 7);
}

TEST_F(TrackerTest, no_watch_is_named_by_a_value_that_was_never_given) {
  EXPECT_NE(watch_, WatchId{});
  EXPECT_FALSE(tracker_.range(WatchId{}));
  EXPECT_EQ(must(tracker_.range(watch_)), range_);
}

TEST_F(TrackerTest, purged_pages_of_a_failing_scan_are_written_too) {
  tracker_.note_purged(pages(5, 2));
  kernel_.collect_fails = true;
  const Collected broken = take();
  EXPECT_FALSE(broken.zeroed.any());
  EXPECT_EQ(broken.written.count(), kPages);
}

TEST_F(TrackerTest, a_value_that_was_poisoned_once_can_be_used_again) {
  Collected value;
  kernel_.collect_fails = true;
  must(tracker_.collect_into(watch_, {&range_, 1}, CollectMode::take, value));
  EXPECT_TRUE(value.poisoned);
  kernel_.collect_fails = false;
  write(8);
  must(tracker_.collect_into(watch_, {&range_, 1}, CollectMode::take, value));
  EXPECT_FALSE(value.poisoned);
  EXPECT_EQ(value.cause, "");
  EXPECT_EQ(pages_of(value.written), (Pages{8}));
}

TEST_F(TrackerTest, watching_tells_the_back_end_once) {
  EXPECT_THAT(kernel_.watched, ElementsAre(range_));
  EXPECT_THAT(kernel_.unwatched, IsEmpty());
  tracker_.unwatch(watch_);
  tracker_.unwatch(watch_);
  EXPECT_THAT(kernel_.unwatched, ElementsAre(range_));
}

TEST_F(TrackerTest, an_unwatched_range_is_gone) {
  tracker_.unwatch(watch_);
  const auto r = tracker_.collect(watch_, CollectMode::take);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(r.error().message(), "cannot collect: no such watch; it was unwatched.");
  tracker_.mark_dirty(range_);
  tracker_.put_back(watch_, {});
  Collected value;
  tracker_.reserve(watch_, value);
}

TEST_F(TrackerTest, a_range_watched_again_starts_afresh_under_another_name) {
  tracker_.mark_dirty(pages(3, 1));
  tracker_.note_purged(pages(4, 1));
  tracker_.mark_always_dirty(pages(5, 1));
  tracker_.unwatch(watch_);
  const WatchId again = must(tracker_.watch(range_));
  EXPECT_NE(again, watch_);
  const Collected collected = must(tracker_.collect(again, CollectMode::take));
  EXPECT_FALSE(collected.written.any());
  EXPECT_FALSE(collected.zeroed.any());
}

TEST_F(TrackerTest, its_end_unwatches_everything) {
  {
    Tracker tracker = Tracker::over(AnyBackend(FakeBackend(kernel_)));
    const WatchId gone = must(tracker.watch(range_));
    must(tracker.watch(other_));
    tracker.unwatch(gone);
    kernel_.unwatched.clear();
  }
  EXPECT_THAT(kernel_.unwatched, ElementsAre(other_));
}

TEST_F(TrackerTest, moving_takes_the_watches_along) {
  write(3);
  Tracker moved(std::move(tracker_));
  EXPECT_THAT(kernel_.unwatched, IsEmpty());
  EXPECT_EQ(pages_of(must(moved.collect(watch_, CollectMode::take)).written), (Pages{3}));
}

TEST_F(TrackerTest, move_assignment_unwatches_what_the_target_watched) {
  FakeKernel other_kernel;
  Tracker other = Tracker::over(AnyBackend(FakeBackend(other_kernel)));
  must(other.watch(other_));
  other = std::move(tracker_);
  EXPECT_THAT(other_kernel.unwatched, ElementsAre(other_));
  EXPECT_THAT(kernel_.unwatched, IsEmpty());
}

TEST_F(TrackerTest, only_whole_pages_can_be_watched) {
  for (const ByteRange wrong :
       {ByteRange{other_.begin, 0}, ByteRange{other_.begin + 8, page_size()},
        ByteRange{other_.begin, page_size() - 1}}) {
    const auto r = tracker_.watch(wrong);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument);
    EXPECT_THAT(r.error().message(), testing::EndsWith("must be whole pages of " +
                                                       std::to_string(page_size()) + " bytes."));
  }
  EXPECT_EQ(kernel_.watched.size(), 1U);
}

TEST_F(TrackerTest, a_range_that_wraps_around_cannot_be_watched) {
  const ByteRange wrong{range_.begin, round_down(SIZE_MAX, page_size())};
  EXPECT_FALSE(tracker_.watch(wrong));
  EXPECT_EQ(kernel_.watched.size(), 1U);
}

TEST_F(TrackerTest, no_page_can_be_watched_twice) {
  for (const ByteRange overlap : {range_, pages(0, 1), pages(kPages - 1, 2),
                                  ByteRange{range_.begin - page_size(), 2 * page_size()}}) {
    const auto r = tracker_.watch(overlap);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::already_exists);
    EXPECT_THAT(r.error().message(), testing::EndsWith("a part is watched already."));
  }
  EXPECT_EQ(kernel_.watched.size(), 1U);
}

TEST_F(TrackerTest, an_error_of_the_back_end_is_handed_on_and_nothing_is_watched) {
  kernel_.watch_fails = true;
  const auto r = tracker_.watch(other_);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().message(), "no watching here.");
  kernel_.watch_fails = false;
  EXPECT_TRUE(tracker_.watch(other_));
}

TEST_F(TrackerTest, parts_must_be_whole_pages_of_the_watched_range) {
  write(3);
  for (const ByteRange wrong :
       {ByteRange{range_.begin + 1, page_size()}, ByteRange{range_.begin, page_size() + 1},
        ByteRange{range_.begin - page_size(), page_size()}, pages(kPages - 1, 2),
        ByteRange{range_.begin, round_down(SIZE_MAX, page_size())}}) {
    const std::vector<ByteRange> parts = {pages(0, 10), wrong};
    const auto r = tracker_.collect(watch_, parts, CollectMode::take);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument);
  }
  EXPECT_EQ(pages_of(take().written), (Pages{3})) << "a refused collect must consume nothing";
}

TEST_F(TrackerTest, a_watch_id_never_given_out_is_refused) {
  const auto r = tracker_.collect(WatchId{1000}, CollectMode::take);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument);
}

TEST_F(TrackerTest, prefill_is_the_back_ends) {
  must(tracker_.prefill(pages(4, 4), Prefill::zero_page));
  EXPECT_THAT(kernel_.prefilled, ElementsAre(pages(4, 4)));
}

TEST_F(TrackerTest, statistics_count_what_was_done) {
  write(3);
  tracker_.note_purged(pages(10, 4));
  peek();
  peek();
  take();
  kernel_.collect_fails = true;
  peek();
  take();
  const TrackerStats stats = tracker_.stats();
  EXPECT_EQ(stats.takes, 2U);
  EXPECT_EQ(stats.peeks, 3U);
  EXPECT_EQ(stats.pages_reported, 5U + kPages);
  EXPECT_EQ(stats.pages_purged, 4U);
  EXPECT_EQ(stats.poisoned_takes, 1U);
  EXPECT_GT(stats.last_collect_ns, 0U);
  EXPECT_GE(stats.total_collect_ns, stats.last_collect_ns);
}

TEST_F(TrackerTest, a_forked_child_is_refused) {
  kernel_.collected.clear();
  EXPECT_EQ(run_in_child([&]() -> std::string {
              const auto collected = tracker_.collect(watch_, CollectMode::take);
              if (collected || collected.error().code() != ErrorCode::forked) return "collect";
              if (collected.error().message() !=
                  "this tracker was opened by the parent process; open a new one after fork().") {
                return collected.error().message();
              }
              const auto watch = tracker_.watch(other_);
              if (watch || watch.error().code() != ErrorCode::forked) return "watch";
              if (!tracker_.prefill(pages(0, 1), Prefill::zero_page)) return "prefill";
              if (!kernel_.collected.empty() || !kernel_.prefilled.empty()) return "back end used";
              return {};
            }),
            "");
}

// The lock stays held in the child, whose only thread is another one.
TEST_F(TrackerTest, a_child_that_was_forked_in_the_middle_of_a_take_never_waits) {
  kernel_.hold = true;
  std::thread taker([&] { (void)take(); });
  while (!kernel_.inside) std::this_thread::yield();
  const Mapping mapping(1);
  EXPECT_EQ(run_in_child([&]() -> std::string {
              ::alarm(20);
              Collected collected;
              if (tracker_.collect(watch_, CollectMode::take)) return "collect";
              if (tracker_.watch(other_)) return "watch";
              if (tracker_.range(watch_)) return "range";
              if (tracker_.add_consumer()) return "add_consumer";
              if (!tracker_.purge(mapping.range())) return "purge";
              if (!tracker_.prefill(pages(0, 1), Prefill::zero_page)) return "prefill";
              tracker_.reserve(watch_, collected);
              tracker_.remove_consumer({1});
              tracker_.report_unchanged(watch_, {});
              tracker_.mark_dirty(range_);
              tracker_.mark_always_dirty(range_);
              tracker_.put_back(watch_, collected);
              tracker_.note_purged(range_);
              tracker_.unwatch(watch_);
              (void)tracker_.stats();
              { const Tracker ending = std::move(tracker_); }
              return {};
            }),
            "");
  kernel_.hold = false;
  taker.join();
}

TEST_F(TrackerTest, a_forked_child_unwatches_nothing_of_its_parents) {
  EXPECT_EQ(run_in_child([&]() -> std::string {
              tracker_.unwatch(watch_);
              return kernel_.unwatched.empty() ? "" : "unwatched the parent's memory";
            }),
            "");
}

TEST_F(TrackerTest, the_end_of_a_tracker_in_a_forked_child_unwatches_nothing) {
  EXPECT_EQ(run_in_child([&]() -> std::string {
              { const Tracker ending = std::move(tracker_); }
              return kernel_.unwatched.empty() ? "" : "unwatched the parent's memory";
            }),
            "");
}

TEST_F(TrackerTest, the_parent_of_a_fork_goes_on) {
  write(3);
  run_in_child([&] {
    tracker_.mark_dirty(range_);
    return std::string();
  });
  EXPECT_EQ(pages_of(take().written), (Pages{3}));
}

TEST_F(TrackerTest, collect_into_a_reserved_value_allocates_nothing) {
  Collected value;
  tracker_.reserve(watch_, value);
  kernel_.collected.reserve(100);  // the fake's own
  const std::array parts = {pages(0, 100), pages(100, 100)};
  write(3);
  tracker_.note_purged(pages(9, 1));
  const std::size_t before = allocations;
  const bool peeked = tracker_.collect_into(watch_, parts, CollectMode::peek, value).has_value();
  const std::size_t peek_allocations = allocations - before;
  const bool taken =
      tracker_.collect_into(watch_, {&range_, 1}, CollectMode::take, value).has_value();
  const std::size_t all_allocations = allocations - before;
  EXPECT_TRUE(peeked);
  EXPECT_TRUE(taken);
  EXPECT_EQ(peek_allocations, 0U);
  EXPECT_EQ(all_allocations, 0U);
  EXPECT_EQ(pages_of(value.written), (Pages{3}));
  EXPECT_EQ(pages_of(value.zeroed), (Pages{9}));
}

TEST_F(TrackerTest, the_count_of_allocations_counts) {
  const std::size_t before = allocations;
  const Collected value = take();
  EXPECT_GT(allocations, before);
  EXPECT_EQ(value.written.size(), kPages);
}

class RealTrackerTest : public testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    if (GetParam() == BackendKind::automatic) return;
    if (auto r = check_backend(GetParam()); !r) PAGETIDE_SKIP(r.error().message().c_str());
  }
};

INSTANTIATE_TEST_SUITE_P(every_back_end, RealTrackerTest,
                         testing::Values(BackendKind::automatic, BackendKind::uffd_sync,
                                         BackendKind::uffd_sigbus, BackendKind::write_protect,
                                         BackendKind::compare),
                         [](const auto& kind) { return std::string(to_string(kind.param)); });

// The kernel goes up to the locked page; what came before is zero by then.
TEST_P(RealTrackerTest, a_purge_that_fails_half_way_is_written_in_whole) {
  const Mapping mapping(8);
  Tracker tracker = must(Tracker::create({GetParam()}));
  const WatchId watch = must(tracker.watch(mapping.range()));
  mapping.fill(42);
  ASSERT_TRUE(lock_memory(mapping.pages(4, 1)));
  (void)must(tracker.collect(watch, CollectMode::take));
  ASSERT_FALSE(tracker.purge(mapping.range()));
  const Collected collected = must(tracker.collect(watch, CollectMode::take));
  EXPECT_EQ(pages_of(collected.written), all_pages(8));
  EXPECT_FALSE(collected.zeroed.any());
  // And tracking goes on.
  mapping.write(1, 5);
  EXPECT_TRUE(must(tracker.collect(watch, CollectMode::take)).written.test(1));
}

TEST_P(RealTrackerTest, collect_into_a_reserved_value_allocates_nothing) {
  Tracker tracker = must(Tracker::create({GetParam()}));
  const Mapping mapping(300);
  const WatchId watch = must(tracker.watch(mapping.range()));
  Collected value;
  tracker.reserve(watch, value);
  for (std::size_t page = 0; page < 300; page += 2) mapping.write(page, 1);
  must(tracker.purge(mapping.pages(4, 1)));
  const ByteRange whole = mapping.range();
  const std::size_t before = allocations;
  const bool peeked =
      tracker.collect_into(watch, {&whole, 1}, CollectMode::peek, value).has_value();
  const bool taken = tracker.collect_into(watch, {&whole, 1}, CollectMode::take, value).has_value();
  const std::size_t used = allocations - before;
  EXPECT_TRUE(peeked && taken);
  EXPECT_EQ(used, 0U);
  EXPECT_EQ(value.written.count(), 149U);
}

// Everything from everywhere: nothing is lost between epochs, whichever thread takes.
TEST_F(TrackerTest, marks_of_many_threads_are_each_reported_once) {
  constexpr std::size_t kThreads = 4;
  std::vector<std::thread> markers;
  for (std::size_t i = 0; i < kThreads; ++i) {
    markers.emplace_back([&, i] {
      for (std::size_t page = i; page < kPages; page += kThreads)
        tracker_.mark_dirty(pages(page, 1));
    });
  }
  Pages seen;
  std::size_t reported = 0;
  for (int round = 0; round < 50; ++round) {
    const Pages taken = pages_of(take().written);
    reported += taken.size();
    seen.insert(taken.begin(), taken.end());
  }
  for (std::thread& marker : markers) marker.join();
  const Pages rest = pages_of(take().written);
  reported += rest.size();
  seen.insert(rest.begin(), rest.end());
  EXPECT_EQ(seen.size(), kPages);
  EXPECT_EQ(reported, kPages);
}

// Random use against sets of numbers.
TEST_F(TrackerTest, epochs_equal_those_of_sets) {
  RandomSource random;
  Pages written;
  Pages pending;
  Pages purged;
  Pages always;
  const auto insert = [](Pages& set, PageRange range) {
    for (std::size_t page = range.first; page < range.end(); ++page) set.insert(page);
  };
  for (std::size_t round = 0; round < scaled(2000); ++round) {
    const std::size_t first = random.below(kPages);
    const PageRange run{first, random.between(1, std::min<std::size_t>(20, kPages - first))};
    const ByteRange bytes = run.bytes_from(range_.begin);
    switch (random.below(random.one_in(50) ? 5 : 4)) {
      case 0:
        write(first), written.insert(first);
        break;
      case 1:
        tracker_.mark_dirty(bytes), insert(pending, run);
        break;
      case 2:
        tracker_.note_purged(bytes), insert(purged, run);
        break;
      case 3: {
        const CollectMode mode = random.one_in(2) ? CollectMode::take : CollectMode::peek;
        kernel_.collect_fails = random.one_in(10);
        const Collected got = must(tracker_.collect(watch_, {&bytes, 1}, mode));
        Pages expected_written;
        Pages expected_zeroed;
        for (std::size_t page = run.first; page < run.end(); ++page) {
          if (kernel_.collect_fails || written.contains(page) || pending.contains(page) ||
              always.contains(page)) {
            expected_written.insert(page);
          } else if (purged.contains(page)) {
            expected_zeroed.insert(page);
          }
          if (mode == CollectMode::peek) continue;
          written.erase(page);
          pending.erase(page);
          purged.erase(page);
        }
        ASSERT_EQ(pages_of(got.written), expected_written);
        ASSERT_EQ(pages_of(got.zeroed), expected_zeroed);
        if (mode == CollectMode::take && random.one_in(4)) {
          tracker_.put_back(watch_, got);
          pending.insert(expected_written.begin(), expected_written.end());
          pending.insert(expected_zeroed.begin(), expected_zeroed.end());
        }
        break;
      }
      default:
        tracker_.mark_always_dirty({bytes.begin, page_size()}), always.insert(first);
    }
  }
}

}  // namespace
}  // namespace pagetide
