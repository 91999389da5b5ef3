// A snapshot is the memory of one instant while threads write on.

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "pagetide/snapshot/snapshotter.h"
#include "tests/support/must.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;

// Many counters, each on a page of its own, that a writer raises one after the other under a
// shared lock: at every instant between two rounds all are equal.
struct Counters {
  static constexpr std::size_t kCount = 64;
  struct alignas(65536) Page {
    std::uint64_t value = 0;
  };
  std::array<Page, kCount> pages;
};

// Writers hold it shared for a round; the snapshotter exclusively. A plain shared_mutex would let
// busy writers keep the snapshotter waiting for ever: glibc's prefers those who share.
class WriterGate {
 public:
  template <typename Round>
  void write(Round&& round) {
    while (closing_) std::this_thread::yield();
    const std::shared_lock lock(mutex_);
    round();
  }
  void close() {
    closing_ = true;
    mutex_.lock();
  }
  void open() {
    closing_ = false;
    mutex_.unlock();
  }

 private:
  std::atomic<bool> closing_{false};
  std::shared_mutex mutex_;
};

class QuiesceTest : public ::testing::Test {
 protected:
  WriterGate gate_;
  Quiesce quiesce() {
    return Quiesce::caller([this] { gate_.close(); }, [this] { gate_.open(); });
  }
  TemporaryDirectory directory_;
  Store store_ = must(Store::open(directory_.file("store")));
};

TEST_F(QuiesceTest, every_snapshot_is_of_one_instant_under_four_writers) {
  std::vector<SnapshotId> ids;
  {
    Arena arena = must(Arena::create({.name = "quiesce", .reserve_bytes = 128_MiB}));
    std::vector<Counters*> counters;
    for (int i = 0; i < 4; ++i) {
      counters.push_back(must(arena.find_or_construct<Counters>("writer " + std::to_string(i))));
    }
    std::atomic<bool> stop{false};
    std::vector<std::thread> writers;
    for (Counters* mine : counters) {
      writers.emplace_back([&, mine] {
        while (!stop) {
          gate_.write([&] {
            for (auto& page : mine->pages) ++page.value;
            // Allocation goes on too, so that the heap is caught in all its states.
            arena.deallocate(must(arena.allocate(100 + mine->pages[0].value % 1000)));
          });
        }
      });
    }
    Snapshotter snapshotter(arena, store_, {.quiesce = quiesce()});
    for (std::size_t i = 0; i < scaled(20); ++i) ids.push_back(must(snapshotter.take()));
    stop = true;
    for (std::thread& writer : writers) writer.join();
  }
  for (const SnapshotId id : ids) {
    Arena arena = must(store_.open_arena(id));
    ASSERT_TRUE(arena.heap().check().has_value());
    for (int i = 0; i < 4; ++i) {
      Counters* counters = must(arena.find<Counters>("writer " + std::to_string(i)));
      for (const auto& page : counters->pages) ASSERT_EQ(page.value, counters->pages[0].value);
    }
  }
}

TEST_F(QuiesceTest, writers_go_on_after_a_rollback) {
  Arena arena = must(Arena::create({.name = "quiesce", .reserve_bytes = 128_MiB}));
  Counters* counters = must(arena.find_or_construct<Counters>("counters"));
  Snapshotter snapshotter(arena, store_, {.quiesce = quiesce()});
  const SnapshotId id = must(snapshotter.take());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) {
      gate_.write([&] {
        for (auto& page : counters->pages) ++page.value;
      });
    }
  });
  for (std::size_t i = 0; i < scaled(20); ++i) must(snapshotter.rollback(id));
  stop = true;
  writer.join();
  for (const auto& page : counters->pages) EXPECT_EQ(page.value, counters->pages[0].value);
  EXPECT_TRUE(arena.heap().check().has_value());
}

TEST_F(QuiesceTest, writers_are_let_go_when_the_snapshot_fails) {
  Arena arena = must(Arena::create({.name = "quiesce", .reserve_bytes = 32_MiB}));
  int paused = 0;
  int resumed = 0;
  Snapshotter snapshotter(arena, store_,
                          {.quiesce = Quiesce::caller([&] { ++paused; }, [&] { ++resumed; })});
  must(snapshotter.take());
  // In the way of the next segment, which is created after the stop.
  std::filesystem::create_directory(store_.path() + "/000000000002.segment");
  must(arena.construct<int>(1));
  EXPECT_FALSE(snapshotter.take().has_value());
  EXPECT_EQ(paused, 2);
  EXPECT_EQ(resumed, 2);
}

}  // namespace
}  // namespace pagetide
