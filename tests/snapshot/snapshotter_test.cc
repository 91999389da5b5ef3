#include "pagetide/snapshot/snapshotter.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <optional>

#include "pagetide/snapshot/verify.h"
#include "tests/support/arena_image.h"
#include "tests/support/must.h"
#include "tests/support/random_mutator.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;

class SnapshotterTest : public ::testing::Test {
 protected:
  static Arena clearing_arena() {
    return must(
        Arena::create({.name = "test", .reserve_bytes = 32_MiB, .clear = ClearPolicy::on_free}));
  }
  Arena new_arena(BackendKind backend = BackendKind::automatic) {
    return must(Arena::create({.name = "test", .reserve_bytes = 256_MiB, .backend = backend}));
  }
  // A block of whole pages of its own, filled with a byte.
  std::byte* pages(Arena& arena, std::size_t count, int fill) {
    auto* block = static_cast<std::byte*>(must(arena.allocate(count * page_size())));
    std::memset(block, fill, count * page_size());
    return block;
  }

  TemporaryDirectory directory_;
  Store store_ = must(Store::open(directory_.file("store")));
};

TEST_F(SnapshotterTest, a_snapshot_holds_the_memory_of_its_instant) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  RandomMutator(arena, 1).steps(500);
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(difference(image_of(arena), must(image_of(store_, id))), "");
}

TEST_F(SnapshotterTest, an_unchanged_arena_makes_an_empty_snapshot) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  RandomMutator(arena, 1).steps(500);
  const SnapshotId first = must(snapshotter.take());
  const SnapshotInfo second = must(store_.info(must(snapshotter.take())));
  EXPECT_EQ(second.changed_pages, 0U);
  EXPECT_EQ(second.parent, first);
  EXPECT_LT(second.bytes_written, 1024U);
}

TEST_F(SnapshotterTest, a_page_written_with_what_it_held_is_not_stored_again) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  std::byte* block = pages(arena, 32, 7);
  must(snapshotter.take());
  std::memset(block, 7, 32 * page_size());
  const SnapshotInfo info = must(store_.info(must(snapshotter.take())));
  EXPECT_EQ(info.reported_pages, 32U);
  EXPECT_EQ(info.changed_pages, 0U);
}

TEST_F(SnapshotterTest, pages_that_become_zero_are_recorded_without_data) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  std::byte* block = pages(arena, 64, 7);
  must(snapshotter.take());
  std::memset(block, 0, 64 * page_size());
  const SnapshotId id = must(snapshotter.take());
  const SnapshotInfo info = must(store_.info(id));
  EXPECT_EQ(info.zero_pages, 64U);
  EXPECT_EQ(info.data_pages(), 0U);
  EXPECT_EQ(difference(image_of(arena), must(image_of(store_, id))), "");
}

TEST_F(SnapshotterTest, freed_large_blocks_are_purged_and_recorded_as_zero) {
  Arena arena = clearing_arena();
  Snapshotter snapshotter(arena, store_);
  std::byte* block = pages(arena, 64, 7);
  pages(arena, 1, 8);  // keeps the span table's page from becoming zero too
  must(snapshotter.take());
  arena.deallocate(block);
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(must(store_.info(id)).zero_pages, 64U);
  EXPECT_EQ(difference(image_of(arena), must(image_of(store_, id))), "");
}

// The bound of what an incremental snapshot may write.
TEST_F(SnapshotterTest, bytes_written_stay_within_the_bound) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  std::byte* block = pages(arena, 4000, 1);
  must(snapshotter.take());
  const std::uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    const std::size_t writes = std::size_t{1} << random() % 12;
    for (std::size_t i = 0; i < writes; ++i) {
      // Another value each time: a page written with what it held is no change.
      auto& byte = block[random() % (4000 * page_size())];
      byte = static_cast<std::byte>(std::to_integer<unsigned>(byte) + 1);
    }
    const SnapshotId id = must(snapshotter.take());
    const SnapshotInfo info = must(store_.info(id));
    if (info.has_full_index) continue;
    const std::uint64_t runs = must(store_.changes(id)).size();
    const auto pages_bytes = static_cast<double>(info.data_pages() * page_size());
    EXPECT_LE(static_cast<double>(info.bytes_written),
              1.02 * pages_bytes + static_cast<double>(64 * runs + 64_KiB))
        << info.data_pages() << " pages in " << runs << " runs, seed " << seed;
    EXPECT_LE(info.reported_pages - info.changed_pages, info.reported_pages / 100 + 2);
  }
}

