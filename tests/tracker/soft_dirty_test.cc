#include "pagetide/tracker/backends/soft_dirty_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pagetide/tracker/any_backend.h"
#include "pagetide/tracker/tracker.h"
#include "tests/support/child_process.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/tracker/allocation_guard.h"

namespace pagetide {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Pages = std::set<std::size_t>;

// --- a model of the kernel ---

// The soft-dirty bits of one process as the kernel keeps them. Memory is only addresses: nothing
// is mapped. A page that is not in the table is not populated. What a mapping's own flag adds
// (a mapping that was just made or merged shows the bit for all its pages) is in `fresh`.
struct ModelKernel {
  struct Page {
    bool is_dirty = false;
    bool is_swapped = false;
  };
  std::map<std::uintptr_t, Page> pages;  // by address / page_size()
  std::vector<ByteRange> fresh;
  std::vector<ByteRange> shared;

  // What is wrong with it.
  bool has_bits = true;
  bool clears = true;
  bool sets_again = true;
  bool shows_pages = true;
  bool read_fails = false;
  bool clear_fails = false;

  int reads = 0;
  int clears_done = 0;
  std::function<void()> before_clear;  // what other threads do just then

  static std::uintptr_t number(std::uintptr_t address) { return address / page_size(); }

  void write(std::uintptr_t address) {
    Page& page = pages[number(address)];
    page.is_swapped = false;
    if (sets_again || clears_done == 0) page.is_dirty = true;
  }
  void read(std::uintptr_t address) { pages[number(address)].is_swapped = false; }
  void swap_out(std::uintptr_t address) { pages[number(address)].is_swapped = true; }
  void purge(std::uintptr_t address) { pages.erase(number(address)); }

  std::uint64_t entry(std::uintptr_t address) const {
    std::uint64_t bits = 0;
    const bool is_fresh = std::any_of(fresh.begin(), fresh.end(),
                                      [&](ByteRange range) { return range.contains(address); });
    if (is_fresh) bits |= kPagemapSoftDirty;
    if (const auto found = pages.find(number(address)); found != pages.end()) {
      bits |= found->second.is_swapped ? kPagemapSwapped : kPagemapPresent;
      if (found->second.is_dirty) bits |= kPagemapSoftDirty;
    }
    if (!has_bits) bits &= ~kPagemapSoftDirty;
    return shows_pages ? bits : 0;
  }

  void clear() {
    ++clears_done;
    if (!clears) return;
    fresh.clear();
    for (auto& [number, page] : pages) page.is_dirty = false;
  }
};

class FakeSoftDirtyKernel final : public SoftDirtyKernel {
 public:
  explicit FakeSoftDirtyKernel(ModelKernel& model) : model_(model) {}

  Result<void> read_entries(ByteRange range, std::span<std::uint64_t> entries) override {
    ++model_.reads;
    if (model_.read_fails) return system_failure("read the model", EIO);
    EXPECT_EQ(range.size, entries.size() * page_size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i] = model_.entry(range.begin + i * page_size());
    }
    return {};
  }
  Result<void> clear_all() override {
    if (model_.clear_fails) return system_failure("clear the model", EACCES);
    if (model_.before_clear) model_.before_clear();
    model_.clear();
    return {};
  }
  void store(std::uintptr_t address) override { model_.write(address); }
  bool is_private(ByteRange range) override {
    return std::none_of(model_.shared.begin(), model_.shared.end(),
                        [&](ByteRange one) { return !one.intersect(range).empty(); });
  }

 private:
  ModelKernel& model_;
};

// --- tracking on it ---

// Pages of nothing.
class Memory {
 public:
  Memory(ModelKernel& kernel, std::uintptr_t begin, std::size_t count)
      : kernel_(kernel), range_{begin, count * page_size()} {}
  ByteRange range() const { return range_; }
  ByteRange pages(std::size_t first, std::size_t count) const {
    return PageRange{first, count}.bytes_from(range_.begin);
  }
  std::uintptr_t page(std::size_t i) const { return range_.begin + i * page_size(); }
  std::size_t count() const { return range_.size / page_size(); }
  void write(std::size_t i) const { kernel_.write(page(i)); }

 private:
  ModelKernel& kernel_;
  ByteRange range_;
};

