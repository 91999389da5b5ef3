// A million random operations against a model that knows every live block.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "pagetide/allocator/heap.h"
#include "pagetide/base/hash.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;

// Small blocks are filled with words that depend on where they stand; of large ones as many words
// as a page has lines.
class PatternModel {
 public:
  PatternModel(Heap& heap, RandomSource& random) : heap_(heap), random_(random) {}

  void step() {
    // Grows and shrinks by turns, so that spans come and go.
    if (random_.one_in(20'000)) wanted_ = random_.between(10, 6000);
    const bool grow = random_.below(2 * wanted_) >= blocks_.size();
    if (random_.one_in(100)) return grow ? allocate_batch() : free_batch();
    if (grow || blocks_.empty()) return allocate();
    forget(any_block());
  }
  void free_all() {
    while (!blocks_.empty()) forget(blocks_.begin());
  }
  // The walk, the check and all statistics agree with the model.
  void compare() const {
    auto expected = blocks_.begin();
    heap_.for_each_allocation([&](void* block, std::size_t usable) {
      ASSERT_NE(expected, blocks_.end());
      ASSERT_EQ(expected->first, block);
      ASSERT_EQ(expected->second, usable);
      ++expected;
    });
    ASSERT_EQ(expected, blocks_.end());
    std::uint64_t bytes = 0;
    std::map<std::size_t, std::uint64_t> of_size;
    for (const auto& [block, usable] : blocks_) {
      bytes += usable;
      ++of_size[usable];
    }
    const auto stats = heap_.check();
    ASSERT_TRUE(stats) << stats.error().message();
    EXPECT_EQ(stats->live_blocks, blocks_.size());
    EXPECT_EQ(stats->live_bytes, bytes);
    for (const ClassStats& of_class : heap_.class_stats()) {
      EXPECT_EQ(of_class.live, of_size[of_class.slot_bytes]) << of_class.slot_bytes;
    }
  }
  std::size_t size() const { return blocks_.size(); }

 private:
  using Blocks = std::map<std::byte*, std::size_t>;  // usable sizes

  void allocate() {
    const std::size_t bytes = random_size();
    const std::size_t alignment =
        random_.one_in(8) ? std::size_t{1} << random_.below(18) : std::size_t{16};
    const bool zeroed = random_.one_in(4);
    // Without an alignment it takes the fast path.
    add(zeroed            ? heap_.allocate_zeroed(bytes, alignment)
        : alignment == 16 ? heap_.allocate(bytes)
                          : heap_.allocate(bytes, alignment),
        bytes, alignment, zeroed);
  }
  void allocate_batch() {
    const std::size_t bytes = random_size();
    std::vector<void*> blocks(bytes > 40'000 ? 4 : random_.between(0, 64));
    const std::size_t made = heap_.allocate_batch(bytes, blocks);
    ASSERT_EQ(made, blocks.size());
    for (void* block : blocks) add(block, bytes, 16, false);
  }
  void free_batch() {
    std::vector<void*> blocks(random_.below(65));
    for (void*& block : blocks) {
      if (blocks_.empty()) break;
      const auto at = any_block();
      check_pattern(at->first, at->second);
      block = at->first;
      blocks_.erase(at);
    }
    heap_.deallocate_batch(blocks);
  }
  void add(void* allocated, std::size_t bytes, std::size_t alignment, bool zeroed) {
    auto* block = static_cast<std::byte*>(allocated);
    ASSERT_NE(block, nullptr);
    const std::size_t usable = heap_.usable_size(block);
    ASSERT_GE(usable, std::max<std::size_t>(bytes, 1));
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block) % std::max<std::size_t>(alignment, 16), 0U);
    // Under deferred whatever is handed out was cleared.
    if (zeroed || heap_.clear_policy() == ClearPolicy::deferred) {
      ASSERT_TRUE(is_all_zero(block, usable));
    }
    const auto [at, is_new] = blocks_.emplace(block, usable);
    ASSERT_TRUE(is_new);
    if (std::next(at) != blocks_.end()) {
      ASSERT_LE(block + usable, std::next(at)->first);
    }
    if (at != blocks_.begin()) {
      ASSERT_LE(std::prev(at)->first + std::prev(at)->second, block);
    }
    for_each_word(block, usable, [](std::uint64_t& word, std::uint64_t value) { word = value; });
  }
  void forget(Blocks::iterator at) {
    const auto [block, usable] = *at;
    ASSERT_EQ(heap_.usable_size(block), usable);
    check_pattern(block, usable);
    blocks_.erase(at);
    heap_.deallocate(block);
    if (heap_.clear_policy() == ClearPolicy::on_free) {
      ASSERT_TRUE(is_all_zero(block, std::min<std::size_t>(usable, 1024)));
    }
  }
  void check_pattern(std::byte* block, std::size_t usable) {
    bool intact = true;
    for_each_word(block, usable, [&](std::uint64_t& word, std::uint64_t value) {
      intact = intact && word == value;
    });
    ASSERT_TRUE(intact) << "at " << block;
  }
  template <typename Use>
  void for_each_word(std::byte* block, std::size_t usable, Use&& use) {
    auto* words = reinterpret_cast<std::uint64_t*>(block);
    const std::size_t count = usable / sizeof(std::uint64_t);
    const std::size_t stride = usable <= 512 ? 1 : 63;
    const auto use_word = [&](std::size_t i) {
      use(words[i], reinterpret_cast<std::uintptr_t>(words + i) * 0x9e37'79b9'7f4a'7c15U);
    };
    for (std::size_t i = 0; i < count; i += stride) use_word(i);
    use_word(count - 1);
  }
  Blocks::iterator any_block() {
    std::byte* first = blocks_.begin()->first;
    const auto bytes = static_cast<std::size_t>(blocks_.rbegin()->first - first);
    return std::prev(blocks_.upper_bound(first + random_.below(bytes + 1)));
  }
  // Every class alike among the larger ones, more of the small; now and then whole spans.
  std::size_t random_size() {
    if (random_.one_in(300)) return random_.between(32_KiB + 1, 700'000);
    const std::size_t classes = random_.one_in(8) ? layout::kSizeClasses : 16;
    const std::size_t c = random_.below(classes);
    return random_.between(c == 0 ? 0 : layout::kSlotBytes[c - 1] + 1, layout::kSlotBytes[c]);
  }

  Heap& heap_;
  RandomSource& random_;
  Blocks blocks_;
  std::size_t wanted_ = 3000;
};

class HeapModelTest : public testing::TestWithParam<ClearPolicy> {};

INSTANTIATE_TEST_SUITE_P(under, HeapModelTest,
                         testing::Values(ClearPolicy::deferred, ClearPolicy::on_free,
                                         ClearPolicy::never),
                         [](const auto& policy) { return name_of(policy.param); });

TEST_P(HeapModelTest, a_million_operations_agree_with_the_model) {
  const std::size_t steps = scaled(1'000'000);
  RandomSource random;
  TestHeap heap(1_GiB, GetParam());
  PatternModel model(*heap, random);
  for (std::size_t step = 0; step < steps; ++step) {
    model.step();
    if (step % 25'000 == 0) model.compare();
    // Epochs change where slots come from.
    if (random.one_in(5000)) {
      must(heap.region().tracker().collect(heap.region().watch(), CollectMode::take));
    }
    if (HasFatalFailure()) FAIL() << "after " << step << " steps";
  }
  model.compare();
  model.free_all();
  model.compare();
  EXPECT_EQ(must(heap->check()).live_blocks, 0U);
}

}  // namespace
}  // namespace pagetide
