#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/base/hash.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/tracker/backends/fault_table.h"
#include "pagetide/tracker/backends/uffd_async_backend.h"
#include "pagetide/tracker/dirty_backend.h"
#include "tests/support/child_process.h"
#include "tests/support/environment.h"
#include "tests/support/mapping.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/page_sets.h"
#include "tests/support/random_source.h"
#include "tests/support/skip.h"

// What both back ends with fault handlers must do, as one suite: uffd_sync_test.cc and
// uffd_sigbus_test.cc instantiate it and add what is their own.

namespace pagetide {

// How long a race is looked for; race_stress_test.cc looks longer.
inline std::chrono::milliseconds race_time() {
  return std::getenv("PAGETIDE_SOAK") != nullptr ? std::chrono::milliseconds(10'000)
                                                 : std::chrono::milliseconds(500);
}

// Memory that a back end of its own watches.
template <typename B>
class Watched {
 public:
  explicit Watched(Mapping mapping) : Watched(std::move(mapping), must(B::open())) {}
  Watched(Mapping mapping, B backend)
      : mapping_(std::move(mapping)), backend_(std::move(backend)), written_(mapping_.pages()) {
    must(backend_.watch(mapping_.range()));
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  ~Watched() { backend_.unwatch(mapping_.range()); }

  const Mapping& memory() const { return mapping_; }
  B& backend() { return backend_; }

  // The bitmap stays valid to the next call.
  const DirtyBitmap& collect(CollectMode mode, ByteRange part) {
    written_.clear();
    must(backend_.collect(mapping_.range(), part, mode, written_));
    return written_;
  }
  Pages take() { return pages_of(collect(CollectMode::take, mapping_.range())); }
  Pages take(ByteRange part) { return pages_of(collect(CollectMode::take, part)); }
  Pages peek() { return pages_of(collect(CollectMode::peek, mapping_.range())); }
  // Every page populated, written and armed.
  void arm() {
    mapping_.fill(1);
    EXPECT_EQ(take(), all_pages(mapping_.pages()));
  }
  void purge(ByteRange range) {
    ASSERT_EQ(::madvise(range.data(), range.size, MADV_DONTNEED), 0);
    backend_.purged(range);
  }

 private:
  Mapping mapping_;
  B backend_;
  DirtyBitmap written_;
};

// --- the oracle: a copy of the pages as they were at their last take ---

template <typename B>
class TrackedMemory {
 public:
  explicit TrackedMemory(std::size_t pages)
      : watched_(Mapping(pages)), shadow_(pages * page_size(), 0), purged_(pages) {}

  const Mapping& memory() const { return watched_.memory(); }
  std::size_t pages() const { return purged_.size(); }

  // Under the lock that a tracker would hold.
  void purge(PageRange pages) {
    const std::lock_guard lock = lock_before_takes();
    watched_.purge(memory().pages(pages.first, pages.count));
    purged_.set_range(pages);
  }
  void prefill(PageRange pages, Prefill policy) {
    const std::lock_guard lock = lock_before_takes();
    must(watched_.backend().prefill(memory().pages(pages.first, pages.count), policy));
  }

  // Takes the pages of one part and copies what was reported, while writers may run.
  void take_and_copy(PageRange part) {
    while (waiting_.load() != 0) std::this_thread::yield();
    const std::lock_guard lock(mutex_);
    DirtyBitmap written =
        watched_.collect(CollectMode::take, memory().pages(part.first, part.count));
    for (std::size_t page = part.first; page < part.end(); ++page) {
      reported_ += written.test(page) ? 1U : 0U;
      if (purged_.test(page)) written.set(page);
      purged_.reset(page);
    }
    written.for_each_run([&](PageRange run) {
      for (std::size_t page = run.first; page < run.end(); ++page) copy(page);
    });
  }
  // "" when the copy is the memory: for a time when nobody writes.
  std::string check(PageRange part) const {
    for (std::size_t page = part.first; page < part.end(); ++page) {
      const char* const kept = shadow_.data() + page * page_size();
      if (std::memcmp(kept, memory().page(page), page_size()) != 0) {
        return "missed page " + std::to_string(page);
      }
    }
    return {};
  }
  std::size_t reported() const { return reported_; }
  // A word of the copy.
  std::uint64_t kept(std::size_t page, std::size_t i) {
    const std::lock_guard lock = lock_before_takes();
    return reinterpret_cast<const std::uint64_t*>(shadow_.data() + page * page_size())[i];
  }

  std::atomic_ref<std::uint64_t> word(std::size_t page, std::size_t i) const {
    return std::atomic_ref(reinterpret_cast<std::uint64_t*>(memory().page(page))[i]);
  }
  static std::size_t words() { return page_size() / sizeof(std::uint64_t); }

 private:
  // A mutex that is locked in a loop starves whoever waits for it: takes wait for writers.
  std::lock_guard<std::mutex> lock_before_takes() {
    waiting_.fetch_add(1);
    mutex_.lock();
    waiting_.fetch_sub(1);
    return std::lock_guard<std::mutex>(mutex_, std::adopt_lock);
  }
  // Word by word, because writers write words.
  void copy(std::size_t page) {
    auto* const kept = reinterpret_cast<std::uint64_t*>(shadow_.data() + page * page_size());
    for (std::size_t i = 0; i < words(); ++i) {
      kept[i] = word(page, i).load(std::memory_order_relaxed);
    }
  }

  Watched<B> watched_;
  std::mutex mutex_;
  std::atomic<int> waiting_{0};
  std::vector<char> shadow_;
  DirtyBitmap purged_;
  std::size_t reported_ = 0;
};

// Threads that write words all over the memory, and purge and prefill some of it. In turns with
// takes, on machines of few processors too: a writer does a few acts, then sleeps until a take is
// done.
template <typename B>
class Writers {
 public:
  Writers(TrackedMemory<B>& memory, std::size_t threads, RandomSource& random) : gates_(threads) {
    for (std::size_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this, i, &memory, seed = random.next()] { run(i, memory, seed); });
    }
  }
  Writers(const Writers&) = delete;
  Writers& operator=(const Writers&) = delete;
  ~Writers() { stop(); }

  void stop() {
    stop_.store(true);
    take_is_done();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Lets all of them go on.
  void take_is_done() {
    takes_.fetch_add(1);
    takes_.notify_all();
  }
  // Sleeps until one of them has finished its acts; the others may be in the middle of theirs.
  void wait_for_acts() const { turns_.wait(seen_turns_); }
  void note_acts() { seen_turns_ = turns_.load(); }
  // Runs `what` while every writer stands still, all of its writes done.
  template <typename What>
  void while_held(What&& what) {
    for (std::mutex& gate : gates_) gate.lock();
    what();
    for (std::mutex& gate : gates_) gate.unlock();
  }
  std::size_t acts() const { return acts_.load(); }

 private:
  void run(std::size_t i, TrackedMemory<B>& memory, std::uint64_t seed) {
    RandomSource random(seed);
    while (!stop_.load()) {
      const std::uint32_t takes = takes_.load();
      {
        const std::lock_guard gate(gates_[i]);
        for (std::size_t n = random.between(1, 60); n > 0; --n) {
          act(memory, random);
          acts_.fetch_add(1, std::memory_order_relaxed);
        }
      }
      turns_.fetch_add(1);
      turns_.notify_one();
      if (!stop_.load()) takes_.wait(takes);
    }
  }
  static void act(TrackedMemory<B>& memory, RandomSource& random) {
    const std::size_t page = random.below(memory.pages());
    if (random.one_in(200)) {
      const PageRange run{page, random.between(1, std::min<std::size_t>(4, memory.pages() - page))};
      memory.purge(run);
      if (random.one_in(2)) memory.prefill(run, Prefill::zero_page);
      if (random.one_in(4)) memory.prefill(run, Prefill::marker);
      return;
    }
    // Few words, so that a page is often written again just after it was taken.
    memory.word(page, random.below(8)).store(random.next(), std::memory_order_relaxed);
  }

  std::vector<std::mutex> gates_;
  std::atomic<std::uint32_t> takes_{0};
  std::atomic<std::uint32_t> turns_{0};  // of all writers
  std::uint32_t seen_turns_ = 0;
  std::atomic<std::size_t> acts_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// A thread that keeps the lock of the address space busy. Handlers and takes then wait for it in
// the middle of their work, and go on in any order: the narrow races become likely ones.
class AddressSpaceChurn {
 public:
  AddressSpaceChurn() : memory_(4096) {  // 16 MiB and more: about a millisecond
    memory_.fill(1);
    thread_ = std::thread([this] {
      for (int round = 0; !stop_.load(); ++round) {
        const int protection = round % 2 == 0 ? PROT_READ : PROT_READ | PROT_WRITE;
        ::mprotect(memory_.range().data(), memory_.range().size, protection);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  AddressSpaceChurn(const AddressSpaceChurn&) = delete;
  AddressSpaceChurn& operator=(const AddressSpaceChurn&) = delete;
  ~AddressSpaceChurn() {
    stop_.store(true);
    thread_.join();
  }

 private:
  Mapping memory_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// --- the suite ---

template <typename B>
class FaultBackendTest : public testing::Test {
 protected:
  void SetUp() override {
    if (auto r = B::probe(); !r) PAGETIDE_SKIP(r.error().message().c_str());
  }
};

TYPED_TEST_SUITE_P(FaultBackendTest);

TYPED_TEST_P(FaultBackendTest, pages_nobody_touched_are_not_reported) {
  Watched<TypeParam> watched(Mapping(64));
  EXPECT_EQ(watched.take(), Pages());
  EXPECT_EQ(watched.take(), Pages());
  EXPECT_EQ(resident_pages(watched.memory().range()), 0U);
}

TYPED_TEST_P(FaultBackendTest, a_write_is_reported_once) {
  Watched<TypeParam> watched(Mapping(130));
  watched.memory().write(7, 1);
  EXPECT_EQ(watched.take(), (Pages{7}));
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(7, 1);  // the same value: a write all the same
  watched.memory().write(129, 1);
  EXPECT_EQ(watched.take(), (Pages{7, 129}));
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(129, 2);
  watched.memory().write(129, 3);
  EXPECT_EQ(watched.take(), (Pages{129}));
}

TYPED_TEST_P(FaultBackendTest, what_was_populated_before_watching_is_reported_first) {
  Mapping mapping(8);
  mapping.write(3, 1);
  Watched<TypeParam> watched(std::move(mapping));
  EXPECT_EQ(watched.take(), (Pages{3}));
  EXPECT_EQ(watched.take(), Pages());
}

TYPED_TEST_P(FaultBackendTest, a_peek_changes_nothing) {
  Watched<TypeParam> watched(Mapping(8));
  watched.memory().write(3, 1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(watched.peek(), (Pages{3}));
  EXPECT_EQ(watched.take(), (Pages{3}));
  EXPECT_EQ(watched.peek(), Pages());
  watched.memory().write(3, 2);
  watched.memory().write(4, 2);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(watched.peek(), (Pages{3, 4}));
  EXPECT_EQ(watched.take(), (Pages{3, 4}));
}

TYPED_TEST_P(FaultBackendTest,
             a_page_that_was_only_read_is_quiet_after_one_take_and_its_first_write_seen) {
  Watched<TypeParam> watched(Mapping(8));
  EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(2)), 0);
  EXPECT_EQ(watched.take(), (Pages{2}));
  EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(2)), 0);
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(2, 1);
  EXPECT_EQ(watched.take(), (Pages{2}));
}

TYPED_TEST_P(FaultBackendTest, a_collect_adds_to_what_the_bitmap_holds) {
  Watched<TypeParam> watched(Mapping(8));
  watched.memory().write(3, 1);
  DirtyBitmap written(8);
  written.set(1);
  must(watched.backend().collect(watched.memory().range(), watched.memory().range(),
                                 CollectMode::take, written));
  EXPECT_EQ(pages_of(written), (Pages{1, 3}));
  // The page that only the bitmap knew was not touched by this.
  watched.memory().write(1, 1);
  EXPECT_EQ(watched.take(), (Pages{1}));
}

TYPED_TEST_P(FaultBackendTest, random_parts_are_reported_exactly) {
  RandomSource random;
  constexpr std::size_t kPages = 700;
  Watched<TypeParam> watched{Mapping(kPages)};
  watched.arm();
  Pages expected;
  for (std::size_t round = 0; round < scaled(200); ++round) {
    for (std::size_t i = random.below(50); i > 0; --i) {
      const std::size_t page = random.below(kPages);
      watched.memory().page(page)[random.below(page_size())] = static_cast<char>(random.next());
      expected.insert(page);
    }
    const std::size_t first = random.below(kPages);
    const std::size_t count = random.between(1, kPages - first);
    Pages part(expected.lower_bound(first), expected.lower_bound(first + count));
    ASSERT_EQ(watched.take(watched.memory().pages(first, count)), part);
    expected.erase(expected.lower_bound(first), expected.lower_bound(first + count));
  }
  EXPECT_EQ(watched.take(), expected);
}

// --- purges and prefill ---

TYPED_TEST_P(FaultBackendTest, a_write_after_a_purge_is_seen) {
  Watched<TypeParam> watched(Mapping(200));
  watched.arm();
  watched.purge(watched.memory().pages(60, 10));
  EXPECT_EQ(watched.take(), Pages());
  for (const std::size_t page : {59U, 60U, 64U, 69U}) watched.memory().write(page, 2);
  EXPECT_EQ(watched.take(), (Pages{59, 60, 64, 69}));
  for (const std::size_t page : {60U, 61U}) watched.memory().write(page, 3);
  EXPECT_EQ(watched.take(), (Pages{60, 61}));
}

TYPED_TEST_P(FaultBackendTest, what_was_written_and_then_purged_is_not_reported) {
  Watched<TypeParam> watched(Mapping(16));
  watched.arm();
  for (const std::size_t page : {2U, 3U, 4U}) watched.memory().write(page, 2);
  watched.purge(watched.memory().pages(3, 2));
  watched.memory().write(4, 3);
  EXPECT_EQ(watched.take(), (Pages{2, 4}));
}

// Why purged() exists: the kernel takes the protection away without a word.
TYPED_TEST_P(FaultBackendTest, a_write_after_a_purge_that_was_not_told_is_missed) {
  Watched<TypeParam> watched(Mapping(4));
  watched.arm();
  const ByteRange page = watched.memory().pages(2, 1);
  ASSERT_EQ(::madvise(page.data(), page.size, MADV_DONTNEED), 0);
  watched.memory().write(2, 2);
  EXPECT_EQ(watched.peek(), Pages());
  watched.backend().purged(page);
  EXPECT_EQ(watched.take(), (Pages{2}));
}

TYPED_TEST_P(FaultBackendTest, prefilled_pages_are_quiet_when_read_and_exact_when_written) {
  // More than two steps of the prefill.
  constexpr std::size_t kPages = 1100;
  for (const Prefill policy : {Prefill::zero_page, Prefill::automatic, Prefill::marker}) {
    Watched<TypeParam> watched{Mapping(kPages)};
    must(watched.backend().prefill(watched.memory().range(), policy));
    EXPECT_EQ(watched.take(), Pages()) << to_string(policy);
    for (std::size_t page = 0; page < kPages; ++page) {
      EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(page)), 0);
    }
    EXPECT_EQ(watched.take(), Pages()) << to_string(policy);
    for (const std::size_t page : {0U, 511U, 512U, 1099U}) watched.memory().write(page, 1);
    EXPECT_EQ(watched.take(), (Pages{0, 511, 512, 1099})) << to_string(policy);
    EXPECT_EQ(watched.take(), Pages()) << to_string(policy);
  }
}

TYPED_TEST_P(FaultBackendTest, first_writes_to_prefilled_pages_are_seen_without_a_read) {
  for (const Prefill policy : {Prefill::zero_page, Prefill::marker, Prefill::none}) {
    Watched<TypeParam> watched{Mapping(100)};
    must(watched.backend().prefill(watched.memory().range(), policy));
    for (const std::size_t page : {3U, 63U, 64U}) watched.memory().write(page, 1);
    EXPECT_EQ(watched.take(), (Pages{3, 63, 64})) << to_string(policy);
  }
}

TYPED_TEST_P(FaultBackendTest, prefill_costs_no_memory) {
  for (const Prefill policy : {Prefill::zero_page, Prefill::marker, Prefill::none}) {
    Watched<TypeParam> watched{Mapping(1000)};
    const std::size_t before = status_kib("RssAnon");
    must(watched.backend().prefill(watched.memory().range(), policy));
    // Tables of the back end, but not 4000 KiB.
    EXPECT_LT(status_kib("RssAnon"), before + 1000) << to_string(policy);
  }
}

TYPED_TEST_P(FaultBackendTest, without_prefill_a_read_counts_as_a_write_once) {
  Watched<TypeParam> watched(Mapping(8));
  must(watched.backend().prefill(watched.memory().range(), Prefill::none));
  EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(2)), 0);
  EXPECT_EQ(watched.take(), (Pages{2}));
}

TYPED_TEST_P(FaultBackendTest, prefill_keeps_content_and_dirt_of_pages_in_use) {
  for (const Prefill policy : {Prefill::zero_page, Prefill::marker}) {
    Watched<TypeParam> watched(Mapping(100));
    for (const std::size_t page : {0U, 5U, 6U, 70U}) watched.memory().write(page, 42);
    ASSERT_EQ(watched.take(), (Pages{0, 5, 6, 70}));
    watched.memory().write(5, 43);
    watched.memory().write(20, 44);
    must(watched.backend().prefill(watched.memory().range(), policy));
    EXPECT_EQ(*watched.memory().page(0), 42);
    EXPECT_EQ(*watched.memory().page(5), 43);
    EXPECT_EQ(*watched.memory().page(20), 44);
    EXPECT_EQ(watched.take(), (Pages{5, 20})) << to_string(policy);
    for (const std::size_t page : {6U, 7U}) watched.memory().write(page, 1);
    EXPECT_EQ(watched.take(), (Pages{6, 7})) << to_string(policy);
  }
}

TYPED_TEST_P(FaultBackendTest, prefill_again_after_a_purge_arms_again) {
  for (const Prefill policy : {Prefill::zero_page, Prefill::marker}) {
    Watched<TypeParam> watched(Mapping(16));
    watched.arm();
    watched.purge(watched.memory().pages(4, 4));
    must(watched.backend().prefill(watched.memory().pages(4, 4), policy));
    EXPECT_EQ(watched.take(), Pages()) << to_string(policy);
    for (const std::size_t page : {6U, 9U}) watched.memory().write(page, 1);
    EXPECT_EQ(watched.take(), (Pages{6, 9})) << to_string(policy);
  }
}

// As on Linux before 6.7. zero_page then does nothing, because a write in the middle of it could
// not be told; what is reported is the same.
TYPED_TEST_P(FaultBackendTest, works_without_PAGEMAP_SCAN) {
  RandomSource random;
  const Environment environment("PAGETIDE_DISABLE", "pagemap_scan");
  Watched<TypeParam> watched{Mapping(9000)};  // more than one read of the page table
  must(watched.backend().prefill(watched.memory().range(), Prefill::zero_page));
  EXPECT_EQ(watched.take(), Pages());
  must(watched.backend().prefill(watched.memory().pages(100, 50), Prefill::marker));
  EXPECT_EQ(watched.take(), Pages());
  Pages populated = all_pages(150);
  populated.erase(populated.begin(), populated.find(100));  // by the markers
  for (std::size_t round = 0; round < scaled(50); ++round) {
    Pages written;
    for (std::size_t i = random.below(100); i > 0; --i) {
      const std::size_t page = random.below(9000);
      watched.memory().write(page, static_cast<char>(random.next()));
      written.insert(page);
      populated.insert(page);
    }
    for (std::size_t i = random.below(5); i > 0; --i) {
      const std::size_t first = random.below(9000);
      const std::size_t count = random.between(1, std::min<std::size_t>(100, 9000 - first));
      watched.purge(watched.memory().pages(first, count));
      for (std::size_t page = first; page < first + count; ++page) written.erase(page);
    }
    ASSERT_EQ(watched.take(), written);
  }
}

// --- mappings ---

TYPED_TEST_P(FaultBackendTest, protection_none_and_back_keeps_what_is_armed_and_what_is_written) {
  Watched<TypeParam> watched(Mapping(16));
  watched.arm();
  watched.memory().write(3, 2);
  const ByteRange range = watched.memory().range();
  ASSERT_EQ(::mprotect(range.data(), range.size, PROT_NONE), 0);
  EXPECT_EQ(watched.take(), (Pages{3}));
  ASSERT_EQ(::mprotect(range.data(), range.size, PROT_READ | PROT_WRITE), 0);
  for (const std::size_t page : {3U, 9U}) watched.memory().write(page, 2);
  EXPECT_EQ(watched.take(), (Pages{3, 9}));
}

TYPED_TEST_P(FaultBackendTest, a_range_of_many_mappings_is_armed_in_whole) {
  Watched<TypeParam> watched(Mapping(64));
  watched.memory().fill(1);
  for (std::size_t page = 1; page < 64; page += 2) {
    ASSERT_EQ(::mprotect(watched.memory().page(page), page_size(), PROT_READ), 0);
  }
  EXPECT_EQ(watched.take(), all_pages(64));
  const ByteRange range = watched.memory().range();
  ASSERT_EQ(::mprotect(range.data(), range.size, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(watched.take(), Pages());
  for (const std::size_t page : {0U, 31U, 63U}) watched.memory().write(page, 2);
  EXPECT_EQ(watched.take(), (Pages{0, 31, 63}));
}

TYPED_TEST_P(FaultBackendTest, a_reservation_that_grows_by_protection_is_tracked) {
  Watched<TypeParam> watched(Mapping(64, PROT_NONE));
  EXPECT_EQ(watched.take(), Pages());
  for (std::size_t step = 0; step < 8; ++step) {
    const ByteRange grown = watched.memory().pages(step * 8, 8);
    ASSERT_EQ(::mprotect(grown.data(), grown.size, PROT_READ | PROT_WRITE), 0);
    must(watched.backend().prefill(grown, Prefill::zero_page));
    EXPECT_EQ(watched.take(), Pages());
    for (const std::size_t page : {std::size_t{3}, step * 8 + 5}) watched.memory().write(page, 1);
    EXPECT_EQ(watched.take(), (Pages{3, step * 8 + 5}));
  }
}

TYPED_TEST_P(FaultBackendTest, a_reservation_of_64_GiB_costs_no_page_tables) {
  using namespace literals;
  const std::size_t pages = 64_GiB / page_size();
  Watched<TypeParam> watched(Mapping(pages, PROT_NONE));
  const std::size_t before = status_kib("VmPTE");
  const std::size_t step = 1_GiB / page_size();
  // On both sides of the steps of a scan, and the last page.
  const Pages used = {0, 1, step - 1, step, 2 * step - 1, 17 * step, pages - 1};
  for (const std::size_t page : used) {
    ASSERT_EQ(::mprotect(watched.memory().page(page), page_size(), PROT_READ | PROT_WRITE), 0);
    watched.memory().write(page, 1);
  }
  EXPECT_EQ(watched.take(), used);
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(step, 2);
  EXPECT_EQ(watched.take(), (Pages{step}));
  EXPECT_LE(status_kib("VmPTE") - before, 500U);  // a few tables for each page that is used
}

TYPED_TEST_P(FaultBackendTest, huge_pages_are_seen_and_split_into_small_ones) {
  using namespace literals;
  const std::size_t huge = 2_MiB;
  Mapping mapping = Mapping::aligned(2 * huge / page_size(), huge);
  (void)::madvise(mapping.page(0), 2 * huge, MADV_HUGEPAGE);  // works without huge pages as well
  Watched<TypeParam> watched(std::move(mapping));
  watched.memory().write(0, 1);
  const Pages first = watched.take();
  EXPECT_TRUE(first.contains(0));
  EXPECT_LE(first.size(), huge / page_size());
  EXPECT_EQ(watched.take(), Pages());
  for (const std::size_t page : {17U, 400U}) watched.memory().write(page, 2);
  EXPECT_EQ(watched.take(), (Pages{17, 400}));
  for (const std::size_t page : {17U, 18U, 511U}) watched.memory().write(page, 3);
  EXPECT_EQ(watched.take(), (Pages{17, 18, 511}));
}

TYPED_TEST_P(FaultBackendTest, part_of_a_huge_page_can_be_purged) {
  using namespace literals;
  const std::size_t huge = 2_MiB;
  Mapping mapping = Mapping::aligned(huge / page_size(), huge);
  (void)::madvise(mapping.page(0), huge, MADV_HUGEPAGE);
  Watched<TypeParam> watched(std::move(mapping));
  watched.arm();
  watched.purge(watched.memory().pages(100, 2));
  EXPECT_EQ(watched.take(), Pages());
  for (const std::size_t page : {101U, 300U}) watched.memory().write(page, 1);
  EXPECT_EQ(watched.take(), (Pages{101, 300}));
}

TYPED_TEST_P(FaultBackendTest, shared_memory_is_tracked) {
  constexpr std::size_t kPages = 8;
  const UniqueFd fd(::memfd_create("tracked", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(kPages * page_size())), 0);
  void* const view =
      ::mmap(nullptr, kPages * page_size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(view, MAP_FAILED);
  const ByteRange range = ByteRange::of(view, kPages * page_size());
  auto* const bytes = static_cast<volatile char*>(view);
  TypeParam backend = must(TypeParam::open());
  must(backend.watch(range));
  const auto take = [&] {
    DirtyBitmap written(kPages);
    must(backend.collect(range, range, CollectMode::take, written));
    return pages_of(written);
  };
  must(backend.prefill(PageRange{6, 2}.bytes_from(range.begin), Prefill::zero_page));
  (void)take();
  for (std::size_t page = 0; page < 6; ++page) bytes[page * page_size()] = 1;
  EXPECT_EQ(take(), all_pages(6));
  EXPECT_EQ(take(), Pages());
  for (const std::size_t page : {2U, 7U}) bytes[page * page_size()] = 2;
  EXPECT_EQ(take(), (Pages{2, 7}));
  backend.unwatch(range);
  ::munmap(view, range.size);
}

TYPED_TEST_P(FaultBackendTest, mappings_of_other_files_are_refused) {
  const UniqueFd fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  void* const view = ::mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd.get(), 0);
  ASSERT_NE(view, MAP_FAILED);
  TypeParam backend = must(TypeParam::open());
  const auto r = backend.watch(ByteRange::of(view, page_size()));
  ASSERT_FALSE(r);
  EXPECT_EQ(
      r.error().message(),
      "cannot register memory with userfaultfd: Invalid argument. The range must be mapped in "
      "whole, by anonymous memory or memfd; mappings of other files can be tracked with "
      "BackendKind::uffd_async.");
  ::munmap(view, page_size());
}

TYPED_TEST_P(FaultBackendTest, memory_that_is_not_mapped_is_refused) {
  // Where the kernel puts nothing by itself, not even what the back end maps for its tables.
  const ByteRange nowhere{0x5500'0000'0000, 4 * page_size()};
  ASSERT_TRUE(is_unmapped(nowhere));
  TypeParam backend = must(TypeParam::open());
  EXPECT_FALSE(backend.watch(nowhere));
}

// Arming fails there. What was consumed for it must not be lost.
TYPED_TEST_P(FaultBackendTest, a_lost_registration_is_an_error_and_loses_no_dirt) {
  Watched<TypeParam> watched(Mapping(16));
  watched.memory().fill(1);
  EXPECT_EQ(watched.take(watched.memory().pages(0, 8)), all_pages(8));
  for (const std::size_t page : {1U, 4U}) watched.memory().write(page, 2);
  const ByteRange lost = watched.memory().pages(8, 2);
  ASSERT_EQ(::mmap(lost.data(), lost.size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            lost.data());
  watched.memory().write(8, 1);
  DirtyBitmap written(16);
  for (int i = 0; i < 2; ++i) {
    const auto r = watched.backend().collect(watched.memory().range(), watched.memory().range(),
                                             CollectMode::take, written);
    ASSERT_FALSE(r);
    EXPECT_EQ(
        r.error().message(),
        "cannot write-protect tracked pages (UFFDIO_WRITEPROTECT): No such file or directory. "
        "The memory may have been unmapped or mapped anew; the range is taken as written in "
        "whole.");
  }
  const Pages beside = watched.take(watched.memory().pages(0, 8));
  EXPECT_TRUE(beside.contains(1) && beside.contains(4));
  EXPECT_EQ(watched.take(watched.memory().pages(0, 8)), Pages());
  watched.memory().write(4, 3);
  EXPECT_EQ(watched.take(watched.memory().pages(0, 8)), (Pages{4}));
}

// --- several ---

TYPED_TEST_P(FaultBackendTest, several_back_ends_and_ranges_work_at_a_time) {
  constexpr std::size_t kBackends = 3;
  constexpr std::size_t kRanges = 5;
  constexpr std::size_t kPages = 10;
  // Neighbours belong to different back ends.
  const Mapping memory(kBackends * kRanges * kPages);
  std::vector<TypeParam> backends;
  for (std::size_t i = 0; i < kBackends; ++i) backends.push_back(must(TypeParam::open()));
  const auto for_each_range = [&](auto&& apply) {
    for (std::size_t i = 0; i < kBackends * kRanges; ++i) {
      apply(i, backends.at(i % kBackends), memory.pages(i * kPages, kPages));
    }
  };
  for_each_range(
      [&](std::size_t, TypeParam& backend, ByteRange range) { must(backend.watch(range)); });
  memory.fill(1);
  for (const bool first : {true, false}) {
    if (!first) {
      for_each_range(
          [&](std::size_t i, TypeParam&, ByteRange) { memory.write(i * kPages + i % kPages, 2); });
    }
    for_each_range([&](std::size_t i, TypeParam& backend, ByteRange range) {
      DirtyBitmap written(kPages);
      must(backend.collect(range, range, CollectMode::take, written));
      EXPECT_EQ(pages_of(written), first ? all_pages(kPages) : Pages{i % kPages}) << i;
    });
  }
  // The end of one leaves the others at work.
  backends.erase(backends.begin());
  memory.fill(3);
  DirtyBitmap written(kPages);
  const ByteRange others = memory.pages(kPages, kPages);  // of the one that is now the first
  must(backends.front().collect(others, others, CollectMode::take, written));
  EXPECT_EQ(pages_of(written), all_pages(kPages));
}

TYPED_TEST_P(FaultBackendTest, more_ranges_than_there_are_places_are_refused) {
  constexpr std::size_t kMost = FaultTable::kMaxWatches;
  const Mapping memory(kMost + 1);
  TypeParam backend = must(TypeParam::open());
  for (std::size_t page = 0; page < kMost; ++page) must(backend.watch(memory.pages(page, 1)));
  const auto r = backend.watch(memory.pages(kMost, 1));
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::out_of_memory);
  EXPECT_THAT(r.error().message(), testing::HasSubstr("Watch fewer, larger ranges"));
  // A place that is given back is a place.
  backend.unwatch(memory.pages(5, 1));
  must(backend.watch(memory.pages(kMost, 1)));
  memory.write(kMost, 1);
  for (const Pages& expected : {Pages{0}, Pages{}}) {
    DirtyBitmap written(1);
    must(backend.collect(memory.pages(kMost, 1), memory.pages(kMost, 1), CollectMode::take,
                         written));
    EXPECT_EQ(pages_of(written), expected);
  }
  memory.fill(2);
}

TYPED_TEST_P(FaultBackendTest, memory_that_somebody_else_watches_is_refused) {
  const Mapping mapping(4);
  UffdAsyncBackend other = must(UffdAsyncBackend::open());
  must(other.watch(mapping.range()));
  TypeParam second = must(TypeParam::open());
  const auto r = second.watch(mapping.range());
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().message(),
            "cannot register memory with userfaultfd: Device or resource busy. Another userfaultfd "
            "of this process already watches a part of it; only one can.");
  // Nothing of the attempt is left.
  other.unwatch(mapping.range());
  must(second.watch(mapping.range()));
}

TYPED_TEST_P(FaultBackendTest, unwatched_memory_is_free_and_can_be_watched_by_another) {
  Watched<TypeParam> watched(Mapping(4));
  watched.arm();
  watched.backend().unwatch(watched.memory().range());
  watched.memory().write(1, 2);
  EXPECT_EQ(mapping_flags(watched.memory().page(0)).find(" uw "), std::string::npos);
  TypeParam second = must(TypeParam::open());
  const ByteRange range = watched.memory().range();
  must(second.watch(range));
  for (const Pages& expected : {all_pages(4), Pages{2}}) {
    if (expected.size() == 1) watched.memory().write(2, 3);
    DirtyBitmap written(4);
    must(second.collect(range, range, CollectMode::take, written));
    EXPECT_EQ(pages_of(written), expected);
  }
}

TYPED_TEST_P(FaultBackendTest, a_back_end_can_be_moved_while_it_watches) {
  const Mapping memory(8);
  TypeParam first = must(TypeParam::open());
  must(first.watch(memory.range()));
  memory.fill(1);
  DirtyBitmap written(8);
  must(first.collect(memory.range(), memory.range(), CollectMode::take, written));
  TypeParam second = std::move(first);
  memory.write(3, 2);
  written.clear();
  must(second.collect(memory.range(), memory.range(), CollectMode::take, written));
  EXPECT_EQ(pages_of(written), (Pages{3}));
  // The end of what it replaces gives its memory back.
  second = must(TypeParam::open());
  memory.fill(2);
  must(second.watch(memory.range()));
}

// --- fork ---

TYPED_TEST_P(FaultBackendTest, a_forked_child_runs_on_unharmed_and_its_writes_are_its_own) {
  Watched<TypeParam> watched(Mapping(16));
  watched.arm();
  watched.memory().write(3, 2);
  EXPECT_EQ(run_in_child([&]() -> std::string {
              for (std::size_t page = 0; page < 16; ++page) watched.memory().write(page, 9);
              return *watched.memory().page(15) == 9 ? "" : "wrong value";
            }),
            "");
  EXPECT_EQ(watched.take(), (Pages{3}));
  for (const std::size_t page : {3U, 4U}) watched.memory().write(page, 2);
  EXPECT_EQ(watched.take(), (Pages{3, 4}));
}

TYPED_TEST_P(FaultBackendTest, a_parents_writes_to_pages_shared_with_a_child_are_seen) {
  Watched<TypeParam> watched(Mapping(16));
  watched.arm();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Holds its copy of the memory until the parent has written.
    writer.reset();
    char byte = 0;
    (void)!::read(reader.get(), &byte, 1);
    ::_exit(*watched.memory().page(5) == 1 ? 0 : 1);
  }
  for (const std::size_t page : {5U, 6U}) {
    watched.memory().write(page, 2);
    EXPECT_EQ(watched.take(), (Pages{page}));
  }
  writer.reset();
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TYPED_TEST_P(FaultBackendTest, a_forked_child_cannot_disturb_its_parent) {
  Watched<TypeParam> watched(Mapping(16));
  watched.arm();
  watched.memory().write(3, 2);
  const ByteRange range = watched.memory().range();
  EXPECT_EQ(run_in_child([&]() -> std::string {
              TypeParam& backend = watched.backend();
              const auto forked = [](const Result<void>& r) {
                return !r && r.error().code() == ErrorCode::forked;
              };
              DirtyBitmap written(16);
              if (!forked(backend.collect(range, range, CollectMode::take, written)))
                return "collect";
              if (!forked(backend.prefill(range, Prefill::zero_page))) return "prefill";
              const Mapping more(1);
              if (!forked(backend.watch(more.range()))) return "watch";
              { const TypeParam ending = std::move(backend); }
              watched.memory().write(5, 1);
              backend = must(TypeParam::open());  // for the end of `watched`
              return {};
            }),
            "");
  EXPECT_EQ(watched.take(), (Pages{3}));
  watched.memory().write(4, 2);
  EXPECT_EQ(watched.take(), (Pages{4}));
}

TYPED_TEST_P(FaultBackendTest, a_forked_child_can_unwatch_without_effect_on_its_parent) {
  Watched<TypeParam> watched(Mapping(16));
  watched.arm();
  EXPECT_EQ(run_in_child([&]() -> std::string {
              watched.backend().unwatch(watched.memory().range());
              watched.memory().write(5, 1);
              return {};
            }),
            "");
  watched.memory().write(4, 2);
  EXPECT_EQ(watched.take(), (Pages{4}));
}

TYPED_TEST_P(FaultBackendTest, a_forked_child_can_track_with_a_back_end_of_its_own) {
  Watched<TypeParam> watched(Mapping(16));
  watched.arm();
  const ByteRange range = watched.memory().range();
  EXPECT_EQ(run_in_child([&]() -> std::string {
              TypeParam own = must(TypeParam::open());
              must(own.watch(range));
              DirtyBitmap written(16);
              must(own.collect(range, range, CollectMode::take, written));
              if (pages_of(written) != all_pages(16)) return "first take";
              watched.memory().write(6, 1);
              written.clear();
              must(own.collect(range, range, CollectMode::take, written));
              return pages_of(written) == Pages{6} ? "" : "missed its own write";
            }),
            "");
  EXPECT_EQ(watched.take(), Pages());
}

// --- threads ---

TYPED_TEST_P(FaultBackendTest, many_threads_that_fault_on_one_page_all_get_through) {
  constexpr std::size_t kThreads = 16;
  const std::size_t rounds = scaled(200);
  Watched<TypeParam> watched(Mapping(2));
  auto* const counters = reinterpret_cast<std::uint64_t*>(watched.memory().page(1));
  watched.arm();
  std::memset(watched.memory().page(1), 0, page_size());
  std::barrier start(kThreads + 1);
  std::barrier done(kThreads + 1);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (std::size_t round = 1; round <= rounds; ++round) {
        start.arrive_and_wait();
        std::atomic_ref(counters[i]).fetch_add(1);
        done.arrive_and_wait();
      }
    });
  }
  std::string wrong;
  for (std::size_t round = 1; round <= rounds; ++round) {
    (void)watched.take();
    start.arrive_and_wait();
    done.arrive_and_wait();
    if (!watched.peek().contains(1)) wrong = "not reported";
    for (std::size_t i = 0; i < kThreads; ++i) {
      if (std::atomic_ref(counters[i]).load() != round) wrong = "a write is missing";
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, "");
}

