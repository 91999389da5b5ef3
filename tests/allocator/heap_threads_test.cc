#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "pagetide/allocator/free_mask.h"
#include "pagetide/allocator/heap.h"
#include "pagetide/allocator/heap_race_points.h"
#include "pagetide/base/hash.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"
#include "tests/support/test_scale.h"

// Threads that allocate, free what others allocated, come and go.

namespace pagetide {
namespace {

using namespace literals;

// Every word of a block tells where it is and who it belongs to: what overlaps, or is handed out
// twice, is noticed when it is freed.
struct Block {
  std::uint64_t* words = nullptr;
  std::size_t count = 0;
};

std::uint64_t pattern(const std::uint64_t* at, std::size_t count) {
  return reinterpret_cast<std::uintptr_t>(at) * 0x9e37'79b9'7f4a'7c15U + count;
}

std::size_t random_size(RandomSource& random) {
  const std::size_t kind = random.below(100);
  return kind < 80   ? random.between(8, 300)
         : kind < 99 ? random.between(300, 20'000)
                     : random.between(20'000, 200'000);
}

// False: it was not as it was left.
bool check_and_free(Heap& heap, const Block& block) {
  bool intact = true;
  for (std::size_t i = 0; i<block.count; i += block.count> 200 ? block.count - 1 : 1) {
    intact = intact && block.words[i] == pattern(block.words + i, block.count);
  }
  heap.deallocate(block.words);
  return intact;
}

#ifdef PAGETIDE_CHECK_LOCK_RANKS
void yield_now_and_then() {
  static thread_local std::uint32_t state = 1;
  state = state * 1664525U + 1013904223U;
  if (state >> 30U == 0) std::this_thread::yield();
}

class RacePoints {
 public:
  RacePoints() { race_point_hook = yield_now_and_then; }
  RacePoints(const RacePoints&) = delete;
  RacePoints& operator=(const RacePoints&) = delete;
  ~RacePoints() { race_point_hook = nullptr; }
};
#else
struct RacePoints {
  RacePoints() {}  // not trivial, so that it counts as used
};
#endif

// With so many threads, under each policy.
class HeapThreadsTest : public testing::TestWithParam<std::tuple<std::size_t, ClearPolicy>> {
 protected:
  static constexpr std::size_t kExchange = 512;

  static std::size_t thread_count() { return std::get<0>(GetParam()); }
  static ClearPolicy policy() { return std::get<1>(GetParam()); }

  // Under the policies that clear, what was freed is gone before it is handed out again.
  Block make(RandomSource& random) {
    const std::size_t bytes = random_size(random);
    const bool zeroed = random.one_in(4);
    Block block;
    block.words = static_cast<std::uint64_t*>(zeroed ? heap_->allocate_zeroed(bytes)
                                                     : heap_->allocate(bytes));
    if (block.words == nullptr) return {};
    if ((zeroed || policy() != ClearPolicy::never) &&
        !is_all_zero(block.words, heap_->usable_size(block.words))) {
      ++not_zero_;
    }
    block.count = bytes / 8;
    // Both ends of large ones are enough.
    for (std::size_t i = 0; i<block.count; i += block.count> 200 ? block.count - 1 : 1) {
      block.words[i] = pattern(block.words + i, block.count);
    }
    return block;
  }

  // A thread's life: it makes blocks, exchanges them with others, frees what it gets.
  void live(std::uint64_t seed, std::size_t steps) {
    RandomSource random(seed);
    std::vector<Block> own;
    for (std::size_t step = 0; step < steps && !stop_; ++step) {
      // The C library's lock would let busy readers starve the one who wants it alone.
      while (wanted_alone_) std::this_thread::yield();
      const std::shared_lock guard(writers_);
      for (int i = 0; i < 50; ++i) {
        if (own.size() < 200 && random.one_in(2)) {
          if (const Block block = make(random); block.words != nullptr) own.push_back(block);
        } else if (!own.empty()) {
          std::swap(own[random.below(own.size())], own.back());
          give(own.back(), random);
          own.pop_back();
        }
      }
    }
    const std::shared_lock guard(writers_);
    for (const Block& block : own) check(check_and_free(*heap_, block));
  }
  // To another thread, by way of a place where it finds it; what lay there is freed.
  void give(const Block& block, RandomSource& random) {
    Block other = block;
    if (random.one_in(2)) {
      Place& place = places_[random.below(kExchange)];
      const std::lock_guard lock(place.mutex);
      std::swap(place.block, other);
    }
    if (other.words != nullptr) check(check_and_free(*heap_, other));
  }
  void check(bool intact) {
    if (!intact) ++broken_;
  }
  // While nobody is in the heap, and once it has taken in what others freed.
  bool free_memory_is_zero() {
    FreeMask mask(heap_->metadata());
    std::vector<std::byte> copy(page_size());
    const std::byte* const end = heap_.data() + heap_.superblock().spans_used * layout::kSpanBytes;
    for (const std::byte* page = heap_.data(); page < end; page += page_size()) {
      std::memcpy(copy.data(), page, page_size());
      const auto offset = static_cast<std::size_t>(page - heap_.region().base());
      if (mask.apply(offset / page_size(), copy.data())) return false;
    }
    return true;
  }
  void begin_epoch() {
    must(heap_.region().tracker().collect(heap_.region().watch(), CollectMode::take));
  }
  // At the beginning of an epoch, so that all of it lies in clean pages.
  void free_all() {
    begin_epoch();
    for (Place& place : places_) {
      const Block block = std::exchange(place.block, {});
      if (block.words == nullptr) continue;
      check(check_and_free(*heap_, block));
      const bool is_cleared = *block.words == 0;
      if (is_cleared != (policy() == ClearPolicy::on_free)) ++freed_wrongly_;
    }
  }

  struct Place {
    std::mutex mutex;
    Block block;
  };

  TestHeap heap_{256_MiB, policy()};
  std::array<Place, kExchange> places_;
  std::shared_mutex writers_;  // held exclusively while the heap is looked at
  std::atomic<bool> wanted_alone_ = false;
  std::atomic<bool> stop_ = false;
  std::atomic<int> broken_ = 0;
  std::atomic<int> not_zero_ = 0;
  int freed_wrongly_ = 0;
};

INSTANTIATE_TEST_SUITE_P(with, HeapThreadsTest,
                         testing::Combine(testing::Values(1, 2, 8),
                                          testing::Values(ClearPolicy::deferred,
                                                          ClearPolicy::on_free,
                                                          ClearPolicy::never)),
                         [](const auto& instance) {
                           return std::to_string(std::get<0>(instance.param)) + "_threads_" +
                                  name_of(std::get<1>(instance.param));
                         });

TEST_P(HeapThreadsTest, nothing_overlaps_and_nothing_is_lost) {
  const RacePoints race_points;
  const std::uint64_t seed = test_seed();
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(scaled(1000));
  std::vector<std::thread> threads(thread_count());
  // Threads live for a while, and others take their place.
  std::atomic<std::uint64_t> lives = 0;
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      while (!stop_) {
        const std::uint64_t life = lives++;
        std::thread([&] { live(seed + life, 100); }).join();
      }
    });
  }
  RandomSource random(seed);
  while (std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(random.between(1, 20)));
    // Epochs advance while they run.
    begin_epoch();
    if (!random.one_in(4)) continue;
    wanted_alone_ = true;
    const std::unique_lock hold(writers_);
    wanted_alone_ = false;
    const auto stats = heap_->check();
    EXPECT_TRUE(stats) << stats.error().message();
    EXPECT_TRUE(policy() != ClearPolicy::on_free || free_memory_is_zero());
    if (HasFailure()) break;
    // As after a rollback: everybody's heap is gone, and what is in the region counts.
    if (random.one_in(2)) must(heap_->rebuild());
  }
  stop_ = true;
  for (std::thread& thread : threads) thread.join();
  free_all();
  EXPECT_EQ(broken_, 0);
  EXPECT_EQ(not_zero_, 0);
  EXPECT_EQ(freed_wrongly_, 0);
  EXPECT_EQ(must(heap_->check()).live_blocks, 0U);
}

