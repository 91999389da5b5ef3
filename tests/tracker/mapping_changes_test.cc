#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "pagetide/base/syscalls.h"
#include "tests/support/child_process.h"
#include "tests/support/memory_facts.h"
#include "tests/support/memory_file.h"
#include "tests/support/temporary_swap.h"
#include "tests/support/watched_memory.h"

// What becomes of armed pages when their mapping is changed under the tracker: each row is one
// that a kernel could answer otherwise.

namespace pagetide {
namespace {

// Newer than the system's headers.
constexpr int kGuardInstall = 102;
constexpr int kGuardRemove = 103;
constexpr int kCollapse = 25;

constexpr std::size_t kPages = 16;
constexpr std::size_t kHugeBytes = std::size_t{2} << 20;

bool advise(ByteRange range, int advice) {
  return ::madvise(range.data(), range.size, advice) == 0;
}

TEST_F(UffdAsyncTest, populating_for_reading_writes_nothing) {
  WatchedMemory watched{Mapping(kPages)};
  must(watched.tracker().prefill(watched.memory().range(), Prefill::marker));
  ASSERT_TRUE(advise(watched.memory().range(), MADV_POPULATE_READ)) << std::strerror(errno);
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(3, 1);
  EXPECT_EQ(watched.take(), (Pages{3}));
}

TEST_F(UffdAsyncTest, populating_for_writing_writes_every_page) {
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  ASSERT_TRUE(advise(watched.memory().pages(4, 3), MADV_POPULATE_WRITE)) << std::strerror(errno);
  EXPECT_EQ(watched.take(), (Pages{4, 5, 6}));
}

TEST_F(UffdAsyncTest, locking_memory_writes_every_page) {
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  if (!lock_memory(watched.memory().pages(2, 2))) PAGETIDE_SKIP("mlock() is not allowed here");
  EXPECT_EQ(watched.take(), (Pages{2, 3}));
}

// The content is that of the memfd still, so clean is right.
TEST_F(UffdAsyncTest, dropping_pages_of_a_shared_memfd_leaves_clean_pages_clean) {
  const UniqueFd fd = memory_file(kPages);
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_SHARED));
  watched.arm();
  watched.memory().write(7, 9);
  ASSERT_TRUE(advise(watched.memory().range(), MADV_DONTNEED));
  EXPECT_EQ(watched.take(), (Pages{7}));
  EXPECT_EQ(*watched.memory().page(7), 9);
  EXPECT_EQ(*watched.memory().page(3), 1);
  EXPECT_EQ(watched.take(), Pages());
}

// Why MADV_FREE is forbidden: the pages lose their content at some later time and nobody is told.
TEST_F(UffdAsyncTest, lazily_freed_pages_are_not_reported_whatever_they_hold) {
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  ASSERT_TRUE(advise(watched.memory().pages(2, 4), MADV_FREE));
  (void)advise(watched.memory().pages(2, 4), MADV_PAGEOUT);
  EXPECT_EQ(watched.take(), Pages());
  const char after = *watched.memory().page(3);
  EXPECT_TRUE(after == 0 || after == 1);
}

TEST_F(UffdAsyncTest, memory_that_grows_in_place_is_tracked_after_it_is_watched_again) {
  // Room behind it, so that growing needs no move.
  Mapping room(2 * kPages);
  ASSERT_EQ(::munmap(room.page(kPages), kPages * page_size()), 0);
  Tracker tracker = must(Tracker::create({BackendKind::uffd_async}));
  const WatchId watch = must(tracker.watch(room.pages(0, kPages)));
  room.write(3, 1);
  EXPECT_EQ(pages_of(must(tracker.collect(watch, CollectMode::take)).written), (Pages{3}));
  if (::mremap(room.page(0), kPages * page_size(), 2 * kPages * page_size(), 0) == MAP_FAILED) {
    PAGETIDE_SKIP("the place behind the mapping was taken meanwhile");
  }
  tracker.unwatch(watch);
  const WatchId whole = must(tracker.watch(room.range()));
  (void)must(tracker.collect(whole, CollectMode::take));
  room.write(kPages + 2, 1);
  EXPECT_EQ(pages_of(must(tracker.collect(whole, CollectMode::take)).written), (Pages{kPages + 2}));
}

