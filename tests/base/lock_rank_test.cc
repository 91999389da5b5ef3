#include "pagetide/base/lock_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <deque>
#include <thread>
#include <vector>

namespace pagetide {
namespace {

using ::testing::Eq;
using ::testing::KilledBySignal;

TEST(RankedMutexTest, lets_one_thread_in_at_a_time) {
  RankedMutex mutex(LockRank::store, "store");
  constexpr int kThreads = 4;
  constexpr int kRounds = 5000;
  int counter = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const RankedLock lock(mutex);
        ++counter;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter, kThreads * kRounds);
}

TEST(RankedMutexTest, may_be_taken_in_ascending_order_and_released_in_any) {
  RankedMutex low(LockRank::store, "store");
  RankedMutex middle(LockRank::heap_threads, "heap threads");
  RankedMutex high(LockRank::tracker, "tracker");
  for (int round = 0; round < 2; ++round) {
    low.lock();
    middle.lock();
    high.lock();
    middle.unlock();
    low.unlock();
    high.unlock();
  }
  EXPECT_EQ(middle.rank(), LockRank::heap_threads);
  EXPECT_STREQ(middle.name(), "heap threads");
}

TEST(RankedMutexTest, what_is_kept_keeps_others_out_until_it_is_unlocked) {
  RankedMutex mutex(LockRank::store, "store");
  mutex.lock();
  mutex.keep();
  std::atomic<bool> is_in = false;
  std::thread other([&] {
    const RankedLock lock(mutex);
    is_in = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(is_in);
  mutex.unlock_kept();
  other.join();
  EXPECT_TRUE(is_in);
}

TEST(RankedMutexTest, a_lower_rank_may_be_taken_while_a_higher_one_is_kept) {
  RankedMutex low(LockRank::snapshotter, "snapshotter");
  RankedMutex high(LockRank::safepoints, "safepoints");
  high.lock();
  high.keep();
  { const RankedLock lock(low); }
  high.unlock_kept();
}

// Nothing is checked in other builds, so there is nothing to test either.
#ifdef PAGETIDE_CHECK_LOCK_RANKS

TEST(RankedMutexTest, every_thread_has_an_order_of_its_own) {
  RankedMutex low(LockRank::store, "store");
  RankedMutex high(LockRank::tracker, "tracker");
  const RankedLock lock(high);
  std::thread([&] { const RankedLock other(low); }).join();
}

void take_both(RankedMutex& first, RankedMutex& second) {
  const RankedLock outer(first);
  const RankedLock inner(second);
}

TEST(RankedMutexDeathTest, a_lower_rank_after_a_higher_one_aborts_with_both_names) {
  RankedMutex low(LockRank::heap_threads, "heap threads");
  RankedMutex high(LockRank::heap_spans, "heap spans");
  EXPECT_EXIT(take_both(high, low), KilledBySignal(SIGABRT),
              Eq("pagetide: lock order: heap threads taken while holding heap spans\n"));
}

TEST(RankedMutexDeathTest, two_of_one_rank_abort) {
  RankedMutex one(LockRank::heap_threads, "class one");
  RankedMutex other(LockRank::heap_threads, "class two");
  EXPECT_EXIT(take_both(one, other), KilledBySignal(SIGABRT),
              Eq("pagetide: lock order: class two taken while holding class one\n"));
}

TEST(RankedMutexDeathTest, taking_it_twice_aborts_instead_of_hanging) {
  RankedMutex mutex(LockRank::tracker, "tracker");
  EXPECT_EXIT(take_both(mutex, mutex), KilledBySignal(SIGABRT),
              Eq("pagetide: lock order: tracker taken while holding tracker\n"));
}

TEST(RankedMutexDeathTest, an_order_that_is_wrong_only_across_a_third_lock_aborts) {
  RankedMutex low(LockRank::snapshotter, "snapshotter");
  RankedMutex middle(LockRank::store, "store");
  RankedMutex high(LockRank::tracker, "tracker");
  const auto wrong = [&] {
    middle.lock();
    high.lock();
    high.unlock();
    low.lock();
  };
  EXPECT_EXIT(wrong(), KilledBySignal(SIGABRT),
              Eq("pagetide: lock order: snapshotter taken while holding store\n"));
}

TEST(RankedMutexDeathTest, releasing_what_another_thread_holds_aborts) {
  RankedMutex mutex(LockRank::tracker, "tracker");
  const auto wrong = [&] {
    mutex.lock();
    std::thread([&] { mutex.unlock(); }).join();
  };
  EXPECT_EXIT(wrong(), KilledBySignal(SIGABRT),
              Eq("pagetide: lock order: tracker released by a thread that does not hold it\n"));
}

TEST(RankedMutexDeathTest, more_locks_than_it_can_remember_abort) {
  const auto wrong = [] {
    std::deque<RankedMutex> mutexes;
    for (int rank = 1; rank <= 17; ++rank) {
      mutexes.emplace_back(static_cast<LockRank>(rank), "one of many").lock();
    }
  };
  EXPECT_EXIT(wrong(), KilledBySignal(SIGABRT),
              Eq("pagetide: lock order: too many locks held at once\n"));
}

#endif

}  // namespace
}  // namespace pagetide
