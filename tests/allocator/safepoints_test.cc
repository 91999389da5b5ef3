#include "pagetide/allocator/safepoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_scale.h"
#include "tests/tracker/allocation_guard.h"

namespace pagetide {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kLong = 60s;

// Two words that are equal whenever their thread is at a safepoint. Plain: a stop makes it right to
// read them, which ThreadSanitizer sees.
struct alignas(64) Pair {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

// A thread that does something until the test is over.
class Running {
 public:
  template <typename Work>
  explicit Running(Work work) : thread_([this, work] { work(*this); }) {}
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() { end(); }

  bool goes_on() const { return !over_; }
  void reach(int step) { step_ = step; }
  void await(int step) const {
    while (step_ < step) std::this_thread::yield();
  }
  int step() const { return step_; }
  void end() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> over_ = false;
  std::atomic<int> step_ = 0;
  std::thread thread_;  // last: it uses the others
};

// Threads that write to pairs of their own, poll at random, are away at random, and end at random,
// to be followed by others.
TEST(SafepointsTest, a_stop_never_sees_what_is_half_done) {
  constexpr std::size_t kThreads = 4;
  const std::uint64_t seed = test_seed();
  Safepoints points;
  std::vector<Pair> pairs(kThreads);
  std::vector<std::unique_ptr<Running>> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.push_back(std::make_unique<Running>([&, t](Running& self) {
      RandomSource random(seed + t);
      Pair& mine = pairs[t];
      while (self.goes_on()) {
        Mutator mutator(points);
        for (std::size_t step = random.below(2000); step > 0 && self.goes_on(); --step) {
          ++mine.first;
          if (random.one_in(50)) std::this_thread::yield();
          ++mine.second;
          if (!random.one_in(8)) mutator.poll();
          if (random.one_in(100)) {
            const Mutator::Away away(mutator);
            std::this_thread::yield();
          }
        }
        mutator.poll();
      }
    }));
  }
  std::vector<Pair> before(kThreads);
  std::uint64_t progress = 0;
  for (std::size_t round = 0; round < scaled(3000); ++round) {
    must(points.stop(kLong));
    for (std::size_t t = 0; t < kThreads; ++t) {
      ASSERT_EQ(pairs[t].first, pairs[t].second) << "thread " << t;
      progress += pairs[t].first - before[t].first;
    }
    before = pairs;
    // They see what was written in the stop, as in a rollback.
    if (round % 7 == 0) {
      for (Pair& pair : pairs) pair = {};
      before = pairs;
    }
    std::this_thread::yield();
    for (std::size_t t = 0; t < kThreads; ++t) {
      ASSERT_EQ(pairs[t].first, before[t].first) << "thread " << t << " wrote during the stop";
    }
    points.resume();
    if (round % 4 == 0) std::this_thread::sleep_for(50us);
  }
  EXPECT_GT(progress, scaled(3000));
}

TEST(SafepointsTest, who_is_late_is_named_and_all_go_on) {
  Safepoints points;
  std::atomic<pid_t> late_id = 0;
  Running polite([&](Running& self) {
    Mutator mutator(points, "polite");
    while (self.goes_on()) {
      mutator.poll();
      self.reach(self.step() + 1);
    }
  });
  std::optional<Running> late;
  late.emplace([&](Running& self) {
    const Mutator mutator(points, "busy bee");
    late_id = ::gettid();
    self.reach(1);
    while (self.goes_on()) std::this_thread::yield();
  });
  late->await(1);
  polite.await(1);
  const auto stopped = points.stop(50ms);
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code(), ErrorCode::timed_out);
  EXPECT_EQ(stopped.error().message(),
            "1 of 2 threads did not come to a safepoint within 50 ms: 'busy bee' (tid " +
                std::to_string(late_id) +
                "). Let them poll more often, or be away while they block; all threads go on.");
  // The one that came goes on.
  polite.await(polite.step() + 1000);
  late.reset();
  EXPECT_TRUE(points.stop(kLong));
  points.resume();
}

TEST(SafepointsTest, a_thread_without_a_given_name_is_named_as_the_system_knows_it) {
  Safepoints points;
  Running late([&](Running& self) {
    const Mutator mutator(points);
    ::pthread_setname_np(::pthread_self(), "loader");
    self.reach(1);
    while (self.goes_on()) std::this_thread::yield();
  });
  late.await(1);
  const auto stopped = points.stop(1ms);
  ASSERT_FALSE(stopped);
  EXPECT_THAT(stopped.error().message(), ContainsRegex("'loader' \\(tid [0-9]+\\)\\. "));
}

TEST(SafepointsTest, of_many_late_threads_some_are_named) {
  Safepoints points;
  std::vector<std::unique_ptr<Running>> late;
  for (int i = 0; i < 6; ++i) {
    late.push_back(std::make_unique<Running>([&](Running& self) {
      const Mutator mutator(points, std::string(40, 'x'));
      self.reach(1);
      while (self.goes_on()) std::this_thread::yield();
    }));
    late.back()->await(1);
  }
  const auto stopped = points.stop(0ms);
  ASSERT_FALSE(stopped);
  EXPECT_THAT(
      stopped.error().message(),
      AllOf(HasSubstr("6 of 6 threads"), HasSubstr(" and 2 more. "),
            HasSubstr("'" + std::string(31, 'x') + "'"), Not(HasSubstr(std::string(32, 'x')))));
}

