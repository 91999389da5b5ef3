#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "pagetide/allocator/heap.h"
#include "tests/support/heap_model.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/test_heap.h"

// A heap whose bytes were replaced by those of an earlier moment, or by damaged ones.

namespace pagetide {
namespace {

using namespace literals;
using layout::kSpanBytes;
using layout::SpanEntry;
using layout::SpanKind;

// What a heap's region holds, up to its last span in use. All behind it is zero.
class HeapImage {
 public:
  explicit HeapImage(TestHeap& heap)
      : bytes_(heap.region().base(), heap.region().base() + used_bytes(heap)) {}

  static std::size_t used_bytes(TestHeap& heap) {
    return heap->geometry().data_offset + heap.superblock().spans_used * kSpanBytes;
  }
  std::size_t size() const { return bytes_.size(); }
  // Puts the bytes back, and zeros where the heap has grown since.
  void put_back(TestHeap& heap) const {
    const std::size_t used = used_bytes(heap);
    if (used > size()) std::memset(heap.region().base() + size(), 0, used - size());
    copy_to(heap.region().base());
  }
  void copy_to(std::byte* base) const { std::memcpy(base, bytes_.data(), size()); }

 private:
  std::vector<std::byte> bytes_;
};

TEST(HeapRebuildTest, an_untouched_heap_stays_as_it_is) {
  RandomSource random;
  TestHeap heap;
  HeapModel model(*heap, random);
  must(heap->rebuild());
  for (int i = 0; i < 300; ++i) ASSERT_EQ(model.step(), "");
  must(heap->rebuild());
  EXPECT_EQ(model.check(), "");
  for (int i = 0; i < 300; ++i) ASSERT_EQ(model.step(), "");
  EXPECT_EQ(model.check(), "");
}

TEST(HeapRebuildTest, a_heap_goes_on_from_any_moment_that_is_put_back) {
  RandomSource random;
  TestHeap heap;
  HeapModel model(*heap, random);
  std::vector<std::pair<HeapImage, HeapModel>> moments;
  moments.emplace_back(heap, model);
  for (std::size_t round = 0; round < scaled(30); ++round) {
    for (std::size_t i = random.below(200); i > 0; --i) ASSERT_EQ(model.step(), "");
    if (moments.size() < 5) {
      moments.emplace_back(heap, model);
    } else {
      moments.erase(moments.begin() + static_cast<std::ptrdiff_t>(random.below(moments.size())));
    }
    const auto& [image, model_then] = moments[random.below(moments.size())];
    image.put_back(heap);
    model = model_then;
    must(heap->rebuild());
    ASSERT_EQ(model.check(), "");
  }
  ASSERT_EQ(model.free_all(), "");
  EXPECT_EQ(model.check(), "");
}

TEST(HeapRebuildTest, spans_full_of_small_slots_go_on_too) {
  RandomSource random;
  TestHeap heap(16_MiB);
  HeapModel model(*heap, random, HeapModel::kManySmall);
  for (std::size_t round = 0; round < scaled(4); ++round) {
    for (int i = 0; i < 10'000; ++i) ASSERT_EQ(model.step(), "");
    const HeapImage image(heap);
    const HeapModel then = model;
    for (int i = 0; i < 20'000; ++i) ASSERT_EQ(model.step(), "");
    image.put_back(heap);
    model = then;
    must(heap->rebuild());
    ASSERT_EQ(model.check(), "");
    for (int i = 0; i < 20'000; ++i) ASSERT_EQ(model.step(), "");
    ASSERT_EQ(model.check(), "");
  }
}

TEST(HeapRebuildTest, another_heap_at_the_same_base_takes_over_the_bytes) {
  RandomSource random;
  auto heap = std::make_unique<TestHeap>();
  HeapModel model(**heap, random);
  for (int i = 0; i < 500; ++i) ASSERT_EQ(model.step(), "");
  (*heap)->set_holds_code_addresses();
  const HeapImage image(*heap);
  RegionOptions options;
  options.base = heap->region().range().begin;
  options.reserve_bytes = heap->region().range().size;
  heap.reset();

  Region region = must(Region::reserve(options));
  must(Heap::commit_image(region, image.size()));
  image.copy_to(region.base());
  const std::unique_ptr<Heap> attached = must(Heap::attach(region, ClearPolicy::on_free));
  model.attach(*attached);
  EXPECT_EQ(attached->name(), "test heap");
  EXPECT_TRUE(attached->holds_code_addresses());
  EXPECT_FALSE(attached->free_bytes_are_zero()) << "nobody said so of these bytes";
  ASSERT_EQ(model.check(), "");
  for (int i = 0; i < 500; ++i) ASSERT_EQ(model.step(), "");
  EXPECT_EQ(model.check(), "");
}

TEST(HeapRebuildTest, attaching_to_zeros_is_refused) {
  RegionOptions options;
  options.reserve_bytes = 1_MiB;
  Region region = must(Region::reserve(options));
  must(Heap::commit_image(region, 0));
  const auto heap = Heap::attach(region, ClearPolicy::never);
  ASSERT_FALSE(heap);
  EXPECT_EQ(heap.error().code(), ErrorCode::damaged);
  EXPECT_EQ(heap.error().message(), "the region does not begin with a Pagetide heap.");
}

// --- damage ---

// A heap in which every kind of span is known: 0 has slots of 16 bytes, 1 of 112, 2 to 4 are one
// large block, 5 is free, 6 has slots of 32 KiB.
struct KnownHeap {
  KnownHeap() {
    heap->allocate(16);
    heap->allocate(112);
    large = heap->allocate(3 * kSpanBytes);
    void* hole = heap->allocate(kSpanBytes);
    heap->allocate(32_KiB);
    heap->deallocate(hole);
  }
  TestHeap heap{2_MiB};
  void* large = nullptr;
};

TEST(DamagedHeapTest, the_known_heap_is_as_it_says) {
  KnownHeap known;
  TestHeap& heap = known.heap;
  EXPECT_EQ(heap.superblock().spans_used, 7U);
  const std::array<SpanKind, 7> kinds = {SpanKind::small, SpanKind::small, SpanKind::large,
                                         SpanKind::free,  SpanKind::free,  SpanKind::free,
                                         SpanKind::small};
  for (std::size_t span = 0; span < 7; ++span) EXPECT_EQ(heap.entry(span).kind, kinds.at(span));
  EXPECT_EQ(heap.entry(2).run_spans, 3U);
  EXPECT_EQ(heap.bitmap_word(0, 0), 1U);
  EXPECT_TRUE(heap->check());
  EXPECT_TRUE(heap->rebuild());
}

struct Damage {
  const char* name;
  std::function<void(TestHeap&)> apply;
};

void PrintTo(const Damage& damage, std::ostream* out) {
  *out << damage.name;
}

// Everything that a pass over the span table and the bitmaps of spans in use can see.
const Damage kDamages[] = {
    {"magic", [](TestHeap& h) { h.superblock().magic[0] = 'x'; }},
    {"spans_used", [](TestHeap& h) { h.superblock().spans_used = UINT64_MAX; }},
    {"unknown_kind", [](TestHeap& h) { h.entry(0).kind = static_cast<SpanKind>(3); }},
    {"class_beyond_the_last", [](TestHeap& h) { h.entry(0).size_class = layout::kSizeClasses; }},
    {"small_run_of_none", [](TestHeap& h) { h.entry(1).run_spans = 0; }},
    {"small_run_of_two", [](TestHeap& h) { h.entry(1).run_spans = 2; }},
    {"reserved", [](TestHeap& h) { h.entry(1).reserved = 1; }},
    {"large_run_of_none", [](TestHeap& h) { h.entry(2).run_spans = 0; }},
    {"large_run_beyond_the_end", [](TestHeap& h) { h.entry(2).run_spans = 6; }},
    {"large_run_of_4_G", [](TestHeap& h) { h.entry(2).run_spans = UINT32_MAX; }},
    {"large_with_a_class", [](TestHeap& h) { h.entry(2).size_class = 1; }},
    {"large_run_over_a_small_span", [](TestHeap& h) { h.entry(2).run_spans = 5; }},
    {"entry_inside_a_large_run",
     [](TestHeap& h) {
       h.entry(3) = {SpanKind::large, 0, 0, 1};
     }},
    {"free_with_a_class", [](TestHeap& h) { h.entry(5).size_class = 1; }},
    {"free_with_a_run", [](TestHeap& h) { h.entry(5).run_spans = 1; }},
    // 32 KiB: two slots.
    {"more_bits_than_slots", [](TestHeap& h) { h.bitmap_word(6, 0) = 7; }},
    {"a_bit_beyond_the_last_slot", [](TestHeap& h) { h.bitmap_word(6, 0) = 5; }},
    // 112 bytes: 585 slots in ten words.
    {"a_bit_beyond_the_last_slot_of_many",
     [](TestHeap& h) { h.bitmap_word(1, 9) = std::uint64_t{1} << 40; }},
};

class HeapDamageTest : public testing::TestWithParam<Damage> {};

INSTANTIATE_TEST_SUITE_P(of, HeapDamageTest, testing::ValuesIn(kDamages),
                         [](const auto& damage) { return std::string(damage.param.name); });

TEST_P(HeapDamageTest, is_found_by_rebuild_and_check) {
  KnownHeap known;
  TestHeap& heap = known.heap;
  GetParam().apply(heap);
  const auto rebuilt = heap->rebuild();
  ASSERT_FALSE(rebuilt);
  EXPECT_EQ(rebuilt.error().code(), ErrorCode::damaged) << rebuilt.error().message();
  const auto checked = heap->check();
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), ErrorCode::damaged) << checked.error().message();
}

TEST_P(HeapDamageTest, is_refused_by_attach) {
  KnownHeap known;
  GetParam().apply(known.heap);
  // Two heaps over one region: only to ask.
  const auto attached = Heap::attach(known.heap.region(), ClearPolicy::on_free);
  ASSERT_FALSE(attached);
  EXPECT_EQ(attached.error().code(), ErrorCode::damaged) << attached.error().message();
}

// Allocates until nothing is left; every block must be a block of its own inside the data.
std::string use_up(Heap& heap, RandomSource& random) {
  std::map<std::byte*, std::size_t> blocks;
  std::string wrong;
  const auto add = [&](std::byte* block, std::size_t size) {
    const auto next = blocks.lower_bound(block);
    if (!heap.owns(block) || !heap.owns(block + size - 1)) wrong = "a block outside the data";
    if (next != blocks.end() && block + size > next->first) wrong = "overlapping blocks";
    if (next != blocks.begin()) {
      const auto last = std::prev(next);
      if (last->first + last->second > block) wrong = "overlapping blocks";
    }
    blocks.emplace(block, size);
  };
  heap.for_each_allocation(
      [&](void* block, std::size_t size) { add(static_cast<std::byte*>(block), size); });
  int refused = 0;
  while (refused < 100 && wrong.empty()) {
    const std::size_t kind = random.below(3);
    const std::size_t bytes = random.below(kind == 0 ? 100 : kind == 1 ? 20'000 : 200'000);
    auto* block = static_cast<std::byte*>(heap.allocate(bytes));
    if (block == nullptr) {
      ++refused;
      continue;
    }
    add(block, heap.usable_size(block));
    if (!wrong.empty()) break;
    std::memset(block, 0xab, heap.usable_size(block));
    if (random.one_in(3)) {
      heap.deallocate(block);
      blocks.erase(block);
    }
  }
  return wrong;
}

// Bits that stand where no slots are cost too much to look for at each rebuild: check() finds
// them, and nothing goes wrong when the span is used.
TEST(DamagedHeapTest, bits_without_slots_are_found_by_check_and_harmless) {
  RandomSource random;
  for (const std::size_t span : {2U, 3U, 5U, 6U}) {
    KnownHeap known;
    TestHeap& heap = known.heap;
    for (std::size_t word = 1; word < 64; ++word) heap.bitmap_word(span, word) = ~std::uint64_t{0};
    if (span != 6) heap.bitmap_word(span, 0) = ~std::uint64_t{0};
    if (span != 3) {
      const auto checked = heap->check();
      ASSERT_FALSE(checked);
      EXPECT_EQ(checked.error().code(), ErrorCode::damaged);
    }
    if (!heap->rebuild()) continue;  // better still
    heap->deallocate(known.large);
    EXPECT_EQ(use_up(*heap, random), "") << span;
  }
}

// Damages the metadata that describes spans in use.
void damage_at_random(TestHeap& heap, RandomSource& random) {
  const std::size_t used = heap.superblock().spans_used;
  for (std::size_t i = random.between(1, 10); i > 0; --i) {
    const std::size_t span = random.below(used);
    switch (random.below(6)) {
      case 0: {
        auto* bytes = reinterpret_cast<unsigned char*>(&heap.entry(span));
        bytes[random.below(sizeof(SpanEntry))] = static_cast<unsigned char>(random.next());
        break;
      }
      case 1:
        heap.entry(span) = heap.entry(random.below(used));
        break;
      case 2:
        heap.entry(span) = {};
        break;
      case 3:
        heap.bitmap_word(span, random.below(64)) ^= std::uint64_t{1} << random.below(64);
        break;
      case 4:
        heap.bitmap_word(span, random.below(64)) = random.next();
        break;
      default:
        heap.bitmap_word(span, random.below(64)) = ~std::uint64_t{0};
    }
  }
  if (random.one_in(20)) heap.superblock().spans_used = random.below(2 * used);
}

TEST(DamagedHeapTest, random_damage_is_an_error_or_harmless_and_never_a_crash) {
  RandomSource random;
  std::size_t refused = 0;
  std::size_t accepted = 0;
  for (std::size_t round = 0; round < scaled(300); ++round) {
    TestHeap heap(3_MiB);
    HeapModel model(*heap, random);
    for (int i = 0; i < 60; ++i) ASSERT_EQ(model.step(), "");
    damage_at_random(heap, random);
    if (const auto r = heap->rebuild(); !r) {
      ASSERT_EQ(r.error().code(), ErrorCode::damaged) << r.error().message();
      ASSERT_FALSE(heap->check()) << "check must find what rebuild found";
      ++refused;
      continue;
    }
    (void)heap->check();
    ASSERT_EQ(use_up(*heap, random), "");
    ++accepted;
  }
  std::printf("%zu refused, %zu harmless\n", refused, accepted);
  EXPECT_GT(refused, 0U);
  EXPECT_GT(accepted, 0U);
}

}  // namespace
}  // namespace pagetide
