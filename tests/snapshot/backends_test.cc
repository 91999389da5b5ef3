#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/tracker/backend_choice.h"
#include "tests/support/arena_image.h"
#include "tests/support/must.h"
#include "tests/support/random_mutator.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

// Arenas over every way of tracking, with and without hot pages: what is snapshotted, rolled back
// to and opened again is what was in memory.

namespace pagetide {
namespace {

using namespace literals;

struct Way {
  BackendKind backend;
  bool hot_pages;
  Prefill prefill = Prefill::automatic;
};
void PrintTo(const Way& way, std::ostream* out) {
  *out << to_string(way.backend);
}

class ArenaBackendTest : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (auto r = check_backend(GetParam().backend); !r) PAGETIDE_SKIP(r.error().message().c_str());
  }
  Arena new_arena() {
    ArenaOptions options{.name = "test", .reserve_bytes = 256_MiB, .backend = GetParam().backend};
    options.hot_pages = hot_pages();
    options.prefill = GetParam().prefill;
    return must(Arena::create(options));
  }
  static HotPageOptions hot_pages() {
    return {.enabled = GetParam().hot_pages, .relearn_takes = 4};
  }

  TemporaryDirectory directory_;
  Store store_ = must(Store::open(directory_.file("store")));
};

INSTANTIATE_TEST_SUITE_P(
    every, ArenaBackendTest,
    testing::Values(Way{BackendKind::uffd_async, false}, Way{BackendKind::uffd_async, true},
                    Way{BackendKind::uffd_async, false, Prefill::marker},
                    Way{BackendKind::uffd_async, false, Prefill::none},
                    Way{BackendKind::uffd_sync, false}, Way{BackendKind::uffd_sync, true},
                    Way{BackendKind::uffd_sigbus, false}, Way{BackendKind::uffd_sigbus, true},
                    Way{BackendKind::soft_dirty, false}, Way{BackendKind::write_protect, false},
                    Way{BackendKind::write_protect, true}, Way{BackendKind::compare, false}),
    [](const auto& way) {
      return std::string(to_string(way.param.backend)) + (way.param.hot_pages ? "_hot" : "") +
             (way.param.prefill == Prefill::automatic
                  ? ""
                  : "_" + std::string(to_string(way.param.prefill)));
    });

TEST_P(ArenaBackendTest, every_snapshot_holds_the_memory_of_its_instant) {
  const std::uint64_t seed = test_seed();
  Arena arena = new_arena();
  ASSERT_EQ(arena.tracker().backend(), GetParam().backend);
  Snapshotter snapshotter(arena, store_);
  RandomMutator mutator(arena, seed);
  for (std::size_t round = 0; round < scaled(12); ++round) {
    mutator.steps(200);
    const SnapshotId id = must(snapshotter.take());
    ASSERT_EQ(difference(image_of(arena), must(image_of(store_, id))), "") << "round " << round;
  }
}

TEST_P(ArenaBackendTest, a_rollback_brings_back_the_memory_of_its_snapshot) {
  const std::uint64_t seed = test_seed();
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  RandomMutator mutator(arena, seed);
  for (std::size_t round = 0; round < scaled(8); ++round) {
    mutator.steps(150);
    const SnapshotId id = must(snapshotter.take());
    const ArenaImage then = image_of(arena);
    mutator.steps(150);
    must(snapshotter.rollback(id));
    ASSERT_EQ(difference(then, image_of(arena)), "") << "round " << round;
    // And goes on from there.
    mutator.steps(50);
    const SnapshotId next = must(snapshotter.take());
    ASSERT_EQ(difference(image_of(arena), must(image_of(store_, next))), "") << "round " << round;
  }
}

