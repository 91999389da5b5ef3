#include "pagetide/allocator/span_supply.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/base/hash.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"

namespace pagetide {
namespace {

using namespace literals;
using layout::kSpanBytes;

class SpanSupplyTest : public testing::Test {
 protected:
  static constexpr std::size_t kReserveBytes = 16_MiB;

  SpanSupplyTest()
      : region_(must(Region::reserve(options()))),
        geometry_(must(layout::geometry_for(kReserveBytes))),
        supply_(must(SpanSupply::create(region_, geometry_, ClearPolicy::on_free))) {}

  static RegionOptions options() {
    RegionOptions result;
    result.reserve_bytes = kReserveBytes;
    return result;
  }
  std::size_t spans() const { return geometry_.span_count; }
  std::byte* data(std::size_t span) const {
    return region_.base() + geometry_.data_offset + span * kSpanBytes;
  }
  // The first span of a run; nullopt when it is exhausted.
  std::optional<std::size_t> try_allocate(std::size_t count, std::size_t alignment = 1) {
    const auto run = supply_.allocate(count, alignment, high_water_);
    return run ? std::optional(run->first) : std::nullopt;
  }
  std::size_t allocate(std::size_t count, std::size_t alignment = 1) {
    return try_allocate(count, alignment).value();
  }
  void release(std::size_t first, std::size_t count) {
    supply_.release(first, count, RunContent::unknown);
  }
  ByteRange bytes(std::size_t first, std::size_t count) const {
    return ByteRange::of(data(first), count * kSpanBytes);
  }
  Collected take() { return must(region_.tracker().collect(region_.watch(), CollectMode::take)); }

  Region region_;
  layout::Geometry geometry_;
  SpanSupply supply_;
  std::uint64_t high_water_ = 0;
};

// The slow twin: tries every run, lowest first.
class Model {
 public:
  Model(std::size_t spans, std::uintptr_t origin) : used_(spans, false), origin_(origin) {}

  std::optional<std::size_t> allocate(std::size_t count, std::size_t alignment) {
    for (std::size_t first = 0; first + count <= used_.size(); ++first) {
      if ((origin_ + first * kSpanBytes) % (alignment * kSpanBytes) != 0) continue;
      if (std::any_of(at(first), at(first + count), [](bool used) { return used; })) continue;
      std::fill(at(first), at(first + count), true);
      return first;
    }
    return std::nullopt;
  }
  void release(std::size_t first, std::size_t count) {
    std::fill(at(first), at(first + count), false);
  }
  void mark(std::size_t first, std::size_t count) { std::fill(at(first), at(first + count), true); }
  std::size_t used() const {
    return static_cast<std::size_t>(std::count(used_.begin(), used_.end(), true));
  }

