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
#include <thread>
#include <vector>

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
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  stopped = false;
  go_on = false;
  std::atomic<bool> over = false;
  const std::uint64_t seed = test_seed();
  std::thread thread([&] { hammer(*heap, seed, over); });
  RandomSource random(seed + 1);
  std::string wrong;
  for (std::size_t round = 0; round < scaled(3000) && wrong.empty(); ++round) {
    for (std::size_t spin = random.below(2000); spin > 0; --spin)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    ASSERT_EQ(::pthread_kill(thread.native_handle(), SIGUSR1), 0);
    while (!stopped) ::sched_yield();
    stopped = false;
    if (const auto stats = heap->check(); !stats) wrong = stats.error().message();
    go_on = true;
    while (go_on) ::sched_yield();
  }
  over = true;
  thread.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(wrong, "");
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

}  // namespace
}  // namespace pagetide
