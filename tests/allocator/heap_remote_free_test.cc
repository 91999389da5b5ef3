// A thread that frees what another one allocated is held between two steps of the protocol in
// docs/heap.md. Only in builds that have race points.

#include "pagetide/allocator/heap_race_points.h"

#ifdef PAGETIDE_CHECK_LOCK_RANKS

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
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

// A thread that frees a block and is held at a race point of it while this lives.
class HeldFree {
 public:
  HeldFree(Heap& heap, void* block, int point) {
    is_held = false;
    may_go_on = false;
    race_point_hook = hold_at_the_last_point;
    thread_ = std::thread([&heap, block, point] {
      points_to_go = point;
      heap.deallocate(block);
    });
    while (!is_held) std::this_thread::yield();
  }
  HeldFree(const HeldFree&) = delete;
  HeldFree& operator=(const HeldFree&) = delete;
  ~HeldFree() {
    may_go_on = true;
    thread_.join();
    race_point_hook = nullptr;
  }

 private:
  std::thread thread_;
};

class HeldFreeTest : public testing::TestWithParam<int> {
 protected:
  static constexpr std::size_t kBytes = 512;  // 128 slots, two words

  // All slots of the heap's one span.
  std::vector<void*> allocate_span() {
    std::vector<void*> blocks(layout::kSpanBytes / kBytes);
    for (void*& block : blocks) block = heap_->allocate(kBytes);
    EXPECT_EQ(spans_in_use(), 1U);
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

std::string point_name(const testing::TestParamInfo<int>& point) {
  return point.param == 1 ? "before_R2" : point.param == 2 ? "before_R3" : "in_R3";
}

INSTANTIATE_TEST_SUITE_P(held, HeldFreeTest, testing::Values(1, 2, 3), point_name);

// Everything else of the span is free, and its owner has taken in what there is and gives away all
// that is empty: not this span, which the thread is about to put on a list.
TEST_P(HeldFreeTest, a_span_that_a_thread_is_at_work_on_is_not_given_away) {
  std::vector<void*> blocks = allocate_span();
  void* last = blocks.back();
  blocks.pop_back();
  {
    const HeldFree held(*heap_, last, GetParam());
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
  const std::vector<void*> blocks = allocate_span();
  {
    const HeldFree held(*heap_, blocks.back(), GetParam());
    free_by_another_thread({blocks[0]});
    heap_->settle();
    free_by_another_thread({blocks[1]});
  }
  EXPECT_EQ(must(heap_->check()).live_blocks, blocks.size() - 3);
}

}  // namespace
}  // namespace pagetide

#endif