TEST_F(UffdAsyncTest, memory_that_moved_is_tracked_at_its_new_place_after_it_is_watched_again) {
  Tracker tracker = must(Tracker::create({BackendKind::uffd_async}));
  const Mapping place(kPages);
  Mapping mapping(kPages);
  const WatchId watch = must(tracker.watch(mapping.range()));
  mapping.fill(1);
  (void)must(tracker.collect(watch, CollectMode::take));
  tracker.unwatch(watch);
  void* moved = ::mremap(mapping.page(0), mapping.range().size, mapping.range().size,
                         MREMAP_MAYMOVE | MREMAP_FIXED, place.page(0));
  ASSERT_EQ(moved, place.page(0));
  const WatchId again = must(tracker.watch(place.range()));
  EXPECT_EQ(pages_of(must(tracker.collect(again, CollectMode::take)).written), all_pages(kPages));
  EXPECT_EQ(*place.page(5), 1);
  place.write(5, 2);
  EXPECT_EQ(pages_of(must(tracker.collect(again, CollectMode::take)).written), (Pages{5}));
  // Nothing is mapped at the old place, which the tracker no longer cares about.
  EXPECT_TRUE(is_unmapped(mapping.range()));
}

// Moving watched memory is forbidden; who does it gets a poisoned epoch and no lost write.
TEST_F(UffdAsyncTest, memory_that_moves_away_while_it_is_watched_poisons_the_epoch) {
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  const Mapping place(kPages);
  ASSERT_NE(::mremap(watched.memory().page(0), page_size() * 4, page_size() * 4,
                     MREMAP_MAYMOVE | MREMAP_FIXED, place.page(0)),
            MAP_FAILED);
  ASSERT_NE(::mmap(watched.memory().page(0), page_size() * 4, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            MAP_FAILED);
  const Collected collected = must(watched.tracker().collect(watched.watch(), CollectMode::take));
  EXPECT_TRUE(collected.poisoned);
  EXPECT_EQ(pages_of(collected.written), all_pages(kPages));
}

TEST_F(UffdAsyncTest, memory_that_is_moved_and_stays_mapped_is_reported_as_written) {
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  const Mapping place(kPages);
  const std::size_t bytes = 4 * page_size();
  void* moved = ::mremap(watched.memory().page(0), bytes, bytes,
                         MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, place.page(0));
  if (moved == MAP_FAILED) PAGETIDE_SKIP("this kernel has no MREMAP_DONTUNMAP");
  // Empty now, and as good as purged: their owner says so.
  watched.tracker().note_purged(watched.memory().pages(0, 4));
  const Collected collected = watched.collect(CollectMode::take);
  EXPECT_EQ(pages_of(collected.zeroed), all_pages(4));
  EXPECT_EQ(pages_of(collected.written), Pages());
  watched.memory().write(1, 5);
  EXPECT_EQ(watched.take(), (Pages{1}));
}

TEST_F(UffdAsyncTest, guard_pages_stay_guards_and_are_reported_once_at_most) {
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  if (!advise(watched.memory().pages(5, 2), kGuardInstall)) {
    PAGETIDE_SKIP("this kernel has no MADV_GUARD_INSTALL (Linux 6.13)");
  }
  (void)watched.take();
  EXPECT_EQ(watched.take(), Pages());
  EXPECT_EQ(run_in_child([&]() -> std::string {
              watched.memory().write(5, 1);
              return "written";
            }),
            "killed by SIGSEGV");
  ASSERT_TRUE(advise(watched.memory().pages(5, 2), kGuardRemove));
  watched.memory().write(6, 1);
  EXPECT_EQ(watched.take(), (Pages{6}));
}

TEST_F(UffdAsyncTest, armed_pages_are_not_collapsed_and_stay_armed) {
  WatchedMemory watched{Mapping::aligned(kHugeBytes / page_size(), kHugeBytes)};
  ASSERT_TRUE(advise(watched.memory().range(), MADV_NOHUGEPAGE));
  watched.arm();
  ASSERT_TRUE(advise(watched.memory().range(), MADV_HUGEPAGE));
  EXPECT_FALSE(advise(watched.memory().range(), kCollapse));
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(9, 2);
  EXPECT_EQ(watched.take(), (Pages{9}));
}

TEST_F(UffdAsyncTest, pages_that_were_collapsed_before_they_were_armed_are_seen) {
  Mapping mapping = Mapping::aligned(kHugeBytes / page_size(), kHugeBytes);
  ASSERT_TRUE(advise(mapping.range(), MADV_HUGEPAGE));
  mapping.fill(1);
  (void)advise(mapping.range(), kCollapse);
  WatchedMemory watched(std::move(mapping));
  EXPECT_EQ(watched.take(), all_pages(kHugeBytes / page_size()));
  watched.memory().write(300, 2);
  EXPECT_EQ(watched.take(), (Pages{300}));
}

TEST_F(UffdAsyncTest, a_purge_of_a_whole_huge_page_is_logged_and_the_next_write_seen) {
  WatchedMemory watched{Mapping::aligned(kHugeBytes / page_size(), kHugeBytes)};
  ASSERT_TRUE(advise(watched.memory().range(), MADV_HUGEPAGE));
  watched.arm();
  must(watched.tracker().purge(watched.memory().range()));
  const Collected collected = watched.collect(CollectMode::take);
  EXPECT_EQ(collected.zeroed.count(), kHugeBytes / page_size());
  EXPECT_FALSE(collected.written.any());
  watched.memory().write(300, 2);
  EXPECT_TRUE(watched.take().contains(300));
}

TEST_F(UffdAsyncTest, programs_can_be_started_from_a_watching_process) {
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  pid_t child = 0;
  const char* const arguments[] = {"true", nullptr};
  ASSERT_EQ(::posix_spawnp(&child, "true", nullptr, nullptr, const_cast<char* const*>(arguments),
                           environ),
            0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  watched.memory().write(2, 2);
  EXPECT_EQ(watched.take(), (Pages{2}));
}

// Armed, written and armed again while they are away: what is known of a page goes with it.
TEST_F(UffdAsyncTest, pages_keep_their_state_in_swap) {
  const TemporarySwap swap;
  if (!swap.usable()) PAGETIDE_SKIP("needs root and zram for some swap");
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  watched.memory().write(3, 7);
  ASSERT_TRUE(advise(watched.memory().range(), MADV_PAGEOUT));
  ASSERT_LT(resident_pages(watched.memory().range()), kPages / 2) << "nothing was swapped out";
  EXPECT_EQ(watched.take(), (Pages{3}));  // armed in swap
  EXPECT_EQ(*watched.memory().page(3), 7);
  EXPECT_EQ(watched.take(), Pages());  // swapped in by reading
  ASSERT_TRUE(advise(watched.memory().range(), MADV_PAGEOUT));
  watched.memory().write(3, 8);
  watched.memory().write(11, 8);
  EXPECT_EQ(watched.take(), (Pages{3, 11}));
}

// Merges equal pages while it lives. Needs root.
class SamePageMerging {
 public:
  SamePageMerging() : fd_(::open("/sys/kernel/mm/ksm/run", O_RDWR | O_CLOEXEC)) {
    usable_ = fd_.valid() && ::pread(fd_.get(), &before_, 1, 0) == 1 &&
              ::pwrite(fd_.get(), "1", 1, 0) == 1;
  }
  SamePageMerging(const SamePageMerging&) = delete;
  SamePageMerging& operator=(const SamePageMerging&) = delete;
  ~SamePageMerging() {
    if (usable_) (void)!::pwrite(fd_.get(), &before_, 1, 0);
  }
  bool usable() const { return usable_; }

 private:
  UniqueFd fd_;
  char before_ = '0';
  bool usable_ = false;
};

// Merging takes the protection away: more is reported, nothing is lost.
TEST_F(UffdAsyncTest, writes_to_merged_pages_are_seen) {
  const SamePageMerging merging;
  if (!merging.usable()) PAGETIDE_SKIP("needs root and KSM");
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  if (!advise(watched.memory().range(), MADV_MERGEABLE)) PAGETIDE_SKIP("needs KSM");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  (void)watched.take();
  watched.memory().write(4, 9);
  EXPECT_TRUE(watched.take().contains(4));
  EXPECT_EQ(*watched.memory().page(4), 9);
}

}  // namespace
}  // namespace pagetide