// A fault may be older than the end of its watch, and come to a handler after it.
TYPED_TEST_P(FaultBackendTest, memory_can_be_unwatched_while_threads_write) {
  constexpr std::size_t kPages = 8;
  const Mapping memory(kPages);
  const AddressSpaceChurn churn;
  TypeParam backend = must(TypeParam::open());
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> total{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::uint64_t writes = 0;
      for (; !stop.load(std::memory_order_relaxed); ++writes) {
        auto* const words = reinterpret_cast<std::uint64_t*>(memory.page(writes % kPages));
        std::atomic_ref(words[i]).fetch_add(1, std::memory_order_relaxed);
      }
      total.fetch_add(writes);
    });
  }
  std::size_t watches = 0;
  const auto end = std::chrono::steady_clock::now() + race_time() / 2;
  for (; std::chrono::steady_clock::now() < end; ++watches) {
    must(backend.watch(memory.range()));
    for (int takes = 0; takes < 3; ++takes) {
      DirtyBitmap written(kPages);
      must(backend.collect(memory.range(), memory.range(), CollectMode::take, written));
    }
    backend.unwatch(memory.range());
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  std::uint64_t stored = 0;
  for (std::size_t page = 0; page < kPages; ++page) {
    const auto* const words = reinterpret_cast<const std::uint64_t*>(memory.page(page));
    for (std::size_t i = 0; i < 4; ++i) stored += words[i];
  }
  EXPECT_EQ(stored, total.load());
  std::printf("%zu watches during %llu writes\n", watches, static_cast<unsigned long long>(stored));
}

