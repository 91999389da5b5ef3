// Frees of what is not allocated, under a policy that reports them. heap_test.cc has the default.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/allocator/arena.h"
#include "tests/support/heap_model.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;

struct Report {
  std::string message;
  const void* block;
};

class HeapCorruptionTest : public testing::Test {
 protected:
  HeapCorruptionTest() { heap_->set_on_corruption({add_report, &reports_}); }

  static void add_report(const char* message, const void* block, void* context) {
    static_cast<std::vector<Report>*>(context)->push_back({message, block});
    errno = EXFULL;
  }
  std::byte* allocate(std::size_t bytes) { return static_cast<std::byte*>(heap_->allocate(bytes)); }
  // Frees it and looks at what is said, and that nothing changed.
  void expect_report(void* block, const std::string& before, const std::string& after) {
    std::ostringstream message;
    message << "heap corruption: " << before << block << after;
    const HeapStats stats = must(heap_->check());
    reports_.clear();
    errno = 0;
    heap_->deallocate(block);
    EXPECT_EQ(errno, 0);
    ASSERT_EQ(reports_.size(), 1U);
    EXPECT_EQ(reports_[0].message, message.str());
    EXPECT_EQ(reports_[0].block, block);
    EXPECT_EQ(must(heap_->check()).live_bytes, stats.live_bytes);
  }

  TestHeap heap_;
  std::vector<Report> reports_;
};

TEST_F(HeapCorruptionTest, a_double_free_is_reported) {
  std::byte* block = allocate(100);
  heap_->deallocate(block);
  expect_report(block, "double free of ", "");
}

TEST_F(HeapCorruptionTest, a_double_free_of_what_another_thread_has_freed_is_reported) {
  std::byte* block = allocate(100);
  std::thread([&] { heap_->deallocate(block); }).join();
  std::thread([&] {
    heap_->deallocate(block);
    heap_->deallocate(block);
  }).join();
  EXPECT_EQ(reports_.size(), 2U);
  EXPECT_EQ(must(heap_->check()).live_blocks, 0U);
}

TEST_F(HeapCorruptionTest, a_double_free_of_a_large_block_is_reported) {
  std::byte* block = allocate(200'000);
  heap_->deallocate(block);
  expect_report(block, "invalid free of ", ": nothing is allocated there");
}

TEST_F(HeapCorruptionTest, a_free_of_an_interior_pointer_is_reported) {
  std::byte* small = allocate(100);
  std::byte* large = allocate(200'000);
  expect_report(small + 8, "invalid free of ", ": not the start of an allocated block");
  expect_report(large + 16, "invalid free of ", ": not the start of an allocated block");
  expect_report(large + 64_KiB, "invalid free of ", ": nothing is allocated there");
}

TEST_F(HeapCorruptionTest, a_free_of_a_foreign_pointer_is_reported) {
  int on_the_stack = 0;
  expect_report(&on_the_stack, "invalid free of ", ": outside the arena's data");
}

TEST_F(HeapCorruptionTest, a_reallocation_of_what_is_not_allocated_is_reported) {
  std::byte* block = allocate(100);
  std::byte* freed = allocate(100);
  heap_->deallocate(freed);
  int on_the_stack = 0;
  const std::array<void*, 3> invalid = {freed, block + 16, &on_the_stack};
  for (void* each : invalid) EXPECT_EQ(heap_->reallocate(each, 10'000), nullptr);
  ASSERT_EQ(reports_.size(), invalid.size());
  for (std::size_t i = 0; i < invalid.size(); ++i) {
    EXPECT_EQ(reports_[i].block, invalid[i]);
    EXPECT_THAT(reports_[i].message, testing::StartsWith("heap corruption: invalid reallocation"));
  }
  EXPECT_EQ(must(heap_->check()).live_blocks, 1U);
}

TEST_F(HeapCorruptionTest, what_was_live_keeps_its_content) {
  std::byte* block = allocate(100);
  block[0] = std::byte{7};
  heap_->deallocate(block + 8);
  EXPECT_EQ(block[0], std::byte{7});
}

TEST_F(HeapCorruptionTest, the_heap_is_as_usable_as_before) {
  RandomSource random;
  HeapModel model(*heap_, random);
  std::vector<std::byte*> freed;
  for (std::size_t step = 0; step < scaled(5000); ++step) {
    ASSERT_EQ(model.step(), "");
    std::byte* anywhere = heap_.data() + random.below(32_MiB);
    // An address that is no multiple of 16 is no block's.
    if (random.one_in(4))
      heap_->deallocate(anywhere - reinterpret_cast<std::uintptr_t>(anywhere) % 16 + 1);
  }
  EXPECT_GT(reports_.size(), scaled(5000) / 8);
  EXPECT_EQ(model.check(), "");
}

struct Reentry {
  Heap* heap;
  void* block;
};

TEST_F(HeapCorruptionTest, a_report_may_use_the_heap) {
  std::byte* block = allocate(100);
  heap_->deallocate(block);
  Reentry reentry{&*heap_, nullptr};
  heap_->set_on_corruption({[](const char*, const void*, void* context) {
                              auto* r = static_cast<Reentry*>(context);
                              r->block = r->heap->allocate(200'000);
                              r->heap->deallocate(r->heap->allocate(100));
                            },
                            &reentry});
  heap_->deallocate(block);
  EXPECT_EQ(heap_->usable_size(reentry.block), 256_KiB);
}

TEST(ArenaCorruptionTest, the_options_of_an_arena_have_it_reported) {
  int reports = 0;
  Arena arena = must(Arena::create({.name = "reports",
                                    .reserve_bytes = 16_MiB,
                                    .on_corruption = {[](const char*, const void*, void* context) {
                                                        ++*static_cast<int*>(context);
                                                      },
                                                      &reports}}));
  void* block = must(arena.allocate(100));
  arena.deallocate(block);
  arena.deallocate(block);
  EXPECT_EQ(reports, 1);
}

// By its own thread and by another, before the heap has heard of the one.
void free_by_two(Heap& heap) {
  void* block = heap.allocate(100);
  std::thread([&] { heap.deallocate(block); }).join();
  heap.deallocate(block);
  heap.settle();
}

using HeapCorruptionDeathTest = HeapCorruptionTest;

TEST_F(HeapCorruptionDeathTest, what_is_found_too_late_to_be_ignored_aborts) {
  EXPECT_EXIT(
      free_by_two(*heap_), testing::KilledBySignal(SIGABRT),
      "^pagetide: heap corruption: double free in the span at 0x[0-9a-f]+: by its own thread "
      "and by another\n$");
}

}  // namespace
}  // namespace pagetide