constexpr std::uintptr_t kSomewhere = 0x1000'0000'0000;
constexpr std::uintptr_t kElsewhere = 0x2000'0000'0000;

class SoftDirtyTest : public testing::Test {
 protected:
  std::shared_ptr<SoftDirtyProcess> process() {
    if (process_ == nullptr) {
      process_ = must(SoftDirtyProcess::over(std::make_unique<FakeSoftDirtyKernel>(kernel_)));
    }
    return process_;
  }
  SoftDirtyBackend backend() { return SoftDirtyBackend::over(process()); }

  static Pages collect(SoftDirtyBackend& backend, const Memory& memory, ByteRange part,
                       CollectMode mode) {
    DirtyBitmap written(memory.count());
    must(backend.collect(memory.range(), part, mode, written));
    Pages pages;
    for (std::size_t page = 0; page < memory.count(); ++page) {
      if (written.test(page)) pages.insert(page);
    }
    return pages;
  }
  static Pages take(SoftDirtyBackend& backend, const Memory& memory) {
    return collect(backend, memory, memory.range(), CollectMode::take);
  }
  static Pages peek(SoftDirtyBackend& backend, const Memory& memory) {
    return collect(backend, memory, memory.range(), CollectMode::peek);
  }

  ModelKernel kernel_;

 private:
  std::shared_ptr<SoftDirtyProcess> process_;
};

TEST_F(SoftDirtyTest, a_write_is_reported_once) {
  const Memory memory(kernel_, kSomewhere, 64);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  EXPECT_EQ(tracking.kind(), BackendKind::soft_dirty);
  EXPECT_EQ(take(tracking, memory), Pages());
  memory.write(7);
  EXPECT_EQ(take(tracking, memory), (Pages{7}));
  EXPECT_EQ(take(tracking, memory), Pages());
  memory.write(7);
  memory.write(63);
  EXPECT_EQ(take(tracking, memory), (Pages{7, 63}));
  kernel_.read(memory.page(9));
  EXPECT_EQ(take(tracking, memory), Pages());
}

TEST_F(SoftDirtyTest, what_was_populated_before_watching_is_reported_first_whatever_its_bit) {
  const Memory memory(kernel_, kSomewhere, 64);
  memory.write(3);
  kernel_.read(memory.page(4));
  SoftDirtyBackend tracking = backend();  // clears the bits once
  must(tracking.watch(memory.range()));
  EXPECT_EQ(take(tracking, memory), (Pages{3, 4}));
  EXPECT_EQ(take(tracking, memory), Pages());
}

TEST_F(SoftDirtyTest, a_peek_changes_nothing) {
  const Memory memory(kernel_, kSomewhere, 64);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  memory.write(3);
  const int clears = kernel_.clears_done;
  EXPECT_EQ(peek(tracking, memory), (Pages{3}));
  EXPECT_EQ(peek(tracking, memory), (Pages{3}));
  EXPECT_EQ(kernel_.clears_done, clears);
  EXPECT_EQ(take(tracking, memory), (Pages{3}));
  EXPECT_EQ(peek(tracking, memory), Pages());
}

TEST_F(SoftDirtyTest, a_take_of_one_part_keeps_the_dirt_of_the_others) {
  const Memory memory(kernel_, kSomewhere, 300);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  for (std::size_t page = 0; page < 300; ++page) memory.write(page);
  EXPECT_EQ(take(tracking, memory).size(), 300U);
  for (const std::size_t page : {0U, 5U, 100U, 101U, 299U}) memory.write(page);
  EXPECT_EQ(collect(tracking, memory, memory.pages(100, 1), CollectMode::take), (Pages{100}));
  EXPECT_EQ(collect(tracking, memory, memory.pages(101, 50), CollectMode::take), (Pages{101}));
  memory.write(100);
  EXPECT_EQ(peek(tracking, memory), (Pages{0, 5, 100, 299}));
  EXPECT_EQ(take(tracking, memory), (Pages{0, 5, 100, 299}));
  EXPECT_EQ(take(tracking, memory), Pages());
}

