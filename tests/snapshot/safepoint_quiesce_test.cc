// Snapshots and rollbacks of an arena whose threads come to safepoints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/snapshot/snapshotter.h"
#include "tests/snapshot/arena_mutators.h"
#include "tests/support/child_process.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr auto kLong = 60s;
constexpr std::size_t kThreads = 4;

// Five seconds; a minute under ./dev soak.
std::chrono::milliseconds soak_time() {
  if (std::getenv("PAGETIDE_SOAK") != nullptr) return 60s;
  return std::chrono::milliseconds(scaled(5000));
}

class SafepointQuiesceTest : public ::testing::Test {
 protected:
  Arena make_arena() {
    return must(Arena::create({.name = "safepoints", .reserve_bytes = 256_MiB}));
  }
  Safepoints points_;
  TemporaryDirectory directory_;
  Store store_ = must(Store::open(directory_.file("store")));
};

TEST_F(SafepointQuiesceTest, a_snapshot_at_any_moment_holds_exactly_the_live_blocks) {
  RandomSource random;
  std::vector<SnapshotId> ids;
  {
    Arena arena = make_arena();
    ArenaMutators mutators(arena, points_, kThreads, random.seed());
    Snapshotter snapshotter(arena, store_, {.quiesce = Quiesce::safepoint(points_, kLong)});
    for (std::size_t i = 0; i < scaled(20); ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(20'000)));
      ids.push_back(must(snapshotter.take()));
    }
    const std::uint64_t before = mutators.steps();
    while (mutators.steps() < before + 1000) std::this_thread::yield();
  }
  for (const SnapshotId id : ids) {
    EXPECT_EQ(run_in_child([&]() -> std::string {
                Store store =
                    must(Store::open(directory_.file("store"), {.mode = StoreMode::read}));
                Arena arena = must(store.open_arena(id));
                return wrong_with_blocks(arena);
              }),
              "")
        << "snapshot " << id.value;
  }
}

TEST_F(SafepointQuiesceTest, threads_go_on_from_what_a_rollback_put_back) {
  RandomSource random;
  Arena arena = make_arena();
  std::vector<SnapshotId> ids;
  {
    ArenaMutators mutators(arena, points_, kThreads, random.seed());
    Snapshotter snapshotter(arena, store_, {.quiesce = Quiesce::safepoint(points_, kLong)});
    ids.push_back(must(snapshotter.take()));
    for (std::size_t i = 0; i < scaled(30); ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(10'000)));
      if (random.one_in(2)) {
        must(snapshotter.rollback(ids[random.below(ids.size())]));
      } else {
        ids.push_back(must(snapshotter.take()));
      }
      must(points_.stop(kLong));
      const std::string wrong = wrong_with_blocks(arena);
      points_.resume();
      ASSERT_EQ(wrong, "");
    }
  }
  EXPECT_EQ(wrong_with_blocks(arena), "");
}

// All of it for a while: eight threads, epochs that advance under them, snapshots, rollbacks.
TEST_F(SafepointQuiesceTest, eight_threads_snapshots_and_rollbacks_go_together) {
  RandomSource random;
  Arena arena = make_arena();
  std::vector<SnapshotId> ids;
  Tracker& tracker = arena.tracker();
  const ConsumerId epochs = must(tracker.add_consumer());
  const auto end = std::chrono::steady_clock::now() + soak_time();
  {
    ArenaMutators mutators(arena, points_, ArenaBlocks::kThreads, random.seed());
    Snapshotter snapshotter(arena, store_, {.quiesce = Quiesce::safepoint(points_, kLong)});
    ids.push_back(must(snapshotter.take()));
    while (std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::microseconds(random.below(10'000)));
      switch (random.below(8)) {
        case 0:
          // Not too many: a store only grows.
          if (ids.size() < 200) ids.push_back(must(snapshotter.take()));
          break;
        case 1:
          must(snapshotter.rollback(ids[random.below(ids.size())]));
          break;
        case 2: {
          must(points_.stop(kLong));
          const std::string wrong = wrong_with_blocks(arena);
          points_.resume();
          ASSERT_EQ(wrong, "");
          break;
        }
        default:
          must(tracker.collect(arena.region().watch(), CollectMode::take, epochs));
      }
    }
    EXPECT_EQ(mutators.broken(), 0);
    EXPECT_GT(mutators.steps(), 10'000U);
  }
  EXPECT_EQ(wrong_with_blocks(arena), "");
}

TEST_F(SafepointQuiesceTest, a_mutator_may_take_snapshots_itself) {
  Arena arena = make_arena();
  ArenaMutators mutators(arena, points_, kThreads, test_seed());
  Mutator self(points_);
  Snapshotter snapshotter(arena, store_, {.quiesce = Quiesce::safepoint(points_, kLong)});
  const SnapshotId id = must(snapshotter.take());
  EXPECT_TRUE(snapshotter.rollback(id));
}

// For a program that has more to do while it holds them.
TEST_F(SafepointQuiesceTest, who_has_stopped_the_others_may_take_snapshots_and_roll_back) {
  Arena arena = make_arena();
  ArenaMutators mutators(arena, points_, kThreads, test_seed());
  Snapshotter snapshotter(arena, store_, {.quiesce = Quiesce::none()});
  must(points_.stop(kLong));
  const auto id = snapshotter.take();
  ASSERT_TRUE(id);
  const auto back = snapshotter.rollback(*id);
  const std::string wrong = wrong_with_blocks(arena);
  points_.resume();
  EXPECT_TRUE(back);
  EXPECT_EQ(wrong, "");
}

TEST_F(SafepointQuiesceTest, who_has_stopped_the_others_is_told_that_it_stops_them_again) {
  Arena arena = make_arena();
  Snapshotter snapshotter(arena, store_, {.quiesce = Quiesce::safepoint(points_, kLong)});
  must(points_.stop(kLong));
  const auto taken = snapshotter.take();
  points_.resume();
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), ErrorCode::busy);
  EXPECT_THAT(taken.error().message(), HasSubstr("has stopped the others already"));
}

class LateThreadTest : public SafepointQuiesceTest {
 protected:
  LateThreadTest() {
    *number_ = 1;
    id_ = must(snapshotter_.take());
    *number_ = 2;
    late_ = std::thread([this] {
      const Mutator mutator(points_, "sleeper");
      started_ = true;
      while (!over_) std::this_thread::yield();
    });
    while (!started_) std::this_thread::yield();
  }
  ~LateThreadTest() override { end_late(); }
  void end_late() {
    over_ = true;
    if (late_.joinable()) late_.join();
  }

  Arena arena_ = make_arena();
  int* number_ = must(arena_.find_or_construct<int>("number"));
  Snapshotter snapshotter_{arena_, store_, {.quiesce = Quiesce::safepoint(points_, 20ms)}};
  SnapshotId id_;
  std::atomic<bool> started_ = false;
  std::atomic<bool> over_ = false;
  std::thread late_;
};

TEST_F(LateThreadTest, a_snapshot_that_cannot_stop_a_thread_fails_and_loses_nothing) {
  const auto taken = snapshotter_.take();
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code(), ErrorCode::timed_out);
  EXPECT_THAT(taken.error().message(), HasSubstr("'sleeper'"));
  EXPECT_EQ(must(store_.latest()), id_);
  end_late();
  const SnapshotId next = must(snapshotter_.take());
  *number_ = 3;
  must(snapshotter_.rollback(next));
  EXPECT_EQ(*number_, 2);
}

TEST_F(LateThreadTest, a_rollback_that_cannot_stop_a_thread_fails_and_changes_nothing) {
  const auto rolled_back = snapshotter_.rollback(id_);
  ASSERT_FALSE(rolled_back);
  EXPECT_EQ(rolled_back.error().code(), ErrorCode::timed_out);
  EXPECT_EQ(*number_, 2);
  end_late();
  must(snapshotter_.rollback(id_));
  EXPECT_EQ(*number_, 1);
}

TEST_F(LateThreadTest, nobody_is_let_go_who_was_not_held) {
  int resumed = 0;
  const SnapshotterOptions options{
      .quiesce =
          Quiesce::caller([]() -> Result<void> { return failure(ErrorCode::busy, "not now."); },
                          [&] { ++resumed; })};
  Arena arena = make_arena();
  TemporaryDirectory directory;
  Store store = must(Store::open(directory.file("store")));
  Snapshotter snapshotter(arena, store, options);
  EXPECT_EQ(snapshotter.take().error().message(), "not now.");
  EXPECT_EQ(resumed, 0);
}

}  // namespace
}  // namespace pagetide
