// What arenas, stores and snapshots do when there is no memory, through the C API. This file
// replaces operator new of its program.

#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/snapshot/snapshot_c_support.h"
#include "tests/support/failing_new.h"
#include "tests/support/random_mutator.h"

namespace pagetide {
namespace {

using namespace literals;

// Every failure must be out_of_memory.
template <typename Call>
int count_failures(const Call& call) {
  return count_failed_allocations(call, [](int result) {
    if (result >= 0) return false;
    EXPECT_EQ(result, PAGETIDE_OUT_OF_MEMORY) << last_message();
    return result == PAGETIDE_OUT_OF_MEMORY;
  });
}

class OutOfMemory : public SnapshotCTest {
 protected:
  RandomMutator mutator_{cpp(arena_), 1};
};

TEST_F(OutOfMemory, opening_and_creating_can_be_repeated) {
  const std::string path = directory_.file("another store");
  pagetide_store* store = nullptr;
  EXPECT_GT(count_failures([&] { return pagetide_store_open(path.c_str(), 0, &store); }), 5);
  const StoreHandle store_owner(store, pagetide_store_close);
  const pagetide_arena_options options = small_arena();
  pagetide_arena* arena = nullptr;
  EXPECT_GT(count_failures([&] { return pagetide_arena_create(&options, &arena); }), 5);
  const ArenaHandle arena_owner(arena, pagetide_arena_destroy);
  pagetide_snapshotter* snapshotter = nullptr;
  EXPECT_GT(count_failures(
                [&] { return pagetide_snapshotter_create(arena, store, nullptr, &snapshotter); }),
            0);
  const SnapshotterHandle snapshotter_owner(snapshotter, pagetide_snapshotter_destroy);
  filled_pages(arena_owner, 4, 1);
  EXPECT_EQ(difference_to(arena_owner, store_owner, take(snapshotter_owner)), "");
}

TEST_F(OutOfMemory, an_arena_gives_memory_without_it) {
  allocations_left = 0;
  void* block = pagetide_arena_allocate(arena_.get(), 1000);
  void* larger = pagetide_arena_reallocate(arena_.get(), block, 100'000);
  void* zeroed = pagetide_arena_allocate_zeroed(arena_.get(), 100, 100);
  pagetide_arena_deallocate(arena_.get(), larger);
  // Too much even for its error to be put into words.
  void* too_large = pagetide_arena_allocate(arena_.get(), 65_MiB);
  const int error = pagetide_last_error();
  allocations_left = SIZE_MAX;
  EXPECT_NE(block, nullptr);
  EXPECT_NE(larger, nullptr);
  EXPECT_NE(zeroed, nullptr);
  EXPECT_EQ(too_large, nullptr);
  EXPECT_EQ(error, PAGETIDE_OUT_OF_MEMORY);
}

TEST_F(OutOfMemory, a_root_is_set_or_not) {
  void* block = pagetide_arena_allocate(arena_.get(), 16);
  const char* name = "a name that needs memory of its own";
  EXPECT_GT(count_failures([&] {
              const int result = pagetide_arena_set_root(arena_.get(), name, "t", block, 16);
              const WorkingNew working;
              EXPECT_EQ(cpp(arena_).roots().find(name).has_value(), result == PAGETIDE_OK);
              return result;
            }),
            0);
  EXPECT_EQ(pagetide_arena_find_root(arena_.get(), name, "t", 16), block);
}

// Each attempt may have consumed what the tracker knew.
TEST_F(OutOfMemory, a_take_that_fails_loses_nothing) {
  mutator_.steps(100);
  take(snapshotter_);
  mutator_.steps(100);
  pagetide_snapshot_id id = 0;
  EXPECT_GT(count_failures([&] { return pagetide_snapshotter_take(snapshotter_.get(), &id); }), 10);
  EXPECT_EQ(id, 2U) << "no attempt that failed has committed";
  EXPECT_EQ(difference_to(arena_, store_, id), "");
}

TEST_F(OutOfMemory, a_rollback_that_fails_changes_nothing) {
  mutator_.steps(100);
  const ArenaImage at_first = image_of(cpp(arena_));
  take(snapshotter_);
  mutator_.steps(100);
  take(snapshotter_);
  mutator_.steps(100);
  const ArenaImage before = image_of(cpp(arena_));
  EXPECT_GT(count_failures([&] {
              const int result = pagetide_snapshotter_rollback(snapshotter_.get(), 1, nullptr);
              const WorkingNew working;
              const ArenaImage& expected = result < 0 ? before : at_first;
              EXPECT_EQ(difference(expected, image_of(cpp(arena_))), "");
              return result;
            }),
            10);
}

// What a rollback that failed has consumed is in the next snapshot all the same.
TEST_F(OutOfMemory, a_rollback_that_fails_leaves_the_next_snapshot_whole) {
  mutator_.steps(100);
  take(snapshotter_);
  mutator_.steps(100);
  for (std::size_t allocations = 0;; ++allocations) {
    allocations_left = allocations;
    const int result = pagetide_snapshotter_rollback(snapshotter_.get(), 1, nullptr);
    allocations_left = SIZE_MAX;
    if (result == PAGETIDE_OK) break;
    ASSERT_EQ(result, PAGETIDE_OUT_OF_MEMORY) << last_message();
    const pagetide_snapshot_id id = take(snapshotter_);
    ASSERT_EQ(difference_to(arena_, store_, id), "") << allocations;
    mutator_.steps(10);
  }
}

TEST_F(OutOfMemory, listing_and_opening_can_be_repeated) {
  mutator_.steps(100);
  const ArenaImage then = image_of(cpp(arena_));
  const pagetide_snapshot_id id = take(snapshotter_);
  snapshotter_.reset();
  arena_.reset();
  int visited = 0;
  const auto count = [](const pagetide_snapshot_info*, void* context) {
    ++*static_cast<int*>(context);
  };
  EXPECT_GT(count_failures([&] { return pagetide_store_snapshots(store_.get(), count, &visited); }),
            0);
  EXPECT_EQ(visited, 1) << "an attempt that fails visits none";
  pagetide_arena* arena = nullptr;
  EXPECT_GT(
      count_failures([&] { return pagetide_store_open_arena(store_.get(), id, nullptr, &arena); }),
      10);
  arena_.reset(arena);
  EXPECT_EQ(difference(then, image_of(cpp(arena_))), "");
}

}  // namespace
}  // namespace pagetide