 private:
  std::vector<bool>::iterator at(std::size_t i) {
    return used_.begin() + static_cast<std::ptrdiff_t>(i);
  }
  std::vector<bool> used_;
  std::uintptr_t origin_;
};

TEST_F(SpanSupplyTest, gives_the_lowest_fitting_run_of_zeros_as_the_model_does) {
  RandomSource random;
  Model model(spans(), reinterpret_cast<std::uintptr_t>(data(0)));
  std::map<std::size_t, std::size_t> runs;  // first, count
  std::size_t high_water = 0;
  for (std::size_t step = 0; step < scaled(1500); ++step) {
    if (runs.empty() || random.one_in(2)) {
      const std::size_t count =
          random.one_in(3) ? random.between(1, spans() / 4) : random.between(1, 4);
      const std::size_t alignment = std::size_t{1} << random.below(random.one_in(4) ? 6 : 1);
      const auto expected = model.allocate(count, alignment);
      const auto got = try_allocate(count, alignment);
      ASSERT_EQ(got, expected) << count << " spans aligned to " << alignment;
      if (got) {
        ASSERT_TRUE(is_all_zero(data(*got), count * kSpanBytes));
        std::memset(data(*got), 7, count * kSpanBytes);
        high_water = std::max(high_water, *got + count);
        runs.emplace(*got, count);
      }
    } else {
      const auto run =
          std::next(runs.begin(), static_cast<std::ptrdiff_t>(random.below(runs.size())));
      release(run->first, run->second);
      model.release(run->first, run->second);
      ASSERT_TRUE(is_all_zero(data(run->first), run->second * kSpanBytes));
      runs.erase(run);
    }
    ASSERT_EQ(supply_.used_spans(), model.used());
    ASSERT_EQ(high_water_, high_water);
  }
}

TEST_F(SpanSupplyTest, can_hand_out_every_span_and_no_more) {
  for (std::size_t span = 0; span < spans(); ++span) {
    ASSERT_EQ(try_allocate(1), span);
    std::memset(data(span), 1, kSpanBytes);
  }
  EXPECT_EQ(try_allocate(1), std::nullopt);
  release(spans() - 1, 1);
  EXPECT_EQ(try_allocate(2), std::nullopt);
  EXPECT_EQ(try_allocate(1), spans() - 1);
  EXPECT_EQ(high_water_, spans());
}

TEST_F(SpanSupplyTest, can_hand_out_everything_as_one_run) {
  EXPECT_EQ(try_allocate(spans() + 1), std::nullopt);
  EXPECT_EQ(try_allocate(spans()), 0U);
  EXPECT_EQ(supply_.used_spans(), spans());
}

TEST_F(SpanSupplyTest, a_failed_allocation_changes_nothing) {
  allocate(2);
  EXPECT_EQ(try_allocate(spans()), std::nullopt);
  EXPECT_EQ(supply_.used_spans(), 2U);
  EXPECT_EQ(high_water_, 2U);
  EXPECT_EQ(allocate(1), 2U);
}

TEST_F(SpanSupplyTest, a_released_run_that_is_armed_is_purged_and_logged) {
  allocate(8);
  std::memset(data(0), 1, 8 * kSpanBytes);
  take();
  release(2, 4);
  EXPECT_EQ(resident_pages(bytes(2, 4)), 0U);
  const Collected collected = take();
  EXPECT_FALSE(collected.written.any());
  const std::size_t first = static_cast<std::size_t>(data(2) - region_.base()) / page_size();
  const std::size_t pages = 4 * kSpanBytes / page_size();
  EXPECT_EQ(collected.zeroed.next_run(0), (PageRange{first, pages}));
  EXPECT_EQ(collected.zeroed.count(), pages);
  EXPECT_EQ(supply_.idle_spans(), 0U);
}

TEST_F(SpanSupplyTest, a_released_run_that_is_not_armed_is_cleared_and_stays_in_memory) {
  const std::size_t pages = 4 * kSpanBytes / page_size();
  allocate(4);
  take();
  std::memset(data(0), 1, 4 * kSpanBytes);
  release(0, 4);
  EXPECT_EQ(resident_pages(bytes(0, 4)), pages);
  EXPECT_TRUE(is_all_zero(data(0), 4 * kSpanBytes));
  EXPECT_EQ(supply_.idle_spans(), 4U);
  const Collected collected = take();
  EXPECT_EQ(collected.written.count(), pages);
  EXPECT_FALSE(collected.zeroed.any());
}

TEST_F(SpanSupplyTest, a_run_that_its_user_knows_to_be_zero_is_not_written_to) {
  allocate(4);
  std::memset(data(0), 1, kSpanBytes);
  std::memset(data(0), 0, kSpanBytes);
  take();
  supply_.release(0, 4, RunContent::zero);
  const Collected collected = take();
  EXPECT_FALSE(collected.written.any());
  EXPECT_FALSE(collected.zeroed.any());
}

TEST_F(SpanSupplyTest, idle_spans_are_those_that_stayed_until_they_are_used) {
  allocate(6);
  std::memset(data(0), 1, 6 * kSpanBytes);
  release(0, 3);
  EXPECT_EQ(supply_.idle_spans(), 3U);
  allocate(2);
  EXPECT_EQ(supply_.idle_spans(), 1U);
  take();
  release(3, 3);
  EXPECT_EQ(supply_.idle_spans(), 1U);
  must(supply_.reset(6));
  EXPECT_EQ(supply_.idle_spans(), 0U);
}

TEST_F(SpanSupplyTest, memory_that_was_never_handed_out_is_known_to_be_zero) {
  EXPECT_TRUE(supply_.allocate(3, 1, high_water_).value().known_zero);
}

TEST_F(SpanSupplyTest, a_run_that_came_back_is_known_to_be_zero_whichever_way_it_became_so) {
  for (const bool armed : {false, true}) {
    const std::size_t first = allocate(3);
    std::memset(data(first), 1, 3 * kSpanBytes);
    if (armed) take();
    release(first, 3);
    const SpanRun again = supply_.allocate(3, 1, high_water_).value();
    EXPECT_EQ(again.first, first);
    EXPECT_TRUE(again.known_zero) << armed;
    EXPECT_TRUE(is_all_zero(data(first), 3 * kSpanBytes)) << armed;
    release(first, 3);
  }
}

TEST_F(SpanSupplyTest, after_a_reset_nothing_below_the_high_water_mark_is_known_to_be_zero) {
  allocate(4);
  release(0, 4);
  must(supply_.reset(4));
  EXPECT_FALSE(supply_.allocate(2, 1, high_water_).value().known_zero);
  // From here on fresh memory follows.
  EXPECT_FALSE(supply_.allocate(4, 1, high_water_).value().known_zero);
  EXPECT_TRUE(supply_.allocate(1, 1, high_water_).value().known_zero);
}

TEST_F(SpanSupplyTest, what_came_back_after_a_reset_is_known_again) {
  must(supply_.reset(4));
  std::memset(data(0), 1, 4 * kSpanBytes);
  EXPECT_FALSE(supply_.allocate(2, 1, high_water_).value().known_zero);
  release(0, 2);
  EXPECT_TRUE(supply_.allocate(2, 1, high_water_).value().known_zero);
  EXPECT_FALSE(supply_.allocate(2, 1, high_water_).value().known_zero);
}

// A region with room for more than stays idle, and a clock of its own.
class SpanSupplyIdleTest : public testing::Test {
 protected:
  static constexpr std::size_t kCount = SpanSupply::kMinIdleSpans;