TEST_F(SoftDirtyTest, pages_never_collected_before_are_not_lost_to_the_takes_of_others) {
  const Memory memory(kernel_, kSomewhere, 300);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  for (const std::size_t page : {1U, 200U, 201U}) memory.write(page);
  EXPECT_EQ(collect(tracking, memory, memory.pages(0, 100), CollectMode::take), (Pages{1}));
  EXPECT_EQ(collect(tracking, memory, memory.pages(200, 1), CollectMode::take), (Pages{200}));
  EXPECT_EQ(take(tracking, memory), (Pages{201}));
}

TEST_F(SoftDirtyTest, instances_share_the_bits_and_lose_nothing_to_each_other) {
  const Memory one(kernel_, kSomewhere, 64);
  const Memory two(kernel_, kElsewhere, 64);
  SoftDirtyBackend first = backend();
  SoftDirtyBackend second = backend();
  SoftDirtyBackend third = backend();
  must(first.watch(one.range()));
  must(second.watch(two.range()));
  must(third.watch(two.range()));  // the same memory for another consumer
  (void)take(first, one);
  (void)take(second, two);
  (void)take(third, two);
  one.write(1);
  two.write(2);
  EXPECT_EQ(take(first, one), (Pages{1}));
  EXPECT_EQ(take(second, two), (Pages{2}));
  EXPECT_EQ(take(second, two), Pages());
  EXPECT_EQ(take(third, two), (Pages{2}));
}

TEST_F(SoftDirtyTest, an_instance_that_ended_is_gathered_no_more) {
  const Memory one(kernel_, kSomewhere, 64);
  const Memory two(kernel_, kElsewhere, 64);
  SoftDirtyBackend first = backend();
  must(first.watch(one.range()));
  {
    SoftDirtyBackend second = backend();
    must(second.watch(two.range()));
    two.write(1);
    EXPECT_EQ(take(second, two), (Pages{1}));
    SoftDirtyBackend moved = std::move(second);
    two.write(2);
    EXPECT_EQ(take(moved, two), (Pages{2}));
  }
  one.write(1);
  EXPECT_EQ(take(first, one), (Pages{1}));
  kernel_.reads = 0;
  one.write(1);
  EXPECT_EQ(take(first, one), (Pages{1}));
  EXPECT_EQ(kernel_.reads, 3);  // the tripwire, the part, and everything watched
  DirtyBitmap written(64);
  first.unwatch(one.range());
  EXPECT_FALSE(first.collect(one.range(), one.range(), CollectMode::take, written));
}

TEST_F(SoftDirtyTest, a_take_that_finds_nothing_new_clears_nothing) {
  const Memory memory(kernel_, kSomewhere, 64);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  memory.write(1);
  memory.write(40);
  const std::uint64_t before = process()->clearings();
  // The parts of one collect: one clearing for all of them.
  EXPECT_EQ(collect(tracking, memory, memory.pages(0, 32), CollectMode::take), (Pages{1}));
  EXPECT_EQ(collect(tracking, memory, memory.pages(32, 32), CollectMode::take), (Pages{40}));
  EXPECT_LE(process()->clearings(), before + 2);
  memory.write(1);
  memory.write(40);
  const std::uint64_t again = process()->clearings();
  EXPECT_EQ(collect(tracking, memory, memory.pages(0, 32), CollectMode::take), (Pages{1}));
  EXPECT_EQ(collect(tracking, memory, memory.pages(32, 32), CollectMode::take), (Pages{40}));
  EXPECT_EQ(take(tracking, memory), Pages());
  EXPECT_EQ(process()->clearings(), again + 1);
}

TEST_F(SoftDirtyTest, pages_in_swap_keep_their_state) {
  const Memory memory(kernel_, kSomewhere, 8);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  memory.write(1);
  memory.write(2);
  (void)take(tracking, memory);
  memory.write(1);
  kernel_.swap_out(memory.page(1));
  kernel_.swap_out(memory.page(2));
  EXPECT_EQ(take(tracking, memory), (Pages{1}));
}

TEST_F(SoftDirtyTest, purged_pages_are_for_whoever_purged_to_report) {
  const Memory memory(kernel_, kSomewhere, 8);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  memory.write(1);
  (void)take(tracking, memory);
  memory.write(1);
  kernel_.purge(memory.page(1));
  EXPECT_EQ(take(tracking, memory), Pages());
  memory.write(1);
  EXPECT_EQ(take(tracking, memory), (Pages{1}));
}

