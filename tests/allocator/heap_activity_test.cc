// Threads are stopped by a signal in the middle of what they do, but never inside the heap.

#include "pagetide/allocator/heap_activity.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <future>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/allocator/root_table.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;

std::atomic<int> calls = 0;
void count_call() {
  ++calls;
}

class HeapActivityTest : public testing::Test {
 protected:
  HeapActivityTest() { calls = 0; }
};

TEST_F(HeapActivityTest, a_thread_outside_the_heap_is_stopped_at_once) {
  request_stop_when_outside(count_call);
  EXPECT_EQ(calls, 1);
  { const InHeap in_heap; }
  EXPECT_EQ(calls, 1);
}

TEST_F(HeapActivityTest, a_thread_inside_is_stopped_when_it_leaves) {
  {
    const InHeap in_heap;
    {
      const InHeap within;
      request_stop_when_outside(count_call);
    }
    EXPECT_EQ(calls, 0);
  }
  EXPECT_EQ(calls, 1);
  { const InHeap in_heap; }
  EXPECT_EQ(calls, 1);
}

TEST_F(HeapActivityTest, another_thread_inside_does_not_matter) {
  const InHeap in_heap;
  std::thread([] { request_stop_when_outside(count_call); }).join();
  EXPECT_EQ(calls, 1);
}

void call_and_set_errno() {
  ++calls;
  errno = EXFULL;
}

TEST_F(HeapActivityTest, a_stop_keeps_errno) {
  errno = 0;
  {
    const InHeap in_heap;
    request_stop_when_outside(call_and_set_errno);
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(errno, 0);
}

// --- signals ---

// The stopped thread waits here until it may go on.
std::atomic<bool> stopped = false;
std::atomic<bool> go_on = false;

void wait_in_stop() {
  stopped = true;
  while (!go_on) ::sched_yield();
  go_on = false;
}

void on_signal(int) {
  const int kept_errno = errno;
  request_stop_when_outside(wait_in_stop);
  errno = kept_errno;
}

// Stops a thread wherever a signal finds it, or a little later if that is inside the heap.
class SignalStops {
 public:
  explicit SignalStops(std::uint64_t seed) : random_(seed) {
    stopped = false;
    go_on = false;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    EXPECT_EQ(::sigaction(SIGUSR1, &action, &before_), 0);
  }
  SignalStops(const SignalStops&) = delete;
  SignalStops& operator=(const SignalStops&) = delete;
  ~SignalStops() { ::sigaction(SIGUSR1, &before_, nullptr); }

  // Calls look() while the thread is stopped.
  template <typename Look>
  void stop(std::thread& thread, Look&& look) {
    for (std::size_t spin = random_.below(2000); spin > 0; --spin)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    EXPECT_EQ(::pthread_kill(thread.native_handle(), SIGUSR1), 0);
    while (!stopped) ::sched_yield();
    stopped = false;
    look();
    go_on = true;
    while (go_on) ::sched_yield();
  }

 private:
  struct sigaction before_ {};
  RandomSource random_;
};

// Allocates and frees, mostly small blocks, in a set that changes its size slowly.
void hammer(Heap& heap, std::uint64_t seed, const std::atomic<bool>& over) {
  RandomSource random(seed);
  std::array<void*, 300> blocks{};
  while (!over) {
    for (int i = 0; i < 100; ++i) {
      void*& block = blocks[random.below(blocks.size())];
      if (block != nullptr) {
        heap.deallocate(block);
        block = nullptr;
      } else {
        block = heap.allocate(random.one_in(1000) ? random.between(40'000, 200'000)
                                                  : random.between(1, 2000));
      }
    }
    ::sched_yield();  // where ThreadSanitizer lets signals in
  }
  for (void* block : blocks) heap.deallocate(block);
}

// Proof that the thread is outside: what a snapshot does in the stop works. The check takes every
// lock of the heap (and would wait for ever where the thread holds one), and finds counts that do
// not agree with the bitmaps.
TEST(HeapSignalTest, a_signal_stops_no_thread_inside_the_heap) {
  const TestHeap heap(64_MiB);
  std::atomic<bool> over = false;
  const std::uint64_t seed = test_seed();
  SignalStops stops(seed + 1);
  std::thread thread([&] { hammer(*heap, seed, over); });
  std::string wrong;
  for (std::size_t round = 0; round < scaled(3000) && wrong.empty(); ++round) {
    stops.stop(thread, [&] {
      if (const auto stats = heap->check(); !stats) wrong = stats.error().message();
    });
  }
  over = true;
  thread.join();
  EXPECT_EQ(wrong, "");
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

// One operation of a table that has so many roots already. None allocates memory outside the table:
// a thread that is stopped in malloc() may hold what others wait for.
struct RootUse {
  const char* name;
  std::size_t roots;
  void (*use)(RootTable& table, const Root& root);
};
// Not its bytes: addresses differ from run to run.
void PrintTo(const RootUse& use, std::ostream* out) {
  *out << use.name;
}

class RootSignalTest : public testing::TestWithParam<RootUse> {};

INSTANTIATE_TEST_SUITE_P(
    that, RootSignalTest,
    testing::Values(
        RootUse{"finds", 255,
                [](RootTable& table, const Root& root) { must(table.find(root.name)); }},
        RootUse{"sets", 255, [](RootTable& table, const Root& root) { must(table.set(root)); }},
        RootUse{"inserts_and_erases", 255,
                [](RootTable& table, const Root& root) {
                  must(table.erase(root.name));
                  must(table.insert(root));
                }},
        RootUse{"lists", 0, [](RootTable& table, const Root&) { (void)table.list(); }}),
    [](const auto& use) { return std::string(use.param.name); });

// As above: who looks at the roots during the stop needs their lock.
TEST_P(RootSignalTest, a_signal_stops_no_thread_at_work_on_the_roots) {
  std::vector<layout::RootEntry> entries(layout::kRootCapacity);
  RootTable table(entries.data());
  for (std::size_t i = 0; i < GetParam().roots; ++i) must(table.insert({std::to_string(i)}));
  // The last one, so that finding it takes a while.
  const Root root{"root"};
  if (GetParam().roots > 0) must(table.insert(root));
  std::atomic<bool> over = false;
  SignalStops stops(test_seed());
  std::thread thread([&] {
    while (!over) {
      for (int i = 0; i < 10; ++i) GetParam().use(table, root);
      ::sched_yield();  // where ThreadSanitizer lets signals in
    }
  });
  bool is_free = true;
  for (std::size_t round = 0; round < scaled(500) && is_free; ++round) {
    std::future<void> looked;
    stops.stop(thread, [&] {
      looked = std::async(std::launch::async, [&] { (void)table.list(); });
      is_free = looked.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
    });
  }
  over = true;
  thread.join();
  EXPECT_TRUE(is_free) << "a thread was stopped with the lock of the roots";
}

}  // namespace
}  // namespace pagetide