TEST_P(ArenaBackendTest, an_arena_that_is_opened_again_is_tracked_from_its_first_write) {
  const std::uint64_t seed = test_seed();
  SnapshotId id{};
  ArenaImage then;
  {
    Arena arena = new_arena();
    Snapshotter snapshotter(arena, store_);
    RandomMutator(arena, seed).steps(500);
    id = must(snapshotter.take());
    then = image_of(arena);
  }
  OpenArenaOptions options;
  options.backend = GetParam().backend;
  options.hot_pages = hot_pages();
  Arena again = must(store_.open_arena(id, options));
  EXPECT_EQ(difference(then, image_of(again)), "");
  Snapshotter snapshotter(again, store_);
  RandomMutator mutator(again, seed + 1);
  for (std::size_t round = 0; round < 3; ++round) {
    mutator.steps(200);
    const SnapshotId next = must(snapshotter.take());
    ASSERT_EQ(difference(image_of(again), must(image_of(store_, next))), "") << "round " << round;
  }
}

// Under ClearPolicy::deferred, by which free bytes stay in memory and are zero in a snapshot.
TEST_P(ArenaBackendTest, a_large_block_that_gets_the_same_bytes_again_is_in_the_snapshot) {
  constexpr std::size_t kBytes = 400'000;
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  void* block = must(arena.allocate(kBytes));
  must(arena.allocate(100'000));
  std::memset(block, 0x41, kBytes);
  must(snapshotter.take());
  arena.deallocate(block);
  must(snapshotter.take());
  ASSERT_EQ(must(arena.allocate(kBytes)), block);
  std::memset(block, 0x41, kBytes);
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(difference(image_of(arena), must(image_of(store_, id))), "");
}

TEST_P(ArenaBackendTest, a_small_block_that_gets_the_same_bytes_again_is_in_the_snapshot) {
  constexpr std::size_t kBytes = 96;
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  auto* const neighbour = static_cast<char*>(must(arena.allocate(kBytes)));
  void* const block = must(arena.allocate(kBytes));
  std::memset(block, 0x41, kBytes);
  must(snapshotter.take());
  arena.deallocate(block);
  *neighbour = 1;
  must(snapshotter.take());
  void* again = nullptr;
  for (int i = 0; i < 10'000 && again != block; ++i) again = must(arena.allocate(kBytes));
  ASSERT_EQ(again, block);
  std::memset(block, 0x41, kBytes);
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(difference(image_of(arena), must(image_of(store_, id))), "");
}

// To and fro, so that a page is often what it was a moment ago.
TEST_P(ArenaBackendTest, snapshots_under_a_thread_that_moves_money_have_all_of_it) {
  struct alignas(4096) Account {
    std::int64_t money = 1000;
  };
  using Pair = std::array<Account, 2>;
  Arena arena = new_arena();
  Pair* const pair = must(arena.find_or_construct<Pair>("accounts"));
  std::mutex gate;
  std::atomic<bool> over = false;
  std::atomic<bool> closing = false;
  std::thread thread([&] {
    for (std::int64_t amount = 10; !over; amount = -amount) {
      while (closing) std::this_thread::yield();
      const std::lock_guard lock(gate);
      (*pair)[0].money -= amount;
      (*pair)[1].money += amount;
    }
  });
  std::vector<SnapshotId> ids;
  {
    const auto close = [&] {
      closing = true;
      gate.lock();
    };
    const auto open = [&] {
      closing = false;
      gate.unlock();
    };
    Snapshotter snapshotter(arena, store_, {.quiesce = Quiesce::caller(close, open)});
    for (std::size_t i = 0; i < scaled(20); ++i) ids.push_back(must(snapshotter.take()));
  }
  over = true;
  thread.join();
  const std::size_t first =
      (reinterpret_cast<std::uintptr_t>(pair) - arena.range().begin) / page_size();
  for (const SnapshotId id : ids) {
    ArenaImage image = must(image_of(store_, id));
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < pair->size(); ++i) {
      std::int64_t money = 0;
      const std::size_t at = i * sizeof(Account);
      std::memcpy(&money, image[first + at / page_size()].data() + at % page_size(), sizeof(money));
      sum += money;
    }
    ASSERT_EQ(sum, 2000) << "snapshot " << id.value;
  }
}

}  // namespace
}  // namespace pagetide
