// Snapshots and rollbacks of an arena whose threads come to safepoints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "pagetide/snapshot/snapshotter.h"
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
constexpr std::size_t kPlaces = 400;

// What lives in the arena: every live block but this one is in one of the places.
struct Blocks {
  struct Place {
    void* block;
    std::size_t bytes;
  };
  std::array<std::array<Place, kPlaces>, kThreads> of_thread;
};

unsigned char content_of(const void* block, std::size_t bytes) {
  return static_cast<unsigned char>((reinterpret_cast<std::uintptr_t>(block) >> 4U) + bytes) | 1U;
}

std::size_t random_size(RandomSource& random) {
  return random.one_in(200)  ? random.between(32'000, 200'000)
         : random.one_in(10) ? random.between(300, 20'000)
                             : random.between(1, 300);
}

// Whether exactly the blocks that are in places are allocated, and hold what they ought to; else
// what is wrong.
std::string wrong_with(Arena& arena) {
  const auto stats = arena.heap().check();
  if (!stats) return stats.error().message();
  Blocks* blocks = must(arena.find<Blocks>("blocks"));
  std::set<void*> expected = {blocks};
  for (const auto& places : blocks->of_thread) {
    for (const Blocks::Place& place : places) {
      if (place.block == nullptr) continue;
      if (!expected.insert(place.block).second) return "a block is in two places";
      const auto* bytes = static_cast<const unsigned char*>(place.block);
      for (std::size_t i : {std::size_t{0}, place.bytes / 2, place.bytes - 1}) {
        if (bytes[i] != content_of(place.block, place.bytes)) return "a block lost its content";
      }
    }
  }
  std::set<void*> found;
  arena.heap().for_each_allocation([&](void* block, std::size_t) { found.insert(block); });
  if (found != expected) {
    return "live are " + std::to_string(found.size()) + " blocks, not " +
           std::to_string(expected.size());
  }
  return {};
}

// Threads that allocate and free, also what others allocated, and come and go.
class Mutators {
 public:
  Mutators(Arena& arena, Safepoints& points, std::uint64_t seed)
      : arena_(arena), points_(points), blocks_(*must(arena.find_or_construct<Blocks>("blocks"))) {
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads_.emplace_back([this, t, seed] {
        for (std::uint64_t life = 0; !over_; ++life) {
          std::thread([&] { live(t, seed + life * kThreads + t); }).join();
        }
      });
    }
  }
  Mutators(const Mutators&) = delete;
  Mutators& operator=(const Mutators&) = delete;
  ~Mutators() { end(); }
  void end() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  std::uint64_t steps() const { return steps_; }

 private:
  void live(std::size_t t, std::uint64_t seed) {
    RandomSource random(seed);
    Mutator mutator(points_);
    for (std::size_t step = random.between(100, 5000); step > 0 && !over_; --step) {
      // The lock is for the places of others, and is never held at a safepoint.
      const std::size_t whose = random.one_in(3) ? random.below(kThreads) : t;
      {
        const std::lock_guard lock(mutexes_[whose]);
        change(blocks_.of_thread[whose][random.below(kPlaces)], random);
      }
      ++steps_;
      if (random.one_in(500)) {
        const Mutator::Away away(mutator);
        std::this_thread::yield();
      }
      mutator.poll();
    }
  }
  void change(Blocks::Place& place, RandomSource& random) {
    if (place.block != nullptr) {
      arena_.deallocate(place.block);
      place = {};
      return;
    }
    const std::size_t bytes = random_size(random);
    void* block = must(arena_.allocate(bytes));
    std::memset(block, content_of(block, bytes), bytes);
    place = {block, bytes};
  }

  Arena& arena_;
  Safepoints& points_;
  Blocks& blocks_;
  std::array<std::mutex, kThreads> mutexes_;
  std::atomic<bool> over_ = false;
  std::atomic<std::uint64_t> steps_ = 0;
  std::vector<std::thread> threads_;
};

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
    Mutators mutators(arena, points_, random.seed());
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
                return wrong_with(arena);
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
    Mutators mutators(arena, points_, random.seed());
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
      const std::string wrong = wrong_with(arena);
      points_.resume();
      ASSERT_EQ(wrong, "");
    }
  }
  EXPECT_EQ(wrong_with(arena), "");
}

TEST_F(SafepointQuiesceTest, a_mutator_may_take_snapshots_itself) {
  Arena arena = make_arena();
  Mutators mutators(arena, points_, test_seed());
  Mutator self(points_);
  Snapshotter snapshotter(arena, store_, {.quiesce = Quiesce::safepoint(points_, kLong)});
  const SnapshotId id = must(snapshotter.take());
  EXPECT_TRUE(snapshotter.rollback(id));
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