TEST_F(SnapshotterTest, bytes_written_is_what_the_files_grew_by) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  const auto total = [&] {
    std::uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(store_.path())) {
      if (entry.path().filename() != "lock") bytes += entry.file_size();
    }
    return bytes;
  };
  std::byte* block = pages(arena, 100, 1);
  must(snapshotter.take());
  const std::uint64_t before = total();
  for (std::size_t i = 0; i < 100; i += 3) block[i * page_size()] = std::byte{9};
  const SnapshotInfo info = must(store_.info(must(snapshotter.take())));
  // The root record is written again, not added.
  EXPECT_EQ(info.bytes_written, total() - before + 128);
}

TEST_F(SnapshotterTest, the_parent_after_a_rollback_is_its_target) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  std::byte* block = pages(arena, 16, 1);
  const SnapshotId s1 = must(snapshotter.take());
  std::memset(block + 3 * page_size(), 2, page_size());
  const SnapshotId s2 = must(snapshotter.take());
  const ArenaImage at_s2 = image_of(arena);
  must(snapshotter.rollback(s1));
  block[10 * page_size()] = std::byte{3};
  const SnapshotId s3 = must(snapshotter.take());

  EXPECT_EQ(must(store_.info(s3)).parent, s1);
  EXPECT_EQ(must(store_.info(s3)).changed_pages, 1U);
  const std::size_t page = static_cast<std::size_t>(block - arena.range().data()) / page_size() + 3;
  EXPECT_EQ(must(image_of(store_, s3)).at(page), must(image_of(store_, s1)).at(page));
  EXPECT_EQ(difference(at_s2, must(image_of(store_, s2))), "");
}

TEST_F(SnapshotterTest, rollback_puts_memory_back_byte_for_byte) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  RandomMutator mutator(arena, 5);
  mutator.steps(400);
  const SnapshotId id = must(snapshotter.take());
  const ArenaImage then = image_of(arena);
  mutator.steps(400);
  must(snapshotter.rollback(id));
  EXPECT_EQ(difference(then, image_of(arena)), "");
  EXPECT_TRUE(arena.heap().check().has_value());
}

TEST_F(SnapshotterTest, rollback_restores_pages_changed_without_a_snapshot_in_between) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  std::byte* block = pages(arena, 8, 1);
  const SnapshotId id = must(snapshotter.take());
  block[0] = std::byte{2};
  const RollbackStats stats = must(snapshotter.rollback(id));
  EXPECT_EQ(block[0], std::byte{1});
  EXPECT_EQ(stats.restored_pages, 1U);
}

TEST_F(SnapshotterTest, a_page_first_written_after_the_target_becomes_zero) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  auto* block = static_cast<std::byte*>(must(arena.allocate(100 * page_size())));
  const SnapshotId id = must(snapshotter.take());
  std::memset(block, 1, 100 * page_size());
  must(snapshotter.rollback(id));
  for (std::size_t i = 0; i < 100 * page_size(); i += page_size())
    ASSERT_EQ(block[i], std::byte{0});
}

TEST_F(SnapshotterTest, rolling_forward_to_a_larger_heap_works) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  const SnapshotId empty = must(snapshotter.take());
  RandomMutator(arena, 9).steps(600);
  const SnapshotId full = must(snapshotter.take());
  const ArenaImage then = image_of(arena);
  must(snapshotter.rollback(empty));
  must(snapshotter.rollback(full));
  EXPECT_EQ(difference(then, image_of(arena)), "");
}

TEST_F(SnapshotterTest, nothing_is_dirty_right_after_a_rollback) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  RandomMutator mutator(arena, 5);
  mutator.steps(300);
  const SnapshotId id = must(snapshotter.take());
  mutator.steps(300);
  must(snapshotter.rollback(id));
  EXPECT_EQ(must(store_.info(must(snapshotter.take()))).reported_pages, 0U);
}

// --- whether free memory can be checked ---

TEST_F(SnapshotterTest, a_snapshot_says_whether_its_arena_clears_on_free) {
  Arena clearing = clearing_arena();
  Arena keeping =
      must(Arena::create({.name = "test", .reserve_bytes = 32_MiB, .clear = ClearPolicy::never}));
  const SnapshotId yes = must(Snapshotter(clearing, store_).take());
  const SnapshotId no = must(Snapshotter(keeping, store_).take());
  EXPECT_TRUE(must(store_.info(yes)).free_bytes_are_zero);
  EXPECT_FALSE(must(store_.info(no)).free_bytes_are_zero);
}

