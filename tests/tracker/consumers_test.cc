#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "pagetide/tracker/any_backend.h"
#include "pagetide/tracker/tracker.h"
#include "tests/support/fake_backend.h"
#include "tests/support/must.h"
#include "tests/support/page_sets.h"
#include "tests/support/random_source.h"

namespace pagetide {
namespace {

// A watched range that need not be mapped, over a back end that reports exactly what was written.
class ConsumersTest : public testing::Test {
 protected:
  static constexpr std::size_t kPages = 200;

  ConsumersTest()
      : range_{std::uintptr_t{1} << 40, kPages * page_size()},
        tracker_(Tracker::over(AnyBackend(FakeBackend(kernel_)))),
        watch_(must(tracker_.watch(range_))) {}

  ByteRange pages(std::size_t first, std::size_t count) const {
    return PageRange{first, count}.bytes_from(range_.begin);
  }
  void write(std::size_t page) { kernel_.written.insert(pages(page, 1).begin); }
  Collected collect(CollectMode mode, ConsumerId consumer) {
    return must(tracker_.collect(watch_, mode, consumer));
  }
  Pages take(ConsumerId consumer = {}) {
    return pages_of(collect(CollectMode::take, consumer).written);
  }
  Pages peek(ConsumerId consumer = {}) {
    return pages_of(collect(CollectMode::peek, consumer).written);
  }

