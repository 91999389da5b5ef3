#include "pagetide/tracker/backends/uffd_async_backend.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/tracker/capabilities.h"
#include "pagetide/tracker/tracker.h"
#include "tests/support/child_process.h"
#include "tests/support/file_of_text.h"
#include "tests/support/mapping.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/skip.h"
#include "tests/support/watched_memory.h"

namespace pagetide {
namespace {

using namespace literals;
using ::testing::HasSubstr;

TEST_F(UffdAsyncTest, pages_nobody_touched_are_not_reported) {
  WatchedMemory watched(Mapping(64));
  EXPECT_EQ(watched.take(), Pages());
  EXPECT_EQ(watched.take(), Pages());
}

TEST_F(UffdAsyncTest, a_write_is_reported_once) {
  WatchedMemory watched(Mapping(64));
  watched.memory().write(7, 1);
  EXPECT_EQ(watched.take(), (Pages{7}));
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(7, 1);  // the same value: a write all the same
  watched.memory().write(63, 1);
  EXPECT_EQ(watched.take(), (Pages{7, 63}));
}

TEST_F(UffdAsyncTest, what_was_populated_before_watching_is_reported_first) {
  Mapping mapping(8);
  mapping.write(3, 1);
  WatchedMemory watched(std::move(mapping));
  EXPECT_EQ(watched.take(), (Pages{3}));
}

TEST_F(UffdAsyncTest, a_peek_arms_nothing) {
  WatchedMemory watched(Mapping(8));
  watched.memory().write(3, 1);
  EXPECT_EQ(pages_of(watched.collect(CollectMode::peek).written), (Pages{3}));
  EXPECT_EQ(pages_of(watched.collect(CollectMode::peek).written), (Pages{3}));
  EXPECT_EQ(watched.take(), (Pages{3}));
}

TEST_F(UffdAsyncTest, a_page_that_was_only_read_is_quiet_after_one_take_and_its_first_write_seen) {
  WatchedMemory watched(Mapping(8));
  EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(2)), 0);
  const Pages first = watched.take();
  EXPECT_TRUE(first.empty() || first == Pages{2});
  EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(2)), 0);
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(2, 1);
  EXPECT_EQ(watched.take(), (Pages{2}));
}

TEST_F(UffdAsyncTest, prefilled_pages_are_quiet_when_read_and_exact_when_written) {
  // More than two steps of the prefill.
  constexpr std::size_t kPages = 1100;
  WatchedMemory watched{Mapping(kPages)};
  must(watched.tracker().prefill(watched.memory().range(), Prefill::zero_page));
  EXPECT_EQ(watched.take(), Pages());
  for (std::size_t page = 0; page < kPages; ++page) {
    EXPECT_EQ(*static_cast<volatile char*>(watched.memory().page(page)), 0);
  }
  EXPECT_EQ(watched.take(), Pages());
  for (const std::size_t page : {0U, 511U, 512U, 1099U}) watched.memory().write(page, 1);
  EXPECT_EQ(watched.take(), (Pages{0, 511, 512, 1099}));
}

TEST_F(UffdAsyncTest, prefill_keeps_content_and_dirt_of_pages_in_use) {
  WatchedMemory watched(Mapping(32));
  watched.memory().write(0, 42);
  watched.memory().write(5, 42);
  watched.memory().write(6, 42);
  ASSERT_EQ(watched.take(), (Pages{0, 5, 6}));
  watched.memory().write(5, 43);
  watched.memory().write(20, 44);
  must(watched.tracker().prefill(watched.memory().range(), Prefill::zero_page));
  EXPECT_EQ(*watched.memory().page(0), 42);
  EXPECT_EQ(*watched.memory().page(5), 43);
  // The untouched pages between them were prefilled all the same: reading them is quiet.
  for (std::size_t page = 0; page < 32; ++page) {
    (void)*static_cast<volatile char*>(watched.memory().page(page));
  }
  EXPECT_EQ(watched.take(), (Pages{5, 20}));
}

TEST_F(UffdAsyncTest, prefill_again_after_a_purge_arms_again) {
  WatchedMemory watched(Mapping(16));
  watched.arm();
  must(watched.tracker().purge(watched.memory().pages(4, 4)));
  must(watched.tracker().prefill(watched.memory().pages(4, 4), Prefill::zero_page));
  const Collected collected = watched.collect(CollectMode::take);
  EXPECT_EQ(pages_of(collected.written), Pages());
  EXPECT_EQ(pages_of(collected.zeroed), (Pages{4, 5, 6, 7}));
  watched.memory().write(6, 1);
  EXPECT_EQ(watched.take(), (Pages{6}));
}