TEST_F(SoftDirtyTest, merged_mappings_make_surplus_and_no_untouched_pages) {
  const Memory memory(kernel_, kSomewhere, 8);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  memory.write(1);
  memory.write(5);
  (void)take(tracking, memory);
  kernel_.fresh.push_back(memory.range());
  EXPECT_EQ(take(tracking, memory), (Pages{1, 5}));
  EXPECT_EQ(take(tracking, memory), Pages());
}

TEST_F(SoftDirtyTest, ranges_larger_than_one_read_are_read_to_their_end) {
  constexpr std::size_t kPages = 10'000;
  const Memory memory(kernel_, kSomewhere, kPages);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  Pages expected;
  for (std::size_t page = 0; page < kPages; page += 4095) {
    memory.write(page);
    expected.insert(page);
  }
  memory.write(kPages - 1);
  expected.insert(kPages - 1);
  EXPECT_EQ(take(tracking, memory), expected);
  for (const std::size_t page : expected) memory.write(page);
  EXPECT_EQ(collect(tracking, memory, memory.pages(0, 1), CollectMode::take), (Pages{0}));
  expected.erase(0);
  EXPECT_EQ(take(tracking, memory), expected);
}

// --- the race ---

// Why the back end needs writers that are held: there is no third way between these two.
TEST_F(SoftDirtyTest, a_write_between_reading_and_clearing_is_lost_so_writers_must_be_held) {
  static_assert(SoftDirtyBackend::kNeedsStoppedWriters);
  EXPECT_THAT(std::string(SoftDirtyBackend::kLimits), HasSubstr("needs_stopped_writers"));
  const Memory memory(kernel_, kSomewhere, 8);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  memory.write(1);
  memory.write(2);
  (void)take(tracking, memory);

  memory.write(1);
  kernel_.before_clear = [&] { memory.write(2); };
  EXPECT_EQ(take(tracking, memory), (Pages{1}));
  kernel_.before_clear = nullptr;
  EXPECT_EQ(take(tracking, memory), Pages());  // 2 was lost

  // The same writes with the writer held during the take.
  memory.write(1);
  EXPECT_EQ(take(tracking, memory), (Pages{1}));
  memory.write(2);
  EXPECT_EQ(take(tracking, memory), (Pages{2}));
}

// --- others who clear ---

TEST_F(SoftDirtyTest, bits_that_somebody_else_cleared_make_everything_populated_written) {
  const Memory one(kernel_, kSomewhere, 8);
  const Memory two(kernel_, kElsewhere, 8);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(one.range()));
  must(tracking.watch(two.range()));
  for (const std::size_t page : {1U, 2U}) one.write(page);
  two.write(5);
  (void)take(tracking, one);
  (void)take(tracking, two);
  one.write(2);
  kernel_.clear();  // and with it the bit of page 2
  EXPECT_EQ(take(tracking, one), (Pages{1, 2}));
  EXPECT_EQ(take(tracking, two), (Pages{5}));
  EXPECT_EQ(process()->foreign_clearings(), 1U);
  EXPECT_EQ(take(tracking, one), Pages());
  EXPECT_EQ(take(tracking, two), Pages());
  one.write(2);
  EXPECT_EQ(take(tracking, one), (Pages{2}));
  EXPECT_EQ(process()->foreign_clearings(), 1U);
}

// --- failures ---

TEST_F(SoftDirtyTest, after_a_failed_read_no_bit_is_lost) {
  const Memory memory(kernel_, kSomewhere, 8);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  memory.write(1);
  (void)take(tracking, memory);
  memory.write(1);
  memory.write(2);
  kernel_.read_fails = true;
  DirtyBitmap written(8);
  EXPECT_FALSE(tracking.collect(memory.range(), memory.range(), CollectMode::take, written));
  kernel_.read_fails = false;
  EXPECT_EQ(take(tracking, memory), (Pages{1, 2}));
}

TEST_F(SoftDirtyTest, after_a_failed_clearing_no_bit_is_lost) {
  const Memory memory(kernel_, kSomewhere, 8);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  memory.write(1);
  kernel_.clear_fails = true;
  DirtyBitmap written(8);
  const auto r = tracking.collect(memory.range(), memory.range(), CollectMode::take, written);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::permission_denied);
  kernel_.clear_fails = false;
  EXPECT_EQ(take(tracking, memory), (Pages{1}));
}