class FreeBytesTest : public SnapshotterTest {
 protected:
  // Snapshot 1 is of an arena that clears on free, 2 of the same one opened without that.
  FreeBytesTest() {
    take(clearing_arena());
    take(must(store_.open_arena({1}, {.clear = ClearPolicy::never})));
  }
  // What the next snapshot of the arena says, after going back to `target`.
  bool take(Arena&& arena, std::optional<SnapshotId> target = std::nullopt) {
    Snapshotter snapshotter(arena, store_);
    if (target) must(snapshotter.rollback(*target));
    return must(store_.info(must(snapshotter.take()))).free_bytes_are_zero;
  }
};

TEST_F(FreeBytesTest, stay_zero_in_an_arena_that_is_opened_with_clearing) {
  EXPECT_TRUE(take(must(store_.open_arena({1}, {.clear = ClearPolicy::on_free}))));
}

TEST_F(FreeBytesTest, are_unknown_once_the_arena_was_opened_without_clearing) {
  EXPECT_FALSE(must(store_.info({2})).free_bytes_are_zero);
  EXPECT_FALSE(take(must(store_.open_arena({2}, {.clear = ClearPolicy::on_free}))));
}

TEST_F(FreeBytesTest, are_after_a_rollback_what_the_target_says) {
  EXPECT_TRUE(take(must(store_.open_arena({2}, {.clear = ClearPolicy::on_free})), SnapshotId{1}));
  EXPECT_FALSE(take(must(store_.open_arena({1}, {.clear = ClearPolicy::on_free})), SnapshotId{2}));
}

TEST_F(FreeBytesTest, are_unknown_after_a_rollback_of_an_arena_that_does_not_clear) {
  EXPECT_FALSE(take(must(store_.open_arena({2}, {.clear = ClearPolicy::never})), SnapshotId{1}));
}

TEST_F(SnapshotterTest, a_reopened_arena_equals_the_snapshot_and_works_on) {
  ArenaImage then;
  SnapshotId id;
  {
    Arena arena = new_arena();
    Snapshotter snapshotter(arena, store_);
    RandomMutator(arena, 3).steps(800);
    id = must(snapshotter.take());
    then = image_of(arena);
  }
  Arena arena = must(store_.open_arena(id));
  EXPECT_EQ(difference(then, image_of(arena)), "");
  EXPECT_TRUE(arena.heap().check().has_value());
  Snapshotter snapshotter(arena, store_);
  RandomMutator(arena, 4).steps(300);
  EXPECT_TRUE(arena.heap().check().has_value());
  const SnapshotId next = must(snapshotter.take());
  EXPECT_EQ(must(store_.info(next)).parent, id);
  EXPECT_EQ(difference(image_of(arena), must(image_of(store_, next))), "");
}

TEST_F(SnapshotterTest, reopening_reports_nothing_that_was_not_written_since) {
  SnapshotId id;
  {
    Arena arena = new_arena();
    Snapshotter snapshotter(arena, store_);
    RandomMutator(arena, 3).steps(800);
    id = must(snapshotter.take());
  }
  Arena arena = must(store_.open_arena(id));
  Snapshotter snapshotter(arena, store_);
  EXPECT_EQ(must(store_.info(must(snapshotter.take()))).reported_pages, 0U);
}

TEST_F(SnapshotterTest, an_arena_saved_to_a_second_store_is_stored_in_full) {
  Arena arena = new_arena();
  RandomMutator(arena, 3).steps(500);
  {
    Snapshotter snapshotter(arena, store_);
    must(snapshotter.take());
  }
  Store second = must(Store::open(directory_.file("second")));
  Snapshotter snapshotter(arena, second);
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(must(second.info(id)).parent.value, 0U);
  EXPECT_EQ(difference(image_of(arena), must(image_of(second, id))), "");
}

TEST_F(SnapshotterTest, a_second_snapshotter_is_refused_while_the_first_lives) {
  Arena arena = new_arena();
  Snapshotter first(arena, store_);
  Snapshotter second(arena, store_);
  auto id = second.take();
  ASSERT_FALSE(id.has_value());
  EXPECT_EQ(id.error().code(), ErrorCode::busy);
  EXPECT_TRUE(first.take().has_value());
}

TEST_F(SnapshotterTest, a_snapshotter_that_follows_goes_on_incrementally) {
  Arena arena = new_arena();
  std::byte* block = pages(arena, 50, 1);
  SnapshotId first;
  {
    Snapshotter snapshotter(arena, store_);
    first = must(snapshotter.take());
  }
  block[0] = std::byte{2};
  Snapshotter snapshotter(arena, store_);
  const SnapshotInfo info = must(store_.info(must(snapshotter.take())));
  EXPECT_EQ(info.parent, first);
  EXPECT_EQ(info.changed_pages, 1U);
}