// --- nothing is missed ---

TYPED_TEST_P(FaultBackendTest, nothing_is_missed_in_random_use) {
  RandomSource random;
  const UniqueFd entropy(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  std::size_t reported = 0;
  for (std::size_t run = 0; run < scaled(12); ++run) {
    TrackedMemory<TypeParam> memory(300);
    const auto some_pages = [&] {
      const std::size_t first = random.below(memory.pages());
      return PageRange{first, random.between(1, std::min<std::size_t>(8, memory.pages() - first))};
    };
    const auto act = [&] {
      const PageRange run_of_pages = some_pages();
      const ByteRange bytes = memory.memory().pages(run_of_pages.first, run_of_pages.count);
      switch (random.below(12)) {
        case 0:
          return memory.purge(run_of_pages);
        case 1:
          return memory.prefill(run_of_pages, Prefill::zero_page);
        case 2:
          return memory.prefill(run_of_pages, Prefill::marker);
        case 3:
          memory.purge(run_of_pages);
          return memory.prefill(run_of_pages,
                                random.one_in(2) ? Prefill::zero_page : Prefill::marker);
        case 4:
          ASSERT_EQ(::mprotect(bytes.data(), bytes.size, PROT_NONE), 0);
          ASSERT_EQ(::mprotect(bytes.data(), bytes.size, PROT_READ | PROT_WRITE), 0);
          return;
        case 5:
          // Fails into armed pages with one of the back ends.
          (void)!::read(entropy.get(), bytes.data(), bytes.size);
          return;
        case 6:
          if (!random.one_in(8)) return;
          EXPECT_EQ(run_in_child([&] {
                      std::memset(bytes.data(), 77, bytes.size);
                      return std::string();
                    }),
                    "");
          return;
        default: {
          const std::size_t offset = random.below(bytes.size);
          const std::size_t size =
              random.between(1, std::min<std::size_t>(100, bytes.size - offset));
          std::memset(bytes.data() + offset,
                      random.one_in(4) ? 0 : static_cast<int>(random.below(256)), size);
        }
      }
    };
    for (std::size_t round = 0; round < 60; ++round) {
      for (std::size_t i = random.below(30); i > 0; --i) act();
      PageRange part{0, memory.pages()};
      if (random.one_in(3)) {
        part.first = random.below(memory.pages());
        part.count = random.between(1, memory.pages() - part.first);
      }
      memory.take_and_copy(part);
      ASSERT_EQ(memory.check(part), "") << "seed " << random.seed();
    }
    reported += memory.reported();
  }
  EXPECT_GT(reported, 0U);
}

// Takes while writers run. What a writer stores is in the copy that follows a take, or the next
// take reports it; so the copy ends up equal to the memory.
template <typename B>
void check_that_nothing_is_lost_while_writers_run(std::size_t threads) {
  RandomSource random;
  TrackedMemory<B> memory(48);  // few pages: a writer meets a take often
  const AddressSpaceChurn churn;
  Writers<B> writers(memory, threads, random);
  std::size_t takes = 0;
  const auto end = std::chrono::steady_clock::now() + race_time();
  for (; std::chrono::steady_clock::now() < end; ++takes) {
    PageRange part{0, memory.pages()};
    if (random.one_in(4)) part = {random.below(24), 24};
    writers.note_acts();
    memory.take_and_copy(part);
    writers.take_is_done();
    // At times the next take runs into the writers that were woken just now.
    if (random.one_in(2)) writers.wait_for_acts();
  }
  writers.stop();
  memory.take_and_copy({0, memory.pages()});
  EXPECT_EQ(memory.check({0, memory.pages()}), "") << "seed " << random.seed();
  std::printf("%zu threads: %zu takes during %zu writes, %zu pages reported\n", threads, takes,
              writers.acts(), memory.reported());
}

TYPED_TEST_P(FaultBackendTest, nothing_is_lost_while_one_writer_runs) {
  check_that_nothing_is_lost_while_writers_run<TypeParam>(1);
}

TYPED_TEST_P(FaultBackendTest, nothing_is_lost_while_four_writers_run) {
  check_that_nothing_is_lost_while_writers_run<TypeParam>(4);
}

// Every take is checked in whole against the memory, not only the last.
TYPED_TEST_P(FaultBackendTest, nothing_is_missed_of_writers_that_are_held_at_each_take) {
  RandomSource random;
  TrackedMemory<TypeParam> memory(48);
  const AddressSpaceChurn churn;
  Writers<TypeParam> writers(memory, 4, random);
  std::string wrong;
  std::size_t takes = 0;
  const auto end = std::chrono::steady_clock::now() + race_time();
  for (; std::chrono::steady_clock::now() < end && wrong.empty(); ++takes) {
    writers.note_acts();
    writers.take_is_done();
    // At times a take on the run, so that handlers are at work when the writers are stopped.
    if (random.one_in(2)) memory.take_and_copy({0, memory.pages()});
    writers.wait_for_acts();
    writers.while_held([&] {
      memory.take_and_copy({0, memory.pages()});
      wrong = memory.check({0, memory.pages()});
    });
  }
  writers.stop();
  EXPECT_EQ(wrong, "") << "seed " << random.seed();
  std::printf("%zu takes checked during %zu writes\n", takes, writers.acts());
}

// Also when the page was made writable for another thread, whose fault is still being handled.
TYPED_TEST_P(FaultBackendTest, a_take_that_follows_a_write_has_it) {
  RandomSource random;
  TrackedMemory<TypeParam> memory(4);
  const AddressSpaceChurn churn;
  const auto end = std::chrono::steady_clock::now() + race_time();
  std::atomic<std::size_t> missed{0};
  std::atomic<std::size_t> takes{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i, seed = random.next()] {
      RandomSource own(seed);
      for (std::uint64_t value = 1; std::chrono::steady_clock::now() < end; ++value) {
        // A word of its own in pages that all of them write.
        const std::size_t page = own.below(memory.pages());
        memory.word(page, i).store(value, std::memory_order_relaxed);
        if (!own.one_in(4)) continue;
        memory.take_and_copy({0, memory.pages()});
        if (memory.kept(page, i) != value) missed.fetch_add(1);
        takes.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(missed.load(), 0U) << "of " << takes.load() << " takes";
}

// A second thread that acts in the middle of a call of the back end, round by round. `act` and
// `call` run at the same time; then `check` runs alone.
template <typename Act, typename Call, typename Check>
void race_rounds(Act&& act, Call&& call, Check&& check) {
  const auto end = std::chrono::steady_clock::now() + race_time() / 2;
  std::atomic<bool> stop{false};
  std::barrier turn(2);
  std::thread other([&] {
    for (turn.arrive_and_wait(); !stop.load(); turn.arrive_and_wait()) {
      act();
      turn.arrive_and_wait();
    }
  });
  std::size_t rounds = 0;
  for (; std::chrono::steady_clock::now() < end && !testing::Test::HasFailure(); ++rounds) {
    turn.arrive_and_wait();
    call();
    turn.arrive_and_wait();
    check();
  }
  stop.store(true);
  turn.arrive_and_wait();
  other.join();
  std::printf("%zu rounds\n", rounds);
}

TYPED_TEST_P(FaultBackendTest, prefill_misses_no_write_of_another_thread) {
  constexpr std::size_t kPages = 256;
  const AddressSpaceChurn churn;
  for (const Prefill policy : {Prefill::zero_page, Prefill::marker}) {
    Watched<TypeParam> watched{Mapping(kPages)};
    race_rounds(
        [&] {
          for (std::size_t page = 0; page < kPages; ++page) watched.memory().write(page, 1);
        },
        [&] { must(watched.backend().prefill(watched.memory().range(), policy)); },
        [&] {
          EXPECT_EQ(watched.take(), all_pages(kPages)) << to_string(policy);
          watched.purge(watched.memory().range());
        });
  }
}

// The handler of a fault from before the purge may make the page writable after it was armed anew.
TYPED_TEST_P(FaultBackendTest, purge_and_prefill_miss_no_write_of_another_thread) {
  constexpr std::size_t kPages = 4;
  const AddressSpaceChurn churn;
  Watched<TypeParam> watched{Mapping(kPages)};
  watched.arm();
  race_rounds(
      [&] {
        for (std::size_t page = 0; page < kPages; ++page) watched.memory().write(page, 1);
      },
      [&] {
        watched.purge(watched.memory().range());
        must(watched.backend().prefill(watched.memory().range(), Prefill::zero_page));
      },
      [&] {
        const Pages reported = watched.take();
        for (std::size_t page = 0; page < kPages; ++page) {
          const bool written = *watched.memory().page(page) != 0;  // after the purge
          if (written && !reported.contains(page)) ADD_FAILURE() << "missed page " << page;
        }
        watched.memory().fill(2);
        (void)watched.take();
      });
}

REGISTER_TYPED_TEST_SUITE_P(
    FaultBackendTest, pages_nobody_touched_are_not_reported, a_write_is_reported_once,
    what_was_populated_before_watching_is_reported_first, a_peek_changes_nothing,
    a_page_that_was_only_read_is_quiet_after_one_take_and_its_first_write_seen,
    a_collect_adds_to_what_the_bitmap_holds, random_parts_are_reported_exactly,
    a_write_after_a_purge_is_seen, what_was_written_and_then_purged_is_not_reported,
    a_write_after_a_purge_that_was_not_told_is_missed,
    prefilled_pages_are_quiet_when_read_and_exact_when_written,
    first_writes_to_prefilled_pages_are_seen_without_a_read, prefill_costs_no_memory,
    without_prefill_a_read_counts_as_a_write_once, prefill_keeps_content_and_dirt_of_pages_in_use,
    prefill_again_after_a_purge_arms_again, works_without_PAGEMAP_SCAN,
    protection_none_and_back_keeps_what_is_armed_and_what_is_written,
    a_range_of_many_mappings_is_armed_in_whole, a_reservation_that_grows_by_protection_is_tracked,
    a_reservation_of_64_GiB_costs_no_page_tables, huge_pages_are_seen_and_split_into_small_ones,
    part_of_a_huge_page_can_be_purged, shared_memory_is_tracked,
    mappings_of_other_files_are_refused, memory_that_is_not_mapped_is_refused,
    a_lost_registration_is_an_error_and_loses_no_dirt, several_back_ends_and_ranges_work_at_a_time,
    more_ranges_than_there_are_places_are_refused, memory_that_somebody_else_watches_is_refused,
    unwatched_memory_is_free_and_can_be_watched_by_another,
    a_back_end_can_be_moved_while_it_watches,
    a_forked_child_runs_on_unharmed_and_its_writes_are_its_own,
    a_parents_writes_to_pages_shared_with_a_child_are_seen,
    a_forked_child_cannot_disturb_its_parent,
    a_forked_child_can_unwatch_without_effect_on_its_parent,
    a_forked_child_can_track_with_a_back_end_of_its_own,
    many_threads_that_fault_on_one_page_all_get_through,
    memory_can_be_unwatched_while_threads_write, nothing_is_missed_in_random_use,
    nothing_is_lost_while_one_writer_runs, nothing_is_lost_while_four_writers_run,
    nothing_is_missed_of_writers_that_are_held_at_each_take, a_take_that_follows_a_write_has_it,
    prefill_misses_no_write_of_another_thread, purge_and_prefill_miss_no_write_of_another_thread);

}  // namespace pagetide
