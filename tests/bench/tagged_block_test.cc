#include "bench/heap/tagged_block.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

namespace pagetide::bench {
namespace {

// An allocator that is as broken as a test wants it.
alignas(16) std::array<char, 256> memory;

void* always_the_same(std::size_t) {
  return memory.data();
}
void* nothing(std::size_t) {
  return nullptr;
}
void keep(void*) {}
void* move_without_content(void*, std::size_t, std::size_t) {
  return memory.data() + 128;
}

const testing::ExitedWithCode kStopped(1);

class TaggedBlockTest : public testing::Test {
 protected:
  TaggedBlockTest() { set_source({&always_the_same, &keep, &move_without_content}); }
};

TEST_F(TaggedBlockTest, a_block_that_kept_its_bytes_is_released) {
  TaggedBlock block = make_block(100, 1);
  release(block);
  EXPECT_EQ(block.at, nullptr);
}

TEST_F(TaggedBlockTest, the_smallest_block_has_both_patterns) {
  TaggedBlock block = make_block(TaggedBlock::kMinBytes, 1);
  memory[7] = static_cast<char>(memory[7] ^ 1);
  EXPECT_EXIT(release(block), kStopped, "changed while it was in use");
  memory[7] = static_cast<char>(memory[7] ^ 1);
  memory[8] = static_cast<char>(memory[8] ^ 1);
  EXPECT_EXIT(release(block), kStopped, "changed while it was in use");
}

TEST_F(TaggedBlockTest, a_change_of_the_last_byte_is_noticed) {
  TaggedBlock block = make_block(99, 1);
  memory[98] = static_cast<char>(memory[98] ^ 1);
  EXPECT_EXIT(release(block), kStopped, "changed while it was in use");
}

TEST_F(TaggedBlockTest, memory_that_was_handed_out_twice_is_noticed) {
  TaggedBlock first = make_block(64, 1);
  const TaggedBlock second = make_block(64, 2);
  ASSERT_EQ(first.at, second.at);
  EXPECT_EXIT(release(first), kStopped, "changed while it was in use");
}

TEST_F(TaggedBlockTest, growing_that_loses_the_content_is_noticed) {
  TaggedBlock block = make_block(32, 1);
  EXPECT_EXIT(grow(block, 64), kStopped, "changed while it was in use");
}

TEST_F(TaggedBlockTest, exhaustion_stops_the_worker) {
  set_source({&nothing, &keep, &move_without_content});
  EXPECT_EXIT((void)make_block(64, 1), kStopped, "exhausted");
}

TEST_F(TaggedBlockTest, a_block_that_grew_has_its_pattern_at_the_new_end) {
  set_source({&std::malloc, &std::free, [](void* block, std::size_t, std::size_t bytes) {
                return std::realloc(block, bytes);
              }});
  TaggedBlock block = make_block(32, 1);
  grow(block, 4096);
  block.data()[4095] = static_cast<char>(block.data()[4095] ^ 1);
  EXPECT_EXIT(release(block), kStopped, "changed while it was in use");
  block.data()[4095] = static_cast<char>(block.data()[4095] ^ 1);
  release(block);
}

}  // namespace
}  // namespace pagetide::bench