TEST_F(SoftDirtyTest, shared_memory_is_refused) {
  const Memory memory(kernel_, kSomewhere, 8);
  kernel_.shared.push_back(memory.pages(7, 1));
  SoftDirtyBackend tracking = backend();
  const auto r = tracking.watch(memory.range());
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(r.error().message(), HasSubstr("shared memory"));
}

// --- the probe ---

std::string why_not(ModelKernel& kernel) {
  const auto made = SoftDirtyProcess::over(std::make_unique<FakeSoftDirtyKernel>(kernel));
  if (made) return "";
  EXPECT_EQ(made.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(made.error().message(), HasSubstr("CONFIG_MEM_SOFT_DIRTY"));
  EXPECT_THAT(made.error().message(), HasSubstr("compare"));
  return made.error().message();
}

TEST_F(SoftDirtyTest, a_good_kernel_passes_the_probe) {
  EXPECT_EQ(why_not(kernel_), "");
}

TEST_F(SoftDirtyTest, a_kernel_without_bits_is_found_out_before_anything_is_cleared) {
  kernel_.has_bits = false;
  EXPECT_THAT(why_not(kernel_), HasSubstr("has no soft-dirty bits"));
  EXPECT_EQ(kernel_.clears_done, 0);
}

TEST_F(SoftDirtyTest, a_kernel_that_clears_nothing_is_found_out) {
  kernel_.clears = false;
  EXPECT_THAT(why_not(kernel_), HasSubstr("does not clear"));
}

TEST_F(SoftDirtyTest, a_kernel_whose_bits_do_not_come_back_is_found_out) {
  kernel_.sets_again = false;
  EXPECT_THAT(why_not(kernel_), HasSubstr("loses writes"));
}

TEST_F(SoftDirtyTest, a_pagemap_that_shows_nothing_is_found_out) {
  kernel_.shows_pages = false;
  EXPECT_THAT(why_not(kernel_), HasSubstr("does not show a page"));
}

// Here and now. Where the kernel has the bits this is the only test on a real one.
TEST_F(SoftDirtyTest, the_probe_of_this_machine_tells_the_truth_about_it) {
  const auto probed = SoftDirtyBackend::probe();
  if (!probed) {
    std::printf("probe: %s\n", probed.error().message().c_str());
    EXPECT_EQ(probed.error().code(), ErrorCode::unsupported);
    EXPECT_THAT(probed.error().message(), HasSubstr("CONFIG_MEM_SOFT_DIRTY"));
    return;
  }
  std::printf("probe: soft-dirty bits work here\n");
  SoftDirtyBackend tracking = must(SoftDirtyBackend::open());
  auto memory = must(VirtualArray<std::byte>::create(64 * page_size()));
  const ByteRange range = ByteRange::of(memory.span().data(), memory.size());
  must(tracking.watch(range));
  const auto write = [&](std::size_t page) {
    *reinterpret_cast<volatile char*>(range.begin + page * page_size()) = 1;  // NOLINT
  };
  const auto taken = [&] {
    DirtyBitmap written(64);
    must(tracking.collect(range, range, CollectMode::take, written));
    return written.words()[0];
  };
  write(3);
  EXPECT_EQ(taken(), std::uint64_t{1} << 3U);
  EXPECT_EQ(taken(), 0U);
  write(3);
  write(63);
  EXPECT_EQ(taken(), std::uint64_t{1} << 3U | std::uint64_t{1} << 63U);
}

TEST_F(SoftDirtyTest, can_be_switched_off) {
  ::setenv("PAGETIDE_DISABLE", "soft_dirty", 1);
  const auto opened = SoftDirtyBackend::open();
  ::unsetenv("PAGETIDE_DISABLE");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(opened.error().message(), HasSubstr("PAGETIDE_DISABLE"));
}

// --- against an oracle ---

// Writes, reads, purges, swapping, merging, foreign clearings, failures, and takes and peeks of
// random parts by two consumers of overlapping memory. No page may be missing that was written
// since its last take by the same consumer.
TEST_F(SoftDirtyTest, no_written_page_is_ever_missing_from_a_take) {
  RandomSource random;
  constexpr std::size_t kPages = 700;
  const Memory memory(kernel_, kSomewhere, kPages);
  SoftDirtyBackend consumers[] = {backend(), backend()};
  std::vector<std::vector<bool>> written(2, std::vector<bool>(kPages));
  for (SoftDirtyBackend& consumer : consumers) must(consumer.watch(memory.range()));
  std::size_t reported = 0;
  std::size_t needed = 0;
  for (std::size_t step = 0; step < scaled(6000); ++step) {
    const std::size_t page = random.below(kPages);
    switch (random.below(16)) {
      case 0:
        kernel_.read(memory.page(page));
        break;
      case 1:
        kernel_.purge(memory.page(page));
        for (auto& of_consumer : written) of_consumer[page] = false;  // whoever purges knows
        break;
      case 2:
        if (kernel_.pages.count(memory.page(page) / page_size()) != 0) {
          kernel_.swap_out(memory.page(page));
        }
        break;
      case 3:
        if (random.one_in(20)) kernel_.fresh.push_back(memory.pages(page, 1));
        break;
      case 4:
        if (random.one_in(20)) kernel_.clear();
        break;
      case 5:
      case 6: {
        const std::size_t who = random.below(2);
        const std::size_t count = random.between(1, kPages - page);
        const bool takes = random.one_in(2);
        kernel_.read_fails = random.one_in(10);
        kernel_.clear_fails = random.one_in(10);
        DirtyBitmap found(kPages);
        const auto r = consumers[who].collect(memory.range(), memory.pages(page, count),
                                              takes ? CollectMode::take : CollectMode::peek, found);
        kernel_.read_fails = false;
        kernel_.clear_fails = false;
        if (!r) break;  // the tracker takes all of it as written
        for (std::size_t i = page; i < page + count; ++i) {
          ASSERT_TRUE(found.test(i) || !written[who][i])
              << "missed page " << i << ", step " << step;
          reported += found.test(i) ? 1U : 0U;
          needed += written[who][i] ? 1U : 0U;
          if (takes) written[who][i] = false;
        }
        break;
      }
      default:
        memory.write(page);
        for (auto& of_consumer : written) of_consumer[page] = true;
    }
  }
  std::printf("%zu pages reported, %zu of them needed\n", reported, needed);
  EXPECT_GT(needed, 1000U);
}

TEST_F(SoftDirtyTest, a_take_allocates_nothing) {
  const Memory memory(kernel_, kSomewhere, 300);
  SoftDirtyBackend tracking = backend();
  must(tracking.watch(memory.range()));
  for (std::size_t page = 0; page < 300; ++page) memory.write(page);
  DirtyBitmap written(300);
  AllocationGuard::forbidden = true;
  const auto r = tracking.collect(memory.range(), memory.range(), CollectMode::take, written);
  AllocationGuard::forbidden = false;
  must(r);
  EXPECT_EQ(AllocationGuard::violations.exchange(0), 0);
  EXPECT_EQ(written.count(), 300U);
}

TEST_F(SoftDirtyTest, works_behind_a_tracker_whose_parts_keep_each_others_dirt) {
  const Memory memory(kernel_, kSomewhere, 128);
  Tracker tracker = Tracker::over(AnyBackend(backend()));
  const WatchId watch = must(tracker.watch(memory.range()));
  memory.write(1);
  memory.write(100);
  const ByteRange parts[] = {memory.pages(0, 10), memory.pages(90, 20)};
  EXPECT_EQ(must(tracker.collect(watch, parts, CollectMode::take)).written.count(), 2U);
  memory.write(1);
  memory.write(50);
  const Collected taken = must(tracker.collect(watch, CollectMode::take));
  EXPECT_TRUE(taken.written.test(1));
  EXPECT_TRUE(taken.written.test(50));
  EXPECT_EQ(taken.written.count(), 2U);
  // A failure poisons the epoch, nothing less.
  memory.write(3);
  kernel_.read_fails = true;
  EXPECT_TRUE(must(tracker.collect(watch, CollectMode::take)).poisoned);
  kernel_.read_fails = false;
}

}  // namespace
}  // namespace pagetide