// Spans of two words, whose slots are freed in the order in which they were handed out, by whoever
// is next: they become empty, and go from thread to thread, while frees into them are on their way.
TEST(HeapThreadsEmptySpansTest, spans_change_hands_when_nobody_is_at_work_on_them) {
  const RacePoints race_points;
  constexpr std::size_t kThreads = 6;
  constexpr std::size_t kBytes = 896;
  const TestHeap heap(64_MiB, ClearPolicy::never);
  std::mutex mutex;
  std::deque<std::uint64_t*> queue;
  std::atomic<int> broken = 0;
  const auto put = [&] {
    auto* block = static_cast<std::uint64_t*>(heap->allocate(kBytes));
    *block = pattern(block, 1);
    const std::lock_guard lock(mutex);
    queue.push_back(block);
  };
  const auto free_next = [&] {
    std::uint64_t* block = nullptr;
    {
      const std::lock_guard lock(mutex);
      if (queue.empty()) return;
      block = queue.front();
      queue.pop_front();
    }
    if (*block != pattern(block, 1)) ++broken;
    heap->deallocate(block);
  };
  std::vector<std::thread> threads(kThreads);
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads[t] = std::thread([&, t] {
      RandomSource random(t);
      for (std::size_t step = 0; step < scaled(2000); ++step) {
        const std::size_t count = random.between(1, 200);
        for (std::size_t i = 0; i < count; ++i) put();
        for (std::size_t i = 0; i < count; ++i) free_next();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  while (!queue.empty()) free_next();
  EXPECT_EQ(broken, 0);
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

TEST(HeapThreadEndTest, what_a_thread_leaves_is_used_by_the_next_one) {
  const TestHeap heap;
  for (int i = 0; i < 200; ++i) {
    std::thread([&] {
      std::vector<void*> blocks(100);
      for (void*& block : blocks) block = heap->allocate(1000);
      for (void* block : blocks) heap->deallocate(block);
    }).join();
  }
  EXPECT_LE(must(heap->check()).spans_in_use, 4U);
}

TEST(HeapThreadEndTest, blocks_outlive_the_thread_that_made_them) {
  const TestHeap heap;
  std::vector<void*> blocks(500);
  std::thread([&] {
    for (void*& block : blocks) block = heap->allocate(100);
  }).join();
  for (void* block : blocks) heap->deallocate(block);
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

// Destructors of thread-local objects run after the heap has taken leave of the thread.
struct AtEnd {
  Heap* heap = nullptr;
  void* block = nullptr;
  ~AtEnd() {
    if (heap == nullptr) return;
    heap->deallocate(block);
    void* last = heap->allocate(100);
    std::memset(last, 1, 100);
    heap->deallocate(last);
  }
};

TEST(HeapThreadEndTest, a_thread_may_allocate_and_free_to_its_very_end) {
  const TestHeap heap;
  for (int i = 0; i < 50; ++i) {
    std::thread([&] {
      static thread_local AtEnd at_end;  // made first, so destroyed last
      at_end.heap = &*heap;
      at_end.block = heap->allocate(100);
    }).join();
  }
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

TEST(HeapThreadEndTest, a_heap_may_end_before_the_threads_that_used_it) {
  std::atomic<int> step = 0;
  auto heap = std::make_unique<TestHeap>();
  std::thread thread([&] {
    (*heap)->allocate(100);
    step = 1;
    while (step != 2) std::this_thread::yield();
    const TestHeap other;
    EXPECT_NE(other->allocate(100), nullptr);
  });
  while (step != 1) std::this_thread::yield();
  heap.reset();
  step = 2;
  thread.join();
}

// By another thread and then by its own, before the heap has heard of the first.
void free_twice(Heap& heap) {
  void* block = heap.allocate(100);
  std::thread([&] { heap.deallocate(block); }).join();
  heap.deallocate(block);
  heap.settle();
}

TEST(HeapThreadsDeathTest, a_double_free_by_two_threads_is_found_when_they_meet) {
  const TestHeap heap;
  EXPECT_EXIT(
      free_twice(*heap), testing::KilledBySignal(SIGABRT),
      "^pagetide: heap corruption: double free in the span at 0x[0-9a-f]+: by its own thread "
      "and by another\n$");
}

TEST(HeapManyTest, one_thread_uses_many_heaps_in_turn) {
  std::vector<std::unique_ptr<TestHeap>> heaps(9);
  for (auto& heap : heaps) heap = std::make_unique<TestHeap>(4_MiB);
  RandomSource random;
  std::vector<std::pair<TestHeap*, void*>> blocks;
  for (std::size_t i = 0; i < scaled(20'000); ++i) {
    TestHeap& heap = *heaps[random.below(heaps.size())];
    if (blocks.size() < 500 || random.one_in(2)) {
      if (void* block = heap->allocate(random.between(1, 500))) blocks.emplace_back(&heap, block);
    } else {
      std::swap(blocks[random.below(blocks.size())], blocks.back());
      (*blocks.back().first)->deallocate(blocks.back().second);
      blocks.pop_back();
    }
  }
  for (const auto& [heap, block] : blocks) (*heap)->deallocate(block);
  for (const auto& heap : heaps) EXPECT_EQ(must((*heap)->check()).live_blocks, 0U);
}

TEST(HeapErrnoTest, free_keeps_errno) {
  const TestHeap heap;
  std::vector<void*> blocks;
  for (const std::size_t bytes : {16U, 1000U, 30'000U, 1'000'000U}) {
    for (int i = 0; i < 200; ++i) blocks.push_back(heap->allocate(bytes));
  }
  for (void* block : blocks) {
    errno = EXFULL;
    heap->deallocate(block);
    ASSERT_EQ(errno, EXFULL);
  }
}

}  // namespace
}  // namespace pagetide
