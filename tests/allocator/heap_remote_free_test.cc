// Threads that free what others allocated, and owners that take that in, are held between two steps
// of the protocol in docs/heap.md. Only in builds that have race points.

#include "pagetide/allocator/heap_race_points.h"

#ifdef PAGETIDE_CHECK_LOCK_RANKS

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pagetide/allocator/heap.h"
#include "tests/support/must.h"
#include "tests/support/test_heap.h"

namespace pagetide {
namespace {

using namespace literals;

// Race points that the calling thread passes before it is held at one; it is held at none below 1.
thread_local int points_to_go = 0;
std::atomic<bool> is_held = false;
std::atomic<bool> may_go_on = false;

void hold_at_the_last_point() {
  if (points_to_go == 0 || --points_to_go > 0) return;
  is_held = true;
  while (!may_go_on) std::this_thread::yield();
}

// A thread that is held at a race point of what it does while this lives.
class Held {
 public:
  Held(int point, std::function<void()> act) {
    is_held = false;
    may_go_on = false;
    race_point_hook = hold_at_the_last_point;
    thread_ = std::thread([point, act = std::move(act)] {
      points_to_go = point;
      act();
    });
    while (!is_held) std::this_thread::yield();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    may_go_on = true;
    thread_.join();
    race_point_hook = nullptr;
  }

 private:
  std::thread thread_;
};

class RemoteFreeTest : public testing::TestWithParam<int> {
 protected:
  static constexpr std::size_t kBytes = 512;  // 128 slots, two words
  static constexpr std::size_t kSlots = layout::kSpanBytes / kBytes;

  // All slots of so many spans.
  std::vector<void*> allocate_spans(std::size_t spans) {
    std::vector<void*> blocks(spans * kSlots);
    for (void*& block : blocks) block = heap_->allocate(kBytes);
    return blocks;
  }
  void free_by_another_thread(const std::vector<void*>& blocks) {
    std::thread([&] {
      for (void* block : blocks) heap_->deallocate(block);
    }).join();
  }
  std::uint64_t spans_in_use() { return must(heap_->check()).spans_in_use; }

  TestHeap heap_;
};

class HeldFreeTest : public RemoteFreeTest {};

std::string point_name(const testing::TestParamInfo<int>& point) {
  return point.param == 1 ? "before_R2" : point.param == 2 ? "before_R3" : "in_R3";
}

INSTANTIATE_TEST_SUITE_P(held, HeldFreeTest, testing::Values(1, 2, 3), point_name);

// Everything else of the span is free, and its owner has taken in what there is and gives away all
// that is empty: not this span, which the thread is about to put on a list.
TEST_P(HeldFreeTest, a_span_that_a_thread_is_at_work_on_is_not_given_away) {
  std::vector<void*> blocks = allocate_spans(1);
  void* last = blocks.back();
  blocks.pop_back();
  {
    const Held held(GetParam(), [&] { heap_->deallocate(last); });
    free_by_another_thread(blocks);
    heap_->settle();
    heap_->trim();
    EXPECT_EQ(spans_in_use(), 1U);
  }
  heap_->settle();
  heap_->trim();
  EXPECT_EQ(spans_in_use(), 0U);
}

// In the other word of the span, which is drained meanwhile and noted anew.
TEST_P(HeldFreeTest, a_free_that_takes_its_time_is_not_lost) {
  const std::vector<void*> blocks = allocate_spans(1);
  {
    const Held held(GetParam(), [&] { heap_->deallocate(blocks.back()); });
    free_by_another_thread({blocks[0]});
    heap_->settle();
    free_by_another_thread({blocks[1]});
  }
  EXPECT_EQ(must(heap_->check()).live_blocks, blocks.size() - 3);
}

class HeldDrainTest : public RemoteFreeTest {};

std::string drain_point_name(const testing::TestParamInfo<int>& point) {
  return point.param == 1 ? "before_D3" : "before_D4";
}

INSTANTIATE_TEST_SUITE_P(held, HeldDrainTest, testing::Values(1, 2), drain_point_name);

// The owner takes in two spans, and is held at the first. That one's other word gets a free, so
// that it may be put on the list anew; the second span is not to be forgotten over that.
TEST_P(HeldDrainTest, a_free_into_a_span_that_is_drained_loses_none) {
  std::vector<void*> blocks;
  {
    const Held owner(GetParam(), [&] {
      blocks = allocate_spans(2);
      free_by_another_thread({blocks[0], blocks[kSlots]});
      EXPECT_NE(heap_->allocate(kBytes), nullptr);
    });
    free_by_another_thread({blocks[kSlots + kSlots / 2]});
  }
  EXPECT_EQ(must(heap_->check()).live_blocks, blocks.size() - 3 + 1);
}

}  // namespace
}  // namespace pagetide

#endif