// --- changes of the mapping ---

TEST_F(UffdAsyncTest, protection_none_and_back_keeps_what_is_armed_and_what_is_written) {
  WatchedMemory watched(Mapping(16));
  watched.arm();
  watched.memory().write(3, 2);
  const ByteRange range = watched.memory().range();
  ASSERT_EQ(::mprotect(range.data(), range.size, PROT_NONE), 0);
  ASSERT_EQ(::mprotect(range.data(), range.size, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(watched.take(), (Pages{3}));
  watched.memory().write(9, 2);
  EXPECT_EQ(watched.take(), (Pages{9}));
}

TEST_F(UffdAsyncTest, memory_can_be_collected_and_armed_while_it_is_inaccessible) {
  WatchedMemory watched(Mapping(16));
  watched.arm();
  watched.memory().write(3, 2);
  const ByteRange half = watched.memory().pages(0, 8);
  ASSERT_EQ(::mprotect(half.data(), half.size, PROT_NONE), 0);
  EXPECT_EQ(watched.take(), (Pages{3}));
  ASSERT_EQ(::mprotect(half.data(), half.size, PROT_READ | PROT_WRITE), 0);
  watched.memory().write(3, 3);
  EXPECT_EQ(watched.take(), (Pages{3}));
}

TEST_F(UffdAsyncTest, a_reservation_that_grows_by_protection_is_tracked) {
  WatchedMemory watched(Mapping(64, PROT_NONE));
  EXPECT_EQ(watched.take(), Pages());
  for (std::size_t step = 0; step < 8; ++step) {
    const ByteRange grown = watched.memory().pages(step * 8, 8);
    ASSERT_EQ(::mprotect(grown.data(), grown.size, PROT_READ | PROT_WRITE), 0);
    watched.memory().write(step * 8 + 3, 1);
    watched.memory().write(3, 1);
    EXPECT_EQ(watched.take(), (Pages{3, step * 8 + 3}));
  }
}

TEST_F(UffdAsyncTest, a_lost_registration_poisons_and_is_not_silent) {
  WatchedMemory watched(Mapping(16));
  watched.arm();
  watched.memory().write(1, 2);
  const ByteRange lost = watched.memory().pages(8, 2);
  ASSERT_EQ(::munmap(lost.data(), lost.size), 0);
  ASSERT_EQ(::mmap(lost.data(), lost.size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            lost.data());
  const Collected collected = must(watched.tracker().collect(watched.watch(), CollectMode::take));
  EXPECT_TRUE(collected.poisoned);
  EXPECT_EQ(collected.cause,
            "cannot scan the page table for written pages (PAGEMAP_SCAN): Operation not permitted. "
            "The range is taken as written in whole.");
  EXPECT_EQ(pages_of(collected.written), all_pages(16));
  EXPECT_EQ(watched.tracker().stats().poisoned_takes, 1U);
  // It stays lost, and is never taken for clean; what is beside it is as exact as before.
  EXPECT_TRUE(must(watched.tracker().collect(watched.watch(), CollectMode::take)).poisoned);
  const std::vector<ByteRange> beside = {watched.memory().pages(0, 8)};
  watched.memory().write(5, 2);
  const Collected exact =
      must(watched.tracker().collect(watched.watch(), beside, CollectMode::take));
  EXPECT_FALSE(exact.poisoned);
  EXPECT_EQ(pages_of(exact.written), (Pages{5}));
}

TEST_F(UffdAsyncTest, a_purge_is_logged_and_the_next_write_seen) {
  WatchedMemory watched(Mapping(16));
  watched.arm();
  must(watched.tracker().purge(watched.memory().pages(2, 4)));
  watched.memory().write(3, 2);
  const Collected collected = watched.collect(CollectMode::take);
  EXPECT_EQ(pages_of(collected.written), (Pages{3}));
  EXPECT_EQ(pages_of(collected.zeroed), (Pages{2, 4, 5}));
  EXPECT_EQ(*watched.memory().page(2), 0);
  EXPECT_EQ(*watched.memory().page(3), 2);
}

TEST_F(UffdAsyncTest, huge_pages_are_seen_and_split_into_small_ones) {
  const std::size_t huge = 2_MiB;
  Mapping mapping = Mapping::aligned(2 * huge / page_size(), huge);
  (void)::madvise(mapping.page(0), 2 * huge, MADV_HUGEPAGE);  // works without huge pages as well
  WatchedMemory watched(std::move(mapping));
  watched.memory().write(0, 1);
  const Pages first = watched.take();
  EXPECT_TRUE(first.contains(0));
  EXPECT_LE(first.size(), huge / page_size());
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(17, 2);
  watched.memory().write(400, 2);
  // The kernel may report the whole huge page, never less than what was written.
  const Pages second = watched.take();
  EXPECT_TRUE(second.contains(17) && second.contains(400));
  for (const std::size_t page : {17U, 18U, 511U}) watched.memory().write(page, 3);
  EXPECT_EQ(watched.take(), (Pages{17, 18, 511}));
}

TEST_F(UffdAsyncTest, part_of_a_huge_page_can_be_purged) {
  const std::size_t huge = 2_MiB;
  Mapping mapping = Mapping::aligned(huge / page_size(), huge);
  (void)::madvise(mapping.page(0), huge, MADV_HUGEPAGE);
  WatchedMemory watched(std::move(mapping));
  watched.arm();
  must(watched.tracker().purge(watched.memory().pages(100, 2)));
  const Collected collected = watched.collect(CollectMode::take);
  EXPECT_EQ(pages_of(collected.zeroed), (Pages{100, 101}));
  EXPECT_EQ(pages_of(collected.written), Pages());
  watched.memory().write(101, 1);
  watched.memory().write(300, 1);
  EXPECT_EQ(watched.take(), (Pages{101, 300}));
}

TEST_F(UffdAsyncTest, a_reservation_of_64_GiB_costs_no_page_tables) {
  const std::size_t pages = 64_GiB / page_size();
  WatchedMemory watched(Mapping(pages, PROT_NONE));
  const std::size_t before = status_kib("VmPTE");
  // On both sides of the steps of a scan, and the last page.
  const std::size_t step = PagemapScanner::kMaxScanBytes / page_size();
  const Pages used = {0, 1, step - 1, step, 2 * step - 1, 17 * step, pages - 1};
  for (const std::size_t page : used) {
    ASSERT_EQ(::mprotect(watched.memory().page(page), page_size(), PROT_READ | PROT_WRITE), 0);
    watched.memory().write(page, 1);
  }
  const std::size_t populated = status_kib("VmPTE");
  EXPECT_EQ(watched.take(), used);
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(step, 2);
  EXPECT_EQ(watched.take(), (Pages{step}));
  EXPECT_LE(populated - before, 500U);  // a few tables for each page that is used
  // A collect arms nothing but populated pages, so it adds no table. (The library's own bitmaps
  // may add some.)
  EXPECT_LE(status_kib("VmPTE"), populated + 100);
}

// --- several trackers ---

TEST_F(UffdAsyncTest, memory_that_somebody_else_watches_is_refused) {
  const WatchedMemory watched(Mapping(4));
  Tracker second = must(Tracker::create({BackendKind::uffd_async}));
  const auto r = second.watch(watched.memory().range());
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().message(),
            "cannot register memory with userfaultfd: Device or resource busy. Another userfaultfd "
            "of this process already watches a part of it; only one can.");
}

TEST_F(UffdAsyncTest, unwatched_memory_can_be_watched_by_another) {
  WatchedMemory watched(Mapping(4));
  watched.arm();
  watched.tracker().unwatch(watched.watch());
  Tracker second = must(Tracker::create({BackendKind::uffd_async}));
  const WatchId watch = must(second.watch(watched.memory().range()));
  EXPECT_EQ(pages_of(must(second.collect(watch, CollectMode::take)).written), all_pages(4));
  watched.memory().write(2, 1);
  EXPECT_EQ(pages_of(must(second.collect(watch, CollectMode::take)).written), (Pages{2}));
}

TEST_F(UffdAsyncTest, memory_that_is_not_mapped_is_refused) {
  // Where the kernel puts nothing by itself, not even what the tracker maps for its tables.
  const ByteRange nowhere{0x5500'0000'0000, 4 * page_size()};
  ASSERT_TRUE(is_unmapped(nowhere));
  Tracker tracker = must(Tracker::create({BackendKind::uffd_async}));
  const auto r = tracker.watch(nowhere);
  ASSERT_FALSE(r);
  EXPECT_THAT(r.error().message(), HasSubstr("nothing is mapped at 0x550000000000"));
}

// --- fork ---

TEST_F(UffdAsyncTest, writes_of_a_forked_child_are_not_the_parents) {
  WatchedMemory watched(Mapping(16));
  watched.arm();
  watched.memory().write(3, 2);
  EXPECT_EQ(run_in_child([&] {
              for (std::size_t page = 0; page < 16; ++page) watched.memory().write(page, 9);
              return std::string();
            }),
            "");
  EXPECT_EQ(watched.take(), (Pages{3}));
  watched.memory().write(4, 2);
  EXPECT_EQ(watched.take(), (Pages{4}));
}

TEST_F(UffdAsyncTest, a_parents_writes_to_pages_shared_with_a_child_are_seen) {
  WatchedMemory watched(Mapping(16));
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
    ::_exit(0);
  }
  watched.memory().write(5, 2);
  EXPECT_EQ(watched.take(), (Pages{5}));
  watched.memory().write(5, 3);
  watched.memory().write(6, 3);
  EXPECT_EQ(watched.take(), (Pages{5, 6}));
  writer.reset();
  ::waitpid(child, nullptr, 0);
}

TEST_F(UffdAsyncTest, a_forked_child_cannot_disturb_its_parent) {
  WatchedMemory watched(Mapping(16));
  watched.arm();
  watched.memory().write(3, 2);
  EXPECT_EQ(run_in_child([&]() -> std::string {
              const auto r = watched.tracker().collect(watched.watch(), CollectMode::take);
              if (r || r.error().code() != ErrorCode::forked) return "could collect";
              if (!watched.tracker().prefill(watched.memory().range(), Prefill::zero_page))
                return "prefill";
              watched.tracker().unwatch(watched.watch());
              const Tracker ending = std::move(watched.tracker());
              return {};
            }),
            "");
  EXPECT_EQ(watched.take(), (Pages{3}));
  watched.memory().write(4, 2);
  EXPECT_EQ(watched.take(), (Pages{4}));
}

TEST_F(UffdAsyncTest, a_forked_child_can_track_with_a_tracker_of_its_own) {
  WatchedMemory watched(Mapping(16));
  watched.arm();
  EXPECT_EQ(run_in_child([&]() -> std::string {
              Tracker own = must(Tracker::create({BackendKind::uffd_async}));
              const WatchId watch = must(own.watch(watched.memory().range()));
              must(own.collect(watch, CollectMode::take));
              watched.memory().write(6, 1);
              const Collected seen = must(own.collect(watch, CollectMode::take));
              return pages_of(seen.written) == Pages{6} ? "" : "missed its own write";
            }),
            "");
  EXPECT_EQ(watched.take(), Pages());
}

// --- without privilege ---

std::string become_nobody() {
  constexpr uid_t kNobody = 65534;
  if (::setresgid(kNobody, kNobody, kNobody) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0) {
    return "cannot become nobody";
  }
  return {};
}

TEST_F(UffdAsyncTest, needs_no_privilege) {
  if (::geteuid() != 0) PAGETIDE_SKIP("only root can become another user");
  const FileOfText file;
  const UniqueFd text = file.open(O_RDONLY);
  EXPECT_EQ(run_in_child([&]() -> std::string {
              if (const std::string wrong = become_nobody(); !wrong.empty()) return wrong;
              // As after an exec: a process that only changed its user may not read its pagemap.
              if (::prctl(PR_SET_DUMPABLE, 1) != 0) return "prctl";
              auto tracker = Tracker::create({BackendKind::uffd_async});
              if (!tracker) return tracker.error().message();
              const Mapping memory(8);
              const WatchId watch = must(tracker->watch(memory.range()));
              memory.fill(1);
              must(tracker->collect(watch, CollectMode::take));
              memory.write(2, 1);
              if (::pread(text.get(), memory.page(5), 10, 0) != 10) return "pread failed";
              const Collected seen = must(tracker->collect(watch, CollectMode::take));
              if (seen.poisoned) return seen.cause;
              return pages_of(seen.written) == Pages{2, 5} ? "" : "wrong pages";
            }),
            "");
}

TEST_F(UffdAsyncTest, a_process_that_changed_its_user_without_exec_is_told_the_way_out) {
  if (::geteuid() != 0) PAGETIDE_SKIP("only root can become another user");
  EXPECT_EQ(run_in_child([&]() -> std::string {
              if (const std::string wrong = become_nobody(); !wrong.empty()) return wrong;
              const auto tracker = Tracker::create({BackendKind::uffd_async});
              if (tracker) return "it worked";
              if (tracker.error().code() != ErrorCode::permission_denied) return "other code";
              return tracker.error().message();
            }),
            "cannot open /proc/self/pagemap: Permission denied. A process that changed its user id "
            "without exec is not dumpable: open the tracker before, or call "
            "prctl(PR_SET_DUMPABLE, 1); /proc must be mounted.");
}

// --- exactness ---

TEST_F(UffdAsyncTest, random_writes_to_populated_memory_are_reported_exactly) {
  RandomSource random;
  constexpr std::size_t kPages = 4000;
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  for (std::size_t round = 0; round < scaled(40); ++round) {
    Pages written;
    for (std::size_t i = random.below(400); i > 0; --i) {
      const std::size_t page = random.below(kPages);
      watched.memory().page(page)[random.below(page_size())] = static_cast<char>(random.next());
      written.insert(page);
    }
    ASSERT_EQ(watched.take(), written);
  }
}

// --- the scanner alone ---

class ScannerTest : public UffdAsyncTest {
 protected:
  ScannerTest() : memory_(kPages) {}
  void SetUp() override {
    UffdAsyncTest::SetUp();
    if (IsSkipped()) return;
    backend_.emplace(must(UffdAsyncBackend::open()));
    must(backend_->watch(memory_.range()));
  }
  void TearDown() override {
    if (backend_) backend_->unwatch(memory_.range());
  }
  static ScanQuery written_pages(bool write_protect) {
    ScanQuery query;
    query.mask = kernel::kPageWritten;
    query.anyof = kernel::kPagePresent | kernel::kPageSwapped;
    query.returned = kernel::kPageWritten;
    query.write_protect = write_protect;
    return query;
  }
  // Pages in the order of their visits.
  std::vector<std::size_t> scan(PagemapScanner& scanner, bool write_protect) {
    std::vector<std::size_t> pages;
    must(scanner.scan(memory_.range(), written_pages(write_protect),
                      [&](std::uintptr_t first, std::uintptr_t end, std::uint64_t categories) {
                        EXPECT_EQ(categories, kernel::kPageWritten);
                        for (; first < end; first += page_size()) {
                          pages.push_back((first - memory_.range().begin) / page_size());
                        }
                      }));
    return pages;
  }

  static constexpr std::size_t kPages = 200;
  Mapping memory_;
  std::optional<UffdAsyncBackend> backend_;
};

TEST_F(ScannerTest, goes_on_where_a_full_vector_stopped_it) {
  for (const std::size_t regions : {1U, 2U, 3U, 7U, 64U}) {
    PagemapScanner scanner = must(PagemapScanner::open(regions));
    // Alternating pages: as many regions as there can be.
    std::vector<std::size_t> alternating;
    for (std::size_t page = regions % 2; page < kPages; page += 2) {
      memory_.write(page, 1);
      alternating.push_back(page);
    }
    EXPECT_EQ(scan(scanner, false), alternating) << regions;
    EXPECT_EQ(scan(scanner, true), alternating) << regions;
    EXPECT_EQ(scan(scanner, true), std::vector<std::size_t>()) << regions;
  }
}

TEST_F(ScannerTest, memory_that_is_not_registered_is_an_error_and_not_clean) {
  backend_->unwatch(memory_.range());
  memory_.write(3, 1);
  PagemapScanner scanner = must(PagemapScanner::open());
  for (const bool write_protect : {false, true}) {
    const auto r = scanner.scan(memory_.range(), written_pages(write_protect),
                                [](std::uintptr_t, std::uintptr_t, std::uint64_t) {});
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().system_errno(), EPERM);
    EXPECT_EQ(r.error().code(), ErrorCode::permission_denied);
  }
}

TEST_F(ScannerTest, an_empty_range_has_no_pages) {
  PagemapScanner scanner = must(PagemapScanner::open());
  int visits = 0;
  must(scanner.scan({memory_.range().begin, 0}, written_pages(true),
                    [&](std::uintptr_t, std::uintptr_t, std::uint64_t) { ++visits; }));
  EXPECT_EQ(visits, 0);
}

TEST_F(ScannerTest, a_vector_too_large_to_map_is_an_error) {
  EXPECT_FALSE(PagemapScanner::open(std::size_t{1} << 58));
}

}  // namespace
}  // namespace pagetide