TEST_F(SnapshotterTest, staging_smaller_than_the_change_streams_and_is_right) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_, {.staging_bytes = 8 * page_size()});
  RandomMutator(arena, 8).steps(900);
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(difference(image_of(arena), must(image_of(store_, id))), "");
}

TEST_F(SnapshotterTest, snapshots_of_another_arena_cannot_be_rolled_back_to) {
  Arena first = new_arena();
  Arena second = new_arena();
  Snapshotter into_first(first, store_);
  const SnapshotId id = must(into_first.take());
  Snapshotter into_second(second, store_);
  auto r = into_second.rollback(id);
  ASSERT_FALSE(r.has_value());
  EXPECT_EQ(r.error().code(), ErrorCode::identity_mismatch);
}

TEST_F(SnapshotterTest, rollback_to_a_snapshot_that_does_not_exist_says_which_do) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  must(snapshotter.take());
  auto r = snapshotter.rollback({7});
  ASSERT_FALSE(r.has_value());
  EXPECT_EQ(r.error().message(), store_.path() + " has no snapshot 7; its snapshots are 1 to 1.");
}

// Opening reads a bounded number of manifests however long the history is.
TEST_F(SnapshotterTest, a_full_index_bounds_the_chain) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  std::byte* block = pages(arena, 300, 1);
  std::size_t since_full = 0;
  for (int i = 0; i < 150; ++i) {
    block[static_cast<std::size_t>(i) % 300 * page_size()] = static_cast<std::byte>(2 + i % 200);
    const SnapshotInfo info = must(store_.info(must(snapshotter.take())));
    since_full = info.has_full_index ? 0 : since_full + 1;
    ASSERT_LT(since_full, 64U);
  }
  EXPECT_EQ(difference(image_of(arena), must(image_of(store_, must(store_.latest())))), "");
  EXPECT_TRUE(must(verify(store_)).sound());
}

// Everything at once, against images kept in memory: takes, rollbacks to any snapshot, reopening.
void random_history(const std::string& path, BackendKind backend, std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  constexpr std::array kPolicies = {ClearPolicy::on_free, ClearPolicy::never,
                                    ClearPolicy::deferred};
  const ClearPolicy policy = kPolicies.at(random() % kPolicies.size());
  const bool deferred = policy == ClearPolicy::deferred;
  Store store = must(Store::open(path));
  std::optional<Arena> arena =
      must(Arena::create({.name = "history",
                          .reserve_bytes = 256_MiB,
                          .clear = policy,
                          .prefill = random() % 2 == 0 ? Prefill::zero_page : Prefill::none,
                          .backend = backend}));
  std::optional<Snapshotter> snapshotter;
  snapshotter.emplace(*arena, store);
  std::map<SnapshotId, ArenaImage> reference;
  for (int step = 0; step < 30; ++step) {
    RandomMutator mutator(*arena, random());
    if (deferred) mutator.defer_clearing();
    mutator.steps(random() % 200);
    const std::uint64_t what = reference.empty() ? 0 : random() % 6;
    if (what <= 2) {
      reference[must(snapshotter->take())] = image_of(*arena);
      continue;
    }
    const auto target =
        std::next(reference.begin(), static_cast<long>(random() % reference.size()));
    if (what <= 4) {
      must(snapshotter->rollback(target->first));
    } else {
      snapshotter.reset();
      arena.reset();
      // What was freed under never is kept by its snapshots, and by nobody else.
      const ClearPolicy again = deferred ? ClearPolicy::deferred : ClearPolicy::on_free;
      arena = must(store.open_arena(target->first, {.clear = again, .backend = backend}));
      snapshotter.emplace(*arena, store);
    }
    ASSERT_EQ(difference(target->second, image_of(*arena)), "");
    ASSERT_TRUE(arena->heap().check().has_value());
  }
  for (const auto& [id, image] : reference) {
    ASSERT_EQ(difference(image, must(image_of(store, id))), "") << "snapshot " << id.value;
  }
  EXPECT_TRUE(must(verify(store)).sound());
}

TEST(SnapshotHistory, random_histories_match_the_reference) {
  const std::uint64_t seed = test_seed();
  for (std::size_t i = 0; i < scaled(8); ++i) {
    TemporaryDirectory directory;
    random_history(directory.file("store"), BackendKind::automatic, seed + i);
  }
}

TEST(SnapshotHistory, random_histories_match_the_reference_without_userfaultfd) {
  const std::uint64_t seed = test_seed();
  for (std::size_t i = 0; i < scaled(3); ++i) {
    TemporaryDirectory directory;
    random_history(directory.file("store"), BackendKind::compare, seed + i);
  }
}

}  // namespace
}  // namespace pagetide
