#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/random_source.h"
#include "tests/support/watched_memory.h"

// Writers against takes, for some seconds a back end. Whatever a writer stores is in the copy that
// is made after a take, or the next take reports it: when the writers have stopped, one more take
// makes the copy equal to the memory. One lost write and it is not.

namespace pagetide {
namespace {

constexpr std::size_t kHugeBytes = std::size_t{2} << 20;

struct Race {
  BackendKind backend;
  bool huge_pages;
  bool hot_pages = false;
};
void PrintTo(const Race& race, std::ostream* out) {
  *out << to_string(race.backend);
}

const Race kRaces[] = {
    {BackendKind::uffd_async, false},       {BackendKind::uffd_async, true},
    {BackendKind::uffd_async, false, true}, {BackendKind::uffd_sync, false},
    {BackendKind::uffd_sync, true},         {BackendKind::uffd_sigbus, false},
    {BackendKind::uffd_sigbus, true},       {BackendKind::write_protect, false},
    {BackendKind::write_protect, true},
// It reads pages that are being written, which is its way and a data race by the book.
#if !defined(__SANITIZE_THREAD__)
    {BackendKind::compare, false},          {BackendKind::compare, true},
#endif
};

std::string name_of(const Race& race) {
  return std::string(to_string(race.backend)) + (race.huge_pages ? "_huge" : "_small") +
         (race.hot_pages ? "_hot" : "");
}

// A back end has both kinds of page in half of its time each.
std::chrono::milliseconds race_time() {
  return std::getenv("PAGETIDE_SOAK") != nullptr ? std::chrono::milliseconds(30'000)
                                                 : std::chrono::milliseconds(2'500);
}

class Racers {
 public:
  // Each writer has the words whose number leaves its own as remainder, so that every word has
  // one writer, and every page has all.
  Racers(const Mapping& memory, std::size_t threads, RandomSource& random) {
    for (std::size_t i = 0; i < threads; ++i) {
      threads_.emplace_back(
          [this, &memory, i, threads, seed = random.next()] { run(memory, i, threads, seed); });
    }
  }
  Racers(const Racers&) = delete;
  Racers& operator=(const Racers&) = delete;
  ~Racers() { finish(); }

  std::uint64_t finish() {
    stop_.store(true);
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    return writes_.load();
  }

 private:
  void run(const Mapping& memory, std::size_t which, std::size_t threads, std::uint64_t seed) {
    RandomSource random(seed);
    const std::size_t words = page_size() / sizeof(std::uint64_t);
    while (!stop_.load(std::memory_order_relaxed)) {
      for (int n = 0; n < 50; ++n) {
        const std::size_t page = random.below(memory.pages());
        const std::size_t word = random.below(words / threads) * threads + which;
        std::atomic_ref(reinterpret_cast<std::uint64_t*>(memory.page(page))[word])
            .store(random.next(), std::memory_order_relaxed);
      }
      writes_.fetch_add(50, std::memory_order_relaxed);
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> writes_{0};
  std::vector<std::thread> threads_;
};

class RaceStressTest : public testing::TestWithParam<Race> {
 protected:
  void SetUp() override {
    if (auto r = check_backend(GetParam().backend); !r) PAGETIDE_SKIP(r.error().message().c_str());
  }

  // Huge pages of which only a part is written are split and stay so: each round begins anew.
  WatchedMemory fresh_memory() const {
    Mapping mapping = Mapping::aligned(2 * kHugeBytes / page_size(), kHugeBytes);
    ::madvise(mapping.range().data(), mapping.range().size,
              GetParam().huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    mapping.fill(1);
    TrackerOptions options;
    options.backend = GetParam().backend;
    options.hot_pages.enabled = GetParam().hot_pages;
    return WatchedMemory(std::move(mapping), options);
  }

  // Copies what a take reports, as a snapshot would.
  void take_and_copy(WatchedMemory& watched, std::vector<std::uint64_t>& copy) {
    const std::size_t words = page_size() / sizeof(std::uint64_t);
    for (const std::size_t page : watched.take()) {
      auto* const from = reinterpret_cast<std::uint64_t*>(watched.memory().page(page));
      for (std::size_t i = 0; i < words; ++i) {
        copy[page * words + i] = std::atomic_ref(from[i]).load(std::memory_order_relaxed);
      }
    }
    ++takes_;
  }

  std::size_t takes_ = 0;
};

INSTANTIATE_TEST_SUITE_P(every_back_end, RaceStressTest, testing::ValuesIn(kRaces),
                         [](const auto& race) { return name_of(race.param); });

TEST_P(RaceStressTest, no_write_is_lost) {
  RandomSource random;
  std::uint64_t writes = 0;
  const auto end = std::chrono::steady_clock::now() + race_time();
  while (std::chrono::steady_clock::now() < end) {
    WatchedMemory watched = fresh_memory();
    std::vector<std::uint64_t> copy(watched.memory().range().size / sizeof(std::uint64_t));
    Racers racers(watched.memory(), random.between(2, 8), random);
    const auto round_end =
        std::min(end, std::chrono::steady_clock::now() + std::chrono::milliseconds(400));
    while (std::chrono::steady_clock::now() < round_end) take_and_copy(watched, copy);
    writes += racers.finish();
    take_and_copy(watched, copy);
    const auto* const memory = reinterpret_cast<const std::uint64_t*>(watched.memory().page(0));
    for (std::size_t i = 0; i < copy.size(); ++i) {
      ASSERT_EQ(memory[i], copy[i]) << "word " << i << " after " << takes_ << " takes";
    }
  }
  std::printf("%llu writes, %zu takes, no word lost\n", static_cast<unsigned long long>(writes),
              takes_);
  EXPECT_GT(writes, 0U);
}

}  // namespace
}  // namespace pagetide
