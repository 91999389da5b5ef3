// Engine precopy: what happens between the copies of running writers and the moment in which they
// are held. The moment is what pause() is called for, so that the tests act there.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "pagetide/snapshot/snapshotter.h"
#include "tests/support/arena_image.h"
#include "tests/support/must.h"
#include "tests/support/random_mutator.h"
#include "tests/support/random_source.h"
#include "tests/support/temporary_directory.h"

namespace pagetide {
namespace {

using namespace literals;

class PrecopyTest : public ::testing::Test {
 protected:
  // What is done when writers have run for the last time. Empty: nothing.
  std::function<void()> at_the_last_moment_;

  SnapshotterOptions options(std::size_t staging_bytes = 64_MiB) {
    SnapshotterOptions result;
    result.quiesce = Quiesce::caller(
        [this] {
          if (at_the_last_moment_) at_the_last_moment_();
        },
        [] {});
    result.staging_bytes = staging_bytes;
    return result;
  }
  std::byte* pages(std::size_t count, int fill) {
    auto* block = static_cast<std::byte*>(must(arena_.allocate(count * page_size())));
    std::memset(block, fill, count * page_size());
    return block;
  }
  // Takes a snapshot, with a check that it is the memory of its moment.
  SnapshotId take(Snapshotter& snapshotter) {
    const SnapshotId id = must(snapshotter.take());
    EXPECT_EQ(difference(image_of(arena_), must(image_of(store_, id))), "");
    return id;
  }
  bool store_holds(const std::string& secret) const {
    for (const auto& entry : std::filesystem::directory_iterator(store_.path())) {
      std::string bytes(entry.file_size(), '\0');
      std::ifstream(entry.path(), std::ios::binary)
          .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      if (bytes.find(secret) != std::string::npos) return true;
    }
    return false;
  }