  FakeKernel kernel_;
  ByteRange range_;
  Tracker tracker_;
  WatchId watch_;
};

TEST_F(ConsumersTest, each_sees_every_write_since_its_own_last_take) {
  const ConsumerId second = must(tracker_.add_consumer());
  write(3);
  EXPECT_EQ(take(), (Pages{3}));
  write(5);
  EXPECT_EQ(take(), (Pages{5}));
  EXPECT_EQ(take(second), (Pages{3, 5}));
  EXPECT_EQ(take(second), Pages());
  EXPECT_EQ(take(), Pages());
}

TEST_F(ConsumersTest, a_peek_takes_nothing_from_anybody) {
  const ConsumerId second = must(tracker_.add_consumer());
  write(3);
  EXPECT_EQ(take(), (Pages{3}));
  write(4);
  EXPECT_EQ(peek(second), (Pages{3, 4}));
  EXPECT_EQ(peek(), (Pages{4}));
  EXPECT_EQ(take(second), (Pages{3, 4}));
  EXPECT_EQ(take(), (Pages{4}));
}

TEST_F(ConsumersTest, a_new_one_begins_with_what_is_written_from_then_on) {
  write(3);
  EXPECT_EQ(take(), (Pages{3}));
  const ConsumerId second = must(tracker_.add_consumer());
  write(4);
  EXPECT_EQ(take(second), (Pages{4}));
}

TEST_F(ConsumersTest, a_range_that_is_watched_later_is_every_consumers) {
  const ConsumerId second = must(tracker_.add_consumer());
  const ByteRange other{range_.end() + page_size(), 10 * page_size()};
  const WatchId watch = must(tracker_.watch(other));
  kernel_.written.insert(other.begin + 2 * page_size());
  EXPECT_EQ(pages_of(must(tracker_.collect(watch, CollectMode::take)).written), (Pages{2}));
  EXPECT_EQ(pages_of(must(tracker_.collect(watch, CollectMode::take, second)).written), (Pages{2}));
}

TEST_F(ConsumersTest, each_learns_of_a_purge_once) {
  const ConsumerId second = must(tracker_.add_consumer());
  write(7);
  EXPECT_EQ(take(), (Pages{7}));
  tracker_.note_purged(pages(7, 1));
  tracker_.note_purged(pages(9, 1));
  Collected first = collect(CollectMode::take, {});
  EXPECT_EQ(pages_of(first.zeroed), (Pages{7, 9}));
  EXPECT_EQ(pages_of(first.written), Pages());
  // The second has not copied page 7 since it was written: it is to be read, and is zero.
  const Collected theirs = collect(CollectMode::take, second);
  EXPECT_EQ(pages_of(theirs.written), (Pages{7}));
  EXPECT_EQ(pages_of(theirs.zeroed), (Pages{9}));
  EXPECT_FALSE(collect(CollectMode::take, second).zeroed.any());
}

TEST_F(ConsumersTest, what_one_puts_back_is_its_own) {
  const ConsumerId second = must(tracker_.add_consumer());
  write(3);
  const Collected taken = collect(CollectMode::take, second);
  tracker_.put_back(watch_, taken, second);
  EXPECT_EQ(take(), (Pages{3}));
  EXPECT_EQ(take(), Pages());
  EXPECT_EQ(take(second), (Pages{3}));
}

TEST_F(ConsumersTest, marked_pages_are_every_consumers) {
  const ConsumerId second = must(tracker_.add_consumer());
  tracker_.mark_dirty(pages(11, 1));
  EXPECT_EQ(take(), (Pages{11}));
  EXPECT_EQ(take(second), (Pages{11}));
}

TEST_F(ConsumersTest, a_failing_scan_of_one_is_all_written_for_every_other) {
  const ConsumerId second = must(tracker_.add_consumer());
  kernel_.collect_fails = true;
  EXPECT_TRUE(collect(CollectMode::take, {}).poisoned);
  kernel_.collect_fails = false;
  const Collected theirs = collect(CollectMode::take, second);
  EXPECT_EQ(pages_of(theirs.written), all_pages(kPages));
}

TEST_F(ConsumersTest, a_removed_one_is_refused_and_its_place_begins_afresh) {
  const ConsumerId second = must(tracker_.add_consumer());
  write(3);
  EXPECT_EQ(take(), (Pages{3}));
  tracker_.remove_consumer(second);
  const auto refused = tracker_.collect(watch_, CollectMode::take, second);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(refused.error().message(), "cannot collect: no such consumer; it was removed.");
  const ConsumerId third = must(tracker_.add_consumer());
  EXPECT_NE(third, second);
  EXPECT_FALSE(tracker_.collect(watch_, CollectMode::take, second));
  EXPECT_EQ(take(third), Pages());
}

TEST_F(ConsumersTest, the_first_one_stays) {
  tracker_.remove_consumer({});
  write(3);
  EXPECT_EQ(take(), (Pages{3}));
}

TEST_F(ConsumersTest, there_are_at_most_eight) {
  for (int i = 1; i < 8; ++i) must(tracker_.add_consumer());
  const auto more = tracker_.add_consumer();
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().message(), "a tracker has at most 8 consumers; remove one.");
}

TEST_F(ConsumersTest, one_that_was_never_given_out_is_refused) {
  for (const std::uint32_t value : {1U, 7U, 8U, 4'000'000'000U}) {
    EXPECT_FALSE(tracker_.collect(watch_, CollectMode::take, ConsumerId{value})) << value;
    tracker_.remove_consumer(ConsumerId{value});
    tracker_.put_back(watch_, {}, ConsumerId{value});
  }
}

TEST_F(ConsumersTest, the_surplus_that_consumers_report_is_counted) {
  write(3);
  write(4);
  (void)take();
  DirtyBitmap unchanged(kPages);
  unchanged.set(4);
  tracker_.report_unchanged(watch_, unchanged);
  EXPECT_EQ(tracker_.stats().pages_unchanged, 1U);
}

// Random writes, purges, marks and takes of parts by several, against a set of pages for each.
TEST_F(ConsumersTest, equal_sets_of_their_own_in_random_use) {
  RandomSource random;
  std::map<std::uint32_t, Pages> models{{0, {}}};
  const auto add_to_all = [&](std::size_t page) {
    for (auto& [id, model] : models) model.insert(page);
  };
  for (std::size_t step = 0; step < scaled(5000); ++step) {
    const std::size_t page = random.below(kPages);
    auto chosen = models.begin();
    std::advance(chosen, static_cast<std::ptrdiff_t>(random.below(models.size())));
    switch (random.below(12)) {
      case 0: {
        if (models.size() == 5) break;
        Pages& model = models[must(tracker_.add_consumer()).value];
        // What is written and not taken yet is the newcomer's too: at least what it should see.
        for (const std::uintptr_t address : kernel_.written) {
          model.insert((address - range_.begin) / page_size());
        }
        break;
      }
      case 1:
        if (chosen->first != 0) {
          tracker_.remove_consumer({chosen->first});
          models.erase(chosen);
        }
        break;
      case 2:
        tracker_.mark_dirty(pages(page, 1));
        add_to_all(page);
        break;
      case 3:
      case 4: {
        const PageRange part{page, random.between(1, kPages - page)};
        const ByteRange bytes = part.bytes_from(range_.begin);
        const Collected taken =
            must(tracker_.collect(watch_, {&bytes, 1}, CollectMode::take, {chosen->first}));
        Pages expected;
        for (const std::size_t one : chosen->second) {
          if (part.contains(one)) expected.insert(one);
        }
        ASSERT_EQ(pages_of(taken.written), expected) << "consumer " << chosen->first;
        for (const std::size_t one : expected) chosen->second.erase(one);
        break;
      }
      default:
        write(page);
        add_to_all(page);
    }
  }
}

// --- takes of a consumer that reads several as one --------------------------------------------

TEST_F(ConsumersTest, what_take_again_reports_is_not_reported_once_more) {
  write(3);
  EXPECT_EQ(take(), (Pages{3}));
  write(5);
  EXPECT_EQ(pages_of(collect(CollectMode::take_again, {}).written), (Pages{5}));
  EXPECT_EQ(take(), Pages());
}

TEST_F(ConsumersTest, what_take_unarmed_reports_is_reported_once_more) {
  write(3);
  EXPECT_EQ(pages_of(collect(CollectMode::take_unarmed, {}).written), (Pages{3}));
  write(5);
  EXPECT_EQ(take(), (Pages{3, 5}));
  EXPECT_EQ(take(), Pages());
}

TEST_F(ConsumersTest, the_others_see_what_take_unarmed_found) {
  const ConsumerId second = must(tracker_.add_consumer());
  write(3);
  EXPECT_EQ(pages_of(collect(CollectMode::take_unarmed, {}).written), (Pages{3}));
  EXPECT_EQ(take(second), (Pages{3}));
}

TEST_F(ConsumersTest, take_unarmed_takes_what_was_marked) {
  tracker_.mark_dirty(pages(7, 1));
  EXPECT_EQ(pages_of(collect(CollectMode::take_unarmed, {}).written), (Pages{7}));
  EXPECT_EQ(take(), Pages());
}

TEST_F(ConsumersTest, every_take_begins_an_epoch) {
  const std::uint32_t before = tracker_.take_count();
  collect(CollectMode::take_again, {});
  collect(CollectMode::take_unarmed, {});
  collect(CollectMode::peek, {});
  EXPECT_EQ(tracker_.take_count(), before + 2);
}

}  // namespace
}  // namespace pagetide