  SpanSupplyIdleTest()
      : region_(must(Region::reserve(options()))),
        geometry_(must(layout::geometry_for(options().reserve_bytes))),
        supply_(must(SpanSupply::create(region_, geometry_, ClearPolicy::on_free, &now))) {
    now_ms = 5000;
  }
  static RegionOptions options() {
    RegionOptions result;
    result.reserve_bytes = 1_GiB;
    return result;
  }
  static std::uint64_t now() { return now_ms; }
  std::byte* data(std::size_t span) const {
    return region_.base() + geometry_.data_offset + span * kSpanBytes;
  }
  std::size_t resident_spans(std::size_t count) const {
    return resident_pages(ByteRange::of(data(0), count * kSpanBytes)) * page_size() / kSpanBytes;
  }
  void allocate(std::size_t count) { ASSERT_TRUE(supply_.allocate(count, 1, high_water_)); }

  static inline std::uint64_t now_ms = 0;
  Region region_;
  layout::Geometry geometry_;
  SpanSupply supply_;
  std::uint64_t high_water_ = 0;
};

TEST_F(SpanSupplyIdleTest, no_more_than_a_bound_stays_in_memory) {
  for (int i = 0; i < 3; ++i) allocate(kCount);
  std::memset(data(0), 1, 3 * kCount * kSpanBytes);
  // What was in use lately stays; then it goes as more comes back.
  supply_.release(0, kCount, RunContent::unknown);
  supply_.release(kCount, kCount, RunContent::unknown);
  EXPECT_EQ(supply_.idle_spans(), 2 * kCount);
  EXPECT_EQ(resident_spans(3 * kCount), 3 * kCount);
  for (int seconds = 0; seconds < 2; ++seconds) {
    now_ms += 1000;
    supply_.release(2 * kCount + static_cast<std::size_t>(seconds), 1, RunContent::unknown);
  }
  EXPECT_EQ(supply_.idle_spans(), kCount);
  EXPECT_EQ(resident_spans(3 * kCount), 2 * kCount - 2);
}

// With a heap that shrinks the bound shrinks too.
TEST_F(SpanSupplyIdleTest, the_bound_follows_what_is_in_use) {
  constexpr std::size_t kRun = 16;
  constexpr std::size_t kRuns = 800;  // 800 MiB, of which one page each is touched
  for (std::size_t i = 0; i < kRuns; ++i) {
    allocate(kRun);
    *data(i * kRun) = std::byte{1};
  }
  std::size_t most = 0;
  for (std::size_t i = 0; i < kRuns; ++i) {
    now_ms += 2000;
    supply_.release(i * kRun, kRun, RunContent::zero);  // they are not: that does not matter here
    most = std::max(most, supply_.idle_spans());
    // This run was in use till now, and the one before it when the bound was looked at last.
    const std::size_t lately = supply_.used_spans() + 2 * kRun;
    ASSERT_LE(supply_.idle_spans(),
              std::max({kCount, supply_.used_spans() / SpanSupply::kIdlePart,
                        lately + lately / SpanSupply::kRecentPart - supply_.used_spans()}));
  }
  EXPECT_GT(most, kCount);
  EXPECT_EQ(supply_.used_spans(), 0U);
  // What went back to the system is prefilled and zero when it is used again.
  const SpanRun all = supply_.allocate(kRun * kRuns, 1, high_water_).value();
  EXPECT_EQ(all.first, 0U);
  EXPECT_EQ(supply_.idle_spans(), 0U);
}

TEST_F(SpanSupplyIdleTest, trim_gives_everything_back) {
  allocate(20);
  std::memset(data(0), 1, 20 * kSpanBytes);
  supply_.release(3, 4, RunContent::unknown);
  supply_.release(10, 2, RunContent::unknown);
  EXPECT_EQ(supply_.trim(), 6U);
  EXPECT_EQ(supply_.idle_spans(), 0U);
  EXPECT_EQ(resident_spans(20), 14U);
  EXPECT_EQ(supply_.trim(), 0U);
  EXPECT_TRUE(supply_.allocate(4, 1, high_water_).value().known_zero);
}

// A run grows where it is.

TEST_F(SpanSupplyTest, a_run_takes_free_spans_behind_it) {
  allocate(4);
  EXPECT_EQ(supply_.extend(0, 4, 6, high_water_), true);
  EXPECT_EQ(supply_.used_spans(), 6U);
  EXPECT_EQ(allocate(1), 6U);
}

TEST_F(SpanSupplyTest, a_run_whose_neighbour_is_in_use_stays_as_it_is) {
  allocate(4);
  allocate(1);
  EXPECT_EQ(supply_.extend(0, 4, 5, high_water_), std::nullopt);
  EXPECT_EQ(supply_.used_spans(), 5U);
}

TEST_F(SpanSupplyTest, a_run_does_not_grow_beyond_the_reservation) {
  allocate(4);
  EXPECT_EQ(supply_.extend(0, 4, spans() + 1, high_water_), std::nullopt);
  EXPECT_EQ(supply_.extend(0, 4, spans(), high_water_), true);
  EXPECT_EQ(try_allocate(1), std::nullopt);
}

TEST_F(SpanSupplyTest, what_a_run_grows_by_is_known_to_be_zero_or_not) {
  allocate(8);
  release(4, 4);
  EXPECT_EQ(supply_.extend(0, 4, 6, high_water_), true);
  must(supply_.reset(8));
  supply_.mark_used(0, 6);
  EXPECT_EQ(supply_.extend(0, 6, 7, high_water_), false);
}

// Under the other policies what comes back is as it was.
TEST(SpanSupplyKeepsTest, a_released_run_is_not_written_to) {
  for (const ClearPolicy policy : {ClearPolicy::deferred, ClearPolicy::never}) {
    RegionOptions options;
    options.reserve_bytes = 16_MiB;
    Region region = must(Region::reserve(options));
    const layout::Geometry geometry = must(layout::geometry_for(options.reserve_bytes));
    SpanSupply supply = must(SpanSupply::create(region, geometry, policy));
    std::uint64_t high_water = 0;
    ASSERT_TRUE(supply.allocate(4, 1, high_water));
    std::byte* const data = region.base() + geometry.data_offset;
    std::memset(data, 0xab, 4 * kSpanBytes);
    must(region.tracker().collect(region.watch(), CollectMode::take));
    supply.release(0, 4, RunContent::unknown);
    EXPECT_EQ(supply.idle_spans(), 4U);
    EXPECT_FALSE(must(region.tracker().collect(region.watch(), CollectMode::take)).written.any());
    EXPECT_EQ(data[4 * kSpanBytes - 1], std::byte{0xab});
    EXPECT_FALSE(supply.allocate(2, 1, high_water).value().known_zero);
  }
}

TEST_F(SpanSupplyTest, handed_out_spans_are_tracked_exactly_also_the_second_time) {
  const auto written_after_reads = [&](std::size_t span) {
    must(region_.tracker().collect(region_.watch(), CollectMode::take));
    for (std::size_t i = 0; i < kSpanBytes; i += page_size()) {
      EXPECT_EQ(*reinterpret_cast<volatile char*>(data(span) + i), 0);
    }
    return must(region_.tracker().collect(region_.watch(), CollectMode::take)).written.count();
  };
  for (int round = 0; round < 3; ++round) {
    const std::size_t span = allocate(1);
    EXPECT_EQ(written_after_reads(span), 0U) << round;
    *reinterpret_cast<volatile char*>(data(span)) = 1;
    EXPECT_EQ(must(region_.tracker().collect(region_.watch(), CollectMode::take)).written.count(),
              1U);
    release(span, 1);
  }
}

TEST_F(SpanSupplyTest, locked_memory_that_comes_back_is_zero_all_the_same) {
  const std::size_t span = allocate(1);
  std::memset(data(span), 7, kSpanBytes);
  ASSERT_TRUE(lock_memory(ByteRange::of(data(span), kSpanBytes)));
  take();
  release(span, 1);
  EXPECT_TRUE(is_all_zero(data(span), kSpanBytes));
  // Its pages changed, so a take must name them.
  EXPECT_EQ(must(region_.tracker().collect(region_.watch(), CollectMode::take)).written.count(),
            kSpanBytes / page_size());
  EXPECT_EQ(allocate(1), span);
  ::munlock(data(span), kSpanBytes);
}

TEST_F(SpanSupplyTest, after_a_reset_it_knows_what_it_was_told) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(200); ++round) {
    Model model(spans(), reinterpret_cast<std::uintptr_t>(data(0)));
    const std::size_t high_water = random.below(spans() + 1);
    must(supply_.reset(high_water));
    for (std::size_t span = 0; span < high_water;) {
      const std::size_t count = random.between(1, std::min<std::size_t>(9, high_water - span));
      if (random.one_in(2)) {
        supply_.mark_used(span, count);
        model.mark(span, count);
        // Committed: the heap reads its bytes in.
        *reinterpret_cast<volatile char*>(data(span) + count * kSpanBytes - 1) = 0;
      }
      span += count;
    }
    ASSERT_EQ(supply_.used_spans(), model.used());
    high_water_ = high_water;
    for (int i = 0; i < 20; ++i) {
      const std::size_t count = random.between(1, 6);
      ASSERT_EQ(try_allocate(count), model.allocate(count, 1));
    }
    ASSERT_EQ(supply_.used_spans(), model.used());
  }
}