TEST(SafepointsTest, who_is_away_is_not_waited_for_and_waits_on_return) {
  Safepoints points;
  std::atomic<bool> return_now = false;
  Running thread([&](Running& self) {
    Mutator mutator(points);
    {
      const Mutator::Away away(mutator);
      self.reach(1);
      while (!return_now) std::this_thread::yield();
    }
    self.reach(2);
  });
  thread.await(1);
  must(points.stop(0ms));
  return_now = true;
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(thread.step(), 1);
  points.resume();
  thread.await(2);
}

TEST(SafepointsTest, being_away_nests) {
  Safepoints points;
  Running thread([&](Running& self) {
    Mutator mutator(points);
    {
      const Mutator::Away away(mutator);
      { const Mutator::Away again(mutator); }
      mutator.poll();  // away as before
      self.reach(1);
      while (self.step() < 2) std::this_thread::yield();
    }
    self.reach(3);
    while (self.goes_on()) std::this_thread::yield();
  });
  thread.await(1);
  must(points.stop(0ms));
  points.resume();
  thread.reach(2);
  thread.await(3);
  EXPECT_FALSE(points.stop(0ms));
}

TEST(SafepointsTest, a_second_mutator_of_a_thread_is_the_same_one) {
  Safepoints points;
  Mutator outer(points);
  Mutator inner(points);
  EXPECT_EQ(points.mutators(), 1U);
  Safepoints others;
  const Mutator other(others);
  EXPECT_EQ(points.mutators(), 1U);
  EXPECT_EQ(others.mutators(), 1U);
}

TEST(SafepointsTest, a_mutator_made_while_its_thread_is_away_is_at_work) {
  Safepoints points;
  Running thread([&](Running& self) {
    Mutator mutator(points);
    const Mutator::Away away(mutator);
    {
      const Mutator inner(points);
      self.reach(1);
      while (self.step() < 2) std::this_thread::yield();
    }
    self.reach(3);
    while (self.goes_on()) std::this_thread::yield();
  });
  thread.await(1);
  EXPECT_FALSE(points.stop(0ms));
  thread.reach(2);
  thread.await(3);
  EXPECT_TRUE(points.stop(0ms));
  points.resume();
}

TEST(SafepointsTest, who_stops_the_others_need_not_come_itself) {
  Safepoints points;
  Mutator mutator(points);
  must(points.stop(0ms));
  points.resume();
  // And is at work again, for others to wait for.
  std::thread([&] { EXPECT_FALSE(points.stop(0ms)); }).join();
}

TEST(SafepointsTest, stopping_twice_is_refused_and_changes_nothing) {
  Safepoints points;
  Mutator mutator(points);
  must(points.stop(0ms));
  const auto again = points.stop(kLong);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::busy);
  // Still stopped: who comes has to wait.
  Running thread([&](Running& self) {
    self.reach(1);
    const Mutator other(points);
    self.reach(2);
  });
  thread.await(1);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(thread.step(), 1);
  points.resume();
  thread.await(2);
  EXPECT_TRUE(points.stop(kLong));
  points.resume();
}

#if PAGETIDE_COUNTS_ALLOCATIONS
TEST(SafepointsTest, a_stop_allocates_nothing) {
  Safepoints points;
  Running thread([&](Running& self) {
    Mutator mutator(points);
    self.reach(1);
    while (self.goes_on()) mutator.poll();
  });
  thread.await(1);
  AllocationGuard::violations = 0;
  AllocationGuard::forbidden = true;
  const bool stopped = points.stop(kLong).has_value();
  points.resume();
  AllocationGuard::forbidden = false;
  EXPECT_TRUE(stopped);
  EXPECT_EQ(AllocationGuard::violations, 0);
}
#endif

TEST(SafepointsTest, two_who_stop_exclude_each_other) {
  constexpr int kThreads = 3;
  Safepoints points;
  int inside = 0;  // plain: ThreadSanitizer sees who is not alone
  std::atomic<int> started = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      Mutator mutator(points);
      ++started;
      while (started < kThreads) std::this_thread::yield();
      for (std::size_t round = 0; round < scaled(1000); ++round) {
        // Also while another one is waiting for this one.
        must(points.stop(kLong));
        EXPECT_EQ(++inside, 1);
        std::this_thread::yield();
        EXPECT_EQ(--inside, 0);
        points.resume();
        mutator.poll();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SafepointsTest, a_thread_that_comes_during_a_stop_waits_for_its_end) {
  Safepoints points;
  must(points.stop(0ms));
  Running thread([&](Running& self) {
    self.reach(1);
    const Mutator mutator(points);
    self.reach(2);
  });
  thread.await(1);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(thread.step(), 1);
  points.resume();
  thread.await(2);
}

TEST(SafepointsTest, a_thread_that_ends_during_a_stop_does_not_hold_it_up) {
  Safepoints points;
  Running thread([&](Running& self) {
    const Mutator mutator(points);
    self.reach(1);
    while (self.step() < 2) std::this_thread::yield();
  });
  thread.await(1);
  std::thread stopper([&] {
    must(points.stop(kLong));
    points.resume();
  });
  std::this_thread::sleep_for(10ms);  // it waits by now, most likely
  thread.reach(2);
  stopper.join();
  thread.end();
  EXPECT_EQ(points.mutators(), 0U);
}

TEST(SafepointsTest, a_thread_that_ends_without_taking_leave_is_not_waited_for) {
  Safepoints points;
  std::unique_ptr<Mutator> left;
  std::thread([&] { left = std::make_unique<Mutator>(points); }).join();
  EXPECT_TRUE(points.stop(0ms));
  points.resume();
  EXPECT_EQ(points.mutators(), 1U);
  left.reset();
  EXPECT_EQ(points.mutators(), 0U);
}

}  // namespace
}  // namespace pagetide
