// A forked child of a program with threads allocates and frees on, whatever they were doing.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/heap_model.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;

// Of every kind: small, with a tail behind the last slot, of one span, of more.
constexpr std::array<std::size_t, 8> kSizes = {16, 100, 112, 1000, 6000, 32'768, 65'536, 200'000};

struct Block {
  unsigned char* data = nullptr;
  std::size_t bytes = 0;
};

unsigned char content_of(const Block& block) {
  return static_cast<unsigned char>((reinterpret_cast<std::uintptr_t>(block.data) >> 4U) | 1U);
}

Block make_block(Heap& heap, std::size_t bytes) {
  Block block{static_cast<unsigned char*>(heap.allocate(bytes)), bytes};
  if (block.data != nullptr) std::memset(block.data, content_of(block), bytes);
  return block;
}

bool is_intact(const Block& block) {
  return block.data[0] == content_of(block) &&
         std::memcmp(block.data, block.data + 1, block.bytes - 1) == 0;
}

// Threads of the parent that live on, each with its blocks.
class OtherThreads {
 public:
  template <typename Work>
  OtherThreads(std::size_t count, Work work) {
    for (std::size_t t = 0; t < count; ++t) {
      threads_.emplace_back([this, t, work] {
        work(t, over_, [this] { ++ready_; });
        while (!over_) std::this_thread::yield();
      });
    }
    while (ready_ < count) std::this_thread::yield();
  }
  OtherThreads(const OtherThreads&) = delete;
  OtherThreads& operator=(const OtherThreads&) = delete;
  ~OtherThreads() {
    over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> over_ = false;
  std::atomic<std::size_t> ready_ = 0;
  std::vector<std::thread> threads_;
};

class HeapForkThreadsTest : public testing::Test {
 protected:
  static constexpr std::size_t kThreads = 3;

  // What each of them makes for the child to find.
  void make_blocks(std::size_t thread) {
    for (const std::size_t bytes : kSizes) {
      for (int i = 0; i < 40; ++i) blocks_[thread].push_back(make_block(*heap_, bytes));
    }
  }
  std::string free_blocks() {
    for (std::vector<Block>& own : blocks_) {
      for (const Block& block : own) {
        if (!is_intact(block)) return "a block lost its content";
        heap_->deallocate(block.data);
      }
      own.clear();
    }
    return {};
  }
  // Frees one of them, or makes one in its place.
  void change(std::vector<Block>& own, RandomSource& random) {
    Block& block = own[random.below(own.size())];
    if (block.data != nullptr) {
      heap_->deallocate(block.data);
      block = {};
    } else {
      block = make_block(
          *heap_, random.one_in(50) ? random.between(30'000, 300'000) : random.between(1, 3000));
    }
  }
  std::string wrong_with_heap() {
    const auto stats = heap_->check();
    return stats ? "" : stats.error().message();
  }
  std::uint64_t spans() { return must(heap_->check()).spans_in_use; }

  TestHeap heap_{128_MiB};
  std::array<std::vector<Block>, kThreads> blocks_;
};

TEST_F(HeapForkThreadsTest, a_child_frees_what_all_threads_of_its_parent_made) {
  const OtherThreads threads(kThreads, [this](std::size_t t, const auto&, const auto& ready) {
    make_blocks(t);
    ready();
  });
  EXPECT_EQ(run_in_child([&]() -> std::string {
              if (std::string wrong = free_blocks(); !wrong.empty()) return wrong;
              const auto stats = heap_->check();
              if (!stats) return stats.error().message();
              return stats->live_blocks == 0 ? "" : "blocks are left";
            }),
            "");
}

TEST_F(HeapForkThreadsTest, what_a_child_frees_it_uses_again) {
  const OtherThreads threads(kThreads, [this](std::size_t t, const auto&, const auto& ready) {
    make_blocks(t);
    ready();
  });
  EXPECT_EQ(run_in_child([&]() -> std::string {
              const std::uint64_t before = spans();
              for (int round = 0; round < 20; ++round) {
                if (std::string wrong = free_blocks(); !wrong.empty()) return wrong;
                for (std::size_t t = 0; t < kThreads; ++t) make_blocks(t);
              }
              const std::uint64_t after = spans();
              return after <= before
                         ? ""
                         : std::to_string(before) + " spans became " + std::to_string(after);
            }),
            "");
}

// Frees that their owner has not heard of when the process forks, and never will in the child.
TEST_F(HeapForkThreadsTest, what_was_on_its_way_to_another_thread_is_free_in_the_child) {
  const OtherThreads threads(1, [this](std::size_t t, const auto&, const auto& ready) {
    make_blocks(t);
    ready();
  });
  ASSERT_EQ(free_blocks(), "");
  EXPECT_EQ(run_in_child([&]() -> std::string {
              std::size_t live = 0;
              heap_->for_each_allocation([&](void*, std::size_t) { ++live; });
              return live == 0 ? "" : std::to_string(live) + " blocks are live";
            }),
            "");
}

TEST_F(HeapForkThreadsTest, the_child_of_a_child_goes_on_too) {
  const OtherThreads threads(kThreads, [this](std::size_t t, const auto&, const auto& ready) {
    make_blocks(t);
    ready();
  });
  EXPECT_EQ(run_in_child([&]() -> std::string {
              return run_in_child([&]() -> std::string {
                if (std::string wrong = free_blocks(); !wrong.empty()) return wrong;
                return wrong_with_heap();
              });
            }),
            "");
}

// Threads in the midst of all that a heap does are copied at any moment, page after page. What was
// there before is sound in the child, and so is its heap.
TEST_F(HeapForkThreadsTest, threads_may_be_anywhere_in_the_heap_when_the_process_forks) {
  const std::uint64_t seed = test_seed();
  const auto work = [&](std::size_t t, const std::atomic<bool>& over, const auto& ready) {
    RandomSource random(seed + t);
    make_blocks(t);
    ready();
    std::vector<Block> own(100);
    while (!over) change(own, random);
    for (const Block& block : own) heap_->deallocate(block.data);
  };
  const OtherThreads threads(kThreads, work);
  RandomSource random(seed + kThreads);
  std::vector<Block> own(100);
  for (std::size_t fork = 0; fork < scaled(25); ++fork) {
    for (int i = 0; i < 200; ++i) change(own, random);
    ASSERT_EQ(run_in_child([&]() -> std::string {
                if (std::string wrong = wrong_with_heap(); !wrong.empty()) return wrong;
                HeapModel model(*heap_, random);
                for (int i = 0; i < 500; ++i) {
                  if (std::string wrong = model.step(); !wrong.empty()) return wrong;
                }
                if (std::string wrong = free_blocks(); !wrong.empty()) return wrong;
                for (const Block& block : own) {
                  if (block.data != nullptr && !is_intact(block))
                    return "an own block is not intact";
                  heap_->deallocate(block.data);
                }
                if (std::string wrong = model.free_all(); !wrong.empty()) return wrong;
                return wrong_with_heap();
              }),
              "")
        << "fork " << fork;
  }
}

#ifndef __SANITIZE_THREAD__  // a child may start no thread there
TEST_F(HeapForkThreadsTest, threads_of_a_child_take_over_what_those_of_its_parent_left) {
  const OtherThreads threads(kThreads, [this](std::size_t t, const auto&, const auto& ready) {
    make_blocks(t);
    ready();
  });
  EXPECT_EQ(run_in_child([&]() -> std::string {
              std::string wrong;
              std::thread([&] { wrong = free_blocks(); }).join();
              if (!wrong.empty()) return wrong;
              const std::uint64_t before = spans();
              for (int round = 0; round < 10; ++round) {
                std::thread([&] {
                  make_blocks(0);
                  wrong = free_blocks();
                }).join();
                if (!wrong.empty()) return wrong;
              }
              if (spans() > before + 80) return "it grows";
              return wrong_with_heap();
            }),
            "");
}
#endif

}  // namespace
}  // namespace pagetide