TEST_F(SpanSupplyTest, moving_keeps_what_is_handed_out) {
  allocate(3);
  SpanSupply moved(std::move(supply_));
  EXPECT_EQ(moved.used_spans(), 3U);
  EXPECT_EQ(moved.allocate(1, 1, high_water_).value().first, 3U);
}

TEST_F(SpanSupplyTest, threads_never_get_the_same_span) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i, seed = static_cast<std::uint64_t>(i)] {
      RandomSource random(seed);
      const auto mark = static_cast<unsigned char>(i + 1);
      for (std::size_t step = 0; step < scaled(400); ++step) {
        const std::size_t count = random.between(1, 8);
        const auto first = try_allocate(count);
        if (!first) continue;
        ASSERT_TRUE(is_all_zero(data(*first), count * kSpanBytes));
        std::memset(data(*first), mark, count * kSpanBytes);
        std::this_thread::yield();
        for (std::size_t at = 0; at < count * kSpanBytes; at += 509) {
          ASSERT_EQ(static_cast<unsigned char>(data(*first)[at]), mark);
        }
        release(*first, count);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(supply_.used_spans(), 0U);
}

TEST_F(SpanSupplyTest, a_machine_without_memory_is_exhaustion_and_passes) {
  allocate(1);
  std::optional<std::size_t> committed;
  std::optional<std::size_t> beyond;
  {
    const NoMoreMemory limit;
    // The rest of the first step is committed already.
    committed = try_allocate(SpanSupply::kCommitSpans - 1);
    beyond = try_allocate(1);
  }
  EXPECT_EQ(committed, 1U);
  EXPECT_EQ(beyond, std::nullopt);
  EXPECT_EQ(supply_.used_spans(), SpanSupply::kCommitSpans);
  EXPECT_EQ(allocate(1), SpanSupply::kCommitSpans);
}

// --- near -------------------------------------------------------------------------------------

class NearTest : public SpanSupplyTest {
 protected:
  std::size_t allocate_near(std::size_t neighbour) {
    return supply_.allocate_near(neighbour, high_water_).value().first;
  }
  std::uintptr_t block_of(std::size_t span) const {
    return reinterpret_cast<std::uintptr_t>(data(span)) / (SpanSupply::kBlockSpans * kSpanBytes);
  }
};

TEST_F(NearTest, a_block_is_filled_before_the_next_one_is_begun) {
  std::size_t newest = allocate(1);
  std::set<std::uintptr_t> blocks;
  for (std::size_t i = 0; i < 3 * SpanSupply::kBlockSpans; ++i) {
    newest = allocate_near(newest);
    blocks.insert(block_of(newest));
  }
  EXPECT_LE(blocks.size(), 4U);
}

TEST_F(NearTest, others_leave_a_begun_block_alone) {
  std::size_t newest = allocate(1);
  while (block_of(newest) == block_of(0)) newest = allocate_near(newest);
  for (std::size_t i = 0; i < 2 * SpanSupply::kBlockSpans; ++i) {
    ASSERT_NE(block_of(allocate(1)), block_of(newest));
  }
}

TEST_F(NearTest, others_take_a_begun_block_when_there_is_nothing_else) {
  std::size_t newest = allocate(1);
  while (block_of(newest) == block_of(0)) newest = allocate_near(newest);
  std::size_t count = supply_.used_spans();
  while (try_allocate(1)) ++count;
  EXPECT_EQ(count, spans());
}

TEST_F(NearTest, a_block_of_which_something_came_back_is_for_everybody) {
  std::size_t newest = allocate(1);
  while (block_of(newest) == block_of(0)) newest = allocate_near(newest);
  release(allocate_near(newest), 1);
  std::set<std::uintptr_t> blocks;
  for (std::size_t i = 0; i < SpanSupply::kBlockSpans; ++i) blocks.insert(block_of(allocate(1)));
  EXPECT_TRUE(blocks.contains(block_of(newest)));
}

}  // namespace
}  // namespace pagetide
