// Every engine takes the memory of one instant, whatever threads do meanwhile: they move money
// between accounts all over the arena, and no snapshot may have more or less of it.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/allocator/safepoints.h"
#include "pagetide/snapshot/snapshotter.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;
using namespace std::chrono_literals;

constexpr std::size_t kThreads = 4;
constexpr std::size_t kAccounts = 200;  // a thread's own
constexpr std::int64_t kMoney = 1000;   // in each at first

// An account on a page of its own.
struct alignas(4096) Account {
  std::int64_t money = kMoney;
};
struct Bank {
  std::array<std::array<Account, kAccounts>, kThreads> accounts;
};

std::int64_t money_in(Store& store, SnapshotId id, const Arena& arena, const Bank* bank) {
  const auto first = (reinterpret_cast<std::uintptr_t>(bank) - arena.range().begin) / page_size();
  const PageRange bank_pages{first, sizeof(Bank) / page_size()};
  std::int64_t sum = 0;
  must(store.read_image(id, [&](PageRange pages, std::span<const std::byte> content) {
    for (std::size_t i = 0; i < pages.count; ++i) {
      if (!bank_pages.contains(pages.first + i)) continue;
      for (std::size_t at = 0; at < page_size(); at += sizeof(Account)) {
        std::int64_t money = 0;
        std::memcpy(&money, content.data() + i * page_size() + at, sizeof(money));
        sum += money;
      }
    }
    return Result<void>{};
  }));
  return sum;
}

// Thousands under ./dev soak.
std::size_t takes() {
  return std::getenv("PAGETIDE_SOAK") != nullptr ? 2000 : scaled(60);
}

enum class Holding : std::uint8_t { caller, safepoint };
using Parameter = std::tuple<SnapshotEngine, Holding>;

std::string name_of(const Parameter& parameter) {
  const auto& [engine, holding] = parameter;
  return std::string(engine == SnapshotEngine::precopy ? "precopy" : "stop") +
         (holding == Holding::caller ? "_caller" : "_safepoint");
}

class EnginesTest : public ::testing::TestWithParam<Parameter> {
 protected:
  // One transfer, between two accounts of the thread; and a block that comes and goes, so that the
  // heap moves too.
  void transfer(std::size_t thread, RandomSource& random) {
    auto& accounts = bank_->accounts[thread];
    const auto amount = static_cast<std::int64_t>(random.below(100));
    accounts[random.below(kAccounts)].money -= amount;
    void* const block = must(arena_.allocate(16 + random.below(1000)));
    accounts[random.below(kAccounts)].money += amount;
    arena_.deallocate(block);
  }
  void run_thread(std::size_t thread) {
    RandomSource random(seed_ + thread);
    if (std::get<1>(GetParam()) == Holding::caller) {
      while (!over_) {
        while (closing_) std::this_thread::yield();
        const std::lock_guard lock(gates_[thread]);
        transfer(thread, random);
      }
      return;
    }
    Mutator mutator(points_);
    while (!over_) {
      transfer(thread, random);
      mutator.poll();
    }
  }
  Quiesce quiesce() {
    if (std::get<1>(GetParam()) == Holding::safepoint) return Quiesce::safepoint(points_, 60s);
    return Quiesce::caller(
        [this] {
          closing_ = true;
          for (std::mutex& gate : gates_) gate.lock();
        },
        [this] {
          closing_ = false;
          for (std::mutex& gate : gates_) gate.unlock();
        });
  }

  Arena arena_ = must(Arena::create({.name = "bank", .reserve_bytes = 64_MiB}));
  Bank* bank_ = must(arena_.find_or_construct<Bank>("bank"));
  TemporaryDirectory directory_;
  Store store_ = must(Store::open(directory_.file("store")));
  Safepoints points_;
  std::array<std::mutex, kThreads> gates_;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> over_ = false;
  const std::uint64_t seed_ = RandomSource().seed();
};

INSTANTIATE_TEST_SUITE_P(all, EnginesTest,
                         testing::Combine(testing::Values(SnapshotEngine::precopy,
                                                          SnapshotEngine::stop),
                                          testing::Values(Holding::caller, Holding::safepoint)),
                         [](const auto& each) { return name_of(each.param); });

TEST_P(EnginesTest, no_snapshot_has_more_or_less_money) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) threads.emplace_back([this, i] { run_thread(i); });
  std::vector<SnapshotId> ids;
  {
    Snapshotter snapshotter(arena_, store_,
                            {.quiesce = quiesce(), .engine = std::get<0>(GetParam())});
    for (std::size_t i = 0; i < takes(); ++i) ids.push_back(must(snapshotter.take()));
    EXPECT_EQ(snapshotter.last_take().engine, std::get<0>(GetParam()));
  }
  over_ = true;
  for (std::thread& thread : threads) thread.join();
  for (const SnapshotId id : ids) {
    ASSERT_EQ(money_in(store_, id, arena_, bank_), kMoney * std::int64_t{kThreads * kAccounts})
        << "snapshot " << id.value << ", seed " << seed_;
  }
}

}  // namespace
}  // namespace pagetide