  Arena arena_ = must(Arena::create({.name = "precopy", .reserve_bytes = 256_MiB}));
  TemporaryDirectory directory_;
  Store store_ = must(Store::open(directory_.file("store")));
};

TEST_F(PrecopyTest, is_what_an_arena_with_writers_gets) {
  Snapshotter snapshotter(arena_, store_, options());
  pages(1000, 1);
  take(snapshotter);
  const TakeStats stats = snapshotter.last_take();
  EXPECT_EQ(stats.engine, SnapshotEngine::precopy);
  EXPECT_GE(stats.rounds, 1U);
  EXPECT_GE(stats.copied_pages, 1000U);
  EXPECT_EQ(stats.stop_pages, 0U);
}

TEST_F(PrecopyTest, is_not_used_where_nobody_is_held) {
  Snapshotter snapshotter(arena_, store_);
  pages(100, 1);
  take(snapshotter);
  EXPECT_EQ(snapshotter.last_take().engine, SnapshotEngine::stop);
  EXPECT_EQ(snapshotter.last_take().rounds, 0U);
}

TEST_F(PrecopyTest, a_page_that_is_written_at_the_last_moment_is_copied_again) {
  std::byte* block = pages(100, 1);
  Snapshotter snapshotter(arena_, store_, options());
  at_the_last_moment_ = [&] { block[50 * page_size()] = std::byte{2}; };
  take(snapshotter);
  EXPECT_EQ(snapshotter.last_take().stop_pages, 1U);
}

TEST_F(PrecopyTest, a_page_that_is_first_written_at_the_last_moment_is_in_it) {
  std::byte* block = pages(100, 1);
  Snapshotter snapshotter(arena_, store_, options());
  take(snapshotter);
  at_the_last_moment_ = [&] { block[70 * page_size()] = std::byte{2}; };
  const SnapshotInfo info = must(store_.info(take(snapshotter)));
  EXPECT_EQ(info.changed_pages, 1U);
}

TEST_F(PrecopyTest, the_next_snapshot_has_what_was_written_after_the_last_moment) {
  std::byte* block = pages(100, 1);
  Snapshotter snapshotter(arena_, store_, options());
  at_the_last_moment_ = [&] { block[50 * page_size()] = std::byte{2}; };
  take(snapshotter);
  at_the_last_moment_ = nullptr;
  block[50 * page_size()] = std::byte{3};
  EXPECT_EQ(must(store_.info(take(snapshotter))).changed_pages, 1U);
}

TEST_F(PrecopyTest, a_page_that_was_left_unarmed_and_is_not_written_is_not_stored_again) {
  std::byte* block = pages(100, 1);
  Snapshotter snapshotter(arena_, store_, options());
  at_the_last_moment_ = [&] { block[50 * page_size()] = std::byte{2}; };
  take(snapshotter);
  at_the_last_moment_ = nullptr;
  EXPECT_EQ(must(store_.info(take(snapshotter))).changed_pages, 0U);
}

TEST_F(PrecopyTest, blocks_that_are_freed_at_the_last_moment_are_not_in_it) {
  constexpr std::size_t kBytes = 128;
  const std::string secret = "the secret of " + std::to_string(RandomSource().seed());
  std::vector<void*> blocks(1000);
  for (void*& block : blocks) {
    block = must(arena_.allocate(kBytes));
    std::memcpy(block, secret.data(), secret.size());
  }
  Snapshotter snapshotter(arena_, store_, options());
  at_the_last_moment_ = [&] {
    for (void* block : blocks) arena_.deallocate(block);
  };
  take(snapshotter);
  EXPECT_FALSE(store_holds(secret));
}

TEST_F(PrecopyTest, blocks_that_are_allocated_at_the_last_moment_are_in_it) {
  std::vector<void*> blocks(1000);
  for (void*& block : blocks) block = must(arena_.allocate(64));
  for (std::size_t i = 0; i < blocks.size(); i += 2) arena_.deallocate(blocks[i]);
  Snapshotter snapshotter(arena_, store_, options());
  at_the_last_moment_ = [&] {
    for (std::size_t i = 0; i < 500; ++i) std::memset(must(arena_.allocate(64)), 7, 64);
  };
  take(snapshotter);
}

TEST_F(PrecopyTest, a_run_that_is_given_back_at_the_last_moment_is_zero_in_it) {
  std::byte* block = pages(1000, 1);
  pages(10, 1);
  Snapshotter snapshotter(arena_, store_, options());
  at_the_last_moment_ = [&] {
    arena_.deallocate(block);
    arena_.trim();
  };
  take(snapshotter);
}

TEST_F(PrecopyTest, a_run_that_is_given_back_and_used_again_at_the_last_moment_is_in_it) {
  std::byte* block = pages(1000, 1);
  Snapshotter snapshotter(arena_, store_, options());
  at_the_last_moment_ = [&] {
    arena_.deallocate(block);
    arena_.trim();
    pages(500, 2);
  };
  take(snapshotter);
}

TEST_F(PrecopyTest, a_heap_that_grows_at_the_last_moment_is_in_it) {
  Snapshotter snapshotter(arena_, store_, options());
  pages(10, 1);
  at_the_last_moment_ = [&] { pages(2000, 2); };
  take(snapshotter);
}

TEST_F(PrecopyTest, more_pages_than_there_is_room_for_are_taken_in_the_stop) {
  pages(1000, 1);
  Snapshotter snapshotter(arena_, store_, options(100 * page_size()));
  take(snapshotter);
  EXPECT_EQ(snapshotter.last_take().engine, SnapshotEngine::stop);
  EXPECT_GE(snapshotter.last_take().stop_pages, 1000U);
}

TEST_F(PrecopyTest, room_that_runs_out_at_the_last_moment_loses_nothing) {
  std::byte* block = pages(1000, 1);
  Snapshotter snapshotter(arena_, store_, options(100 * page_size()));
  take(snapshotter);
  std::memset(block, 2, 60 * page_size());
  at_the_last_moment_ = [&] { std::memset(block + 500 * page_size(), 3, 60 * page_size()); };
  take(snapshotter);
  EXPECT_EQ(snapshotter.last_take().engine, SnapshotEngine::stop);
}

TEST_F(PrecopyTest, a_take_that_fails_to_hold_writers_loses_nothing) {
  std::byte* block = pages(100, 1);
  bool busy = true;
  SnapshotterOptions chosen;
  chosen.quiesce = Quiesce::caller(
      [&]() -> Result<void> {
        if (busy) return failure(ErrorCode::busy, "not now.");
        return {};
      },
      [] {});
  Snapshotter snapshotter(arena_, store_, chosen);
  EXPECT_FALSE(snapshotter.take());
  block[0] = std::byte{2};
  EXPECT_FALSE(snapshotter.take());
  busy = false;
  take(snapshotter);
}

TEST_F(PrecopyTest, a_take_that_fails_after_the_stop_loses_nothing) {
  std::byte* block = pages(100, 1);
  Snapshotter snapshotter(arena_, store_, options());
  const SnapshotId first = take(snapshotter);
  block[0] = std::byte{2};
  void* const freed = must(arena_.allocate(48));
  const std::string in_the_way = store_.path() + "/000000000002.segment";
  std::filesystem::create_directory(in_the_way);
  EXPECT_FALSE(snapshotter.take());
  std::filesystem::remove(in_the_way);
  arena_.deallocate(freed);
  const SnapshotId second = take(snapshotter);
  must(snapshotter.rollback(first));
  EXPECT_EQ(difference(image_of(arena_), must(image_of(store_, first))), "");
  must(snapshotter.rollback(second));
  EXPECT_EQ(block[0], std::byte{2});
  must(arena_.heap().check());
}

// Steps before, between the rounds and the stop, and rollbacks; each snapshot is compared in full.
TEST_F(PrecopyTest, every_snapshot_of_a_random_history_is_the_memory_of_its_moment) {
  RandomSource random;
  RandomMutator mutator(arena_, random.below(1'000'000));
  Snapshotter snapshotter(arena_, store_, options(random.one_in(2) ? 64_MiB : 1_MiB));
  for (int i = 0; i < 40; ++i) {
    mutator.steps(100);
    at_the_last_moment_ = [&] { mutator.steps(random.below(60)); };
    take(snapshotter);
    ASSERT_FALSE(HasFailure()) << "seed " << random.seed();
  }
}

}  // namespace
}  // namespace pagetide
