#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/environment.h"
#include "tests/support/file_of_text.h"
#include "tests/support/memory_facts.h"
#include "tests/support/memory_file.h"
#include "tests/support/random_source.h"
#include "tests/support/test_scale.h"
#include "tests/support/watched_memory.h"

// Memory that the caller mapped, of every kind.

namespace pagetide {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::size_t kPages = 16;

Tracker async_tracker() {
  return must(Tracker::create({BackendKind::uffd_async}));
}

Pages take(Tracker& tracker, WatchId watch) {
  const Collected collected = must(tracker.collect(watch, CollectMode::take));
  EXPECT_FALSE(collected.poisoned) << collected.cause;
  return pages_of(collected.written);
}

TEST_F(UffdAsyncTest, a_shared_memfd_is_tracked_exactly) {
  const UniqueFd fd = memory_file(kPages);
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_SHARED));
  watched.arm();
  EXPECT_EQ(*watched.memory().page(2), 1);
  watched.memory().write(4, 2);
  EXPECT_EQ(watched.take(), (Pages{4}));
  EXPECT_EQ(watched.take(), Pages());
}

TEST_F(UffdAsyncTest, a_private_memfd_is_tracked_exactly) {
  const UniqueFd fd = memory_file(kPages);
  Mapping::of_file(fd.get(), kPages, MAP_SHARED).fill('m');
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_PRIVATE));
  EXPECT_EQ(*watched.memory().page(2), 'm');
  watched.memory().write(4, 2);
  EXPECT_EQ(watched.take(), (Pages{4}));
  watched.memory().write(5, 2);
  EXPECT_EQ(watched.take(), (Pages{5}));
}

TEST_F(UffdAsyncTest, pages_of_a_private_file_mapping_that_were_only_read_are_not_reported) {
  const FileOfText file(kPages);
  const UniqueFd fd = file.open(O_RDONLY);
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_PRIVATE));
  for (std::size_t page = 0; page < kPages; ++page) EXPECT_EQ(*watched.memory().page(page), 'k');
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(4, 'x');
  EXPECT_EQ(watched.take(), (Pages{4}));
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(4, 'y');
  EXPECT_EQ(watched.take(), (Pages{4}));
}

TEST_F(UffdAsyncTest, pages_of_a_private_file_mapping_that_were_written_before_are_reported_first) {
  const FileOfText file(kPages);
  const UniqueFd fd = file.open(O_RDONLY);
  Mapping mapping = Mapping::of_file(fd.get(), kPages, MAP_PRIVATE);
  EXPECT_EQ(*mapping.page(2), 'k');
  mapping.write(9, 'x');
  WatchedMemory watched(std::move(mapping));
  EXPECT_EQ(watched.take(), (Pages{9}));
}

TEST_F(UffdAsyncTest, a_shared_file_mapping_is_tracked) {
  const FileOfText file(kPages);
  const UniqueFd fd = file.open(O_RDWR);
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_SHARED));
  (void)watched.take();
  watched.memory().write(4, 'x');
  EXPECT_TRUE(watched.take().contains(4));
  EXPECT_EQ(watched.take(), Pages());
}

// The kernel drops page table entries of shared mappings when it reclaims their pages. An entry
// that is empty may then hold a write that nobody has taken.
class SharedMemoryTest : public testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    if (auto r = check_backend(GetParam()); !r) PAGETIDE_SKIP(r.error().message().c_str());
  }
  UniqueFd fd_ = memory_file(kPages);
};

INSTANTIATE_TEST_SUITE_P(every_back_end, SharedMemoryTest,
                         testing::Values(BackendKind::uffd_async, BackendKind::uffd_sync,
                                         BackendKind::uffd_sigbus, BackendKind::write_protect,
                                         BackendKind::compare),
                         [](const auto& kind) { return std::string(to_string(kind.param)); });

TEST_P(SharedMemoryTest, a_written_page_whose_entry_was_dropped_is_reported) {
  for (const int advice : {MADV_DONTNEED, MADV_PAGEOUT}) {
    WatchedMemory watched(Mapping::of_file(fd_.get(), kPages, MAP_SHARED), {GetParam()});
    watched.memory().fill(1);
    (void)watched.take();
    watched.memory().write(5, 2);
    ASSERT_EQ(::madvise(watched.memory().page(0), watched.memory().range().size, advice), 0);
    EXPECT_EQ(watched.take(), (Pages{5})) << advice;
    EXPECT_EQ(*watched.memory().page(5), 2);
    EXPECT_EQ(watched.take(), Pages());
  }
}

TEST_P(SharedMemoryTest, a_first_write_to_an_untouched_page_whose_entry_was_dropped_is_reported) {
  WatchedMemory watched(Mapping::of_file(fd_.get(), kPages, MAP_SHARED), {GetParam()});
  (void)watched.take();
  watched.memory().write(7, 2);
  ASSERT_EQ(::madvise(watched.memory().page(0), watched.memory().range().size, MADV_DONTNEED), 0);
  EXPECT_EQ(watched.take(), (Pages{7}));
}

TEST_P(SharedMemoryTest, what_stands_in_it_before_it_is_watched_is_in_the_first_take) {
  const Mapping other = Mapping::of_file(fd_.get(), kPages, MAP_SHARED);
  other.write(3, 9);
  WatchedMemory watched(Mapping::of_file(fd_.get(), kPages, MAP_SHARED), {GetParam()});
  EXPECT_TRUE(watched.take().contains(3));
}

TEST_P(SharedMemoryTest, random_writes_and_reclaims_lose_nothing) {
  RandomSource random;
  WatchedMemory watched(Mapping::of_file(fd_.get(), kPages, MAP_SHARED), {GetParam()});
  std::vector<char> shadow(kPages, 0);
  (void)watched.take();
  for (std::size_t round = 0; round < scaled(300); ++round) {
    for (std::size_t i = random.below(6); i > 0; --i) {
      watched.memory().write(random.below(kPages), static_cast<char>(random.next()));
      if (!random.one_in(3)) continue;
      const std::size_t first = random.below(kPages);
      ASSERT_EQ(
          ::madvise(watched.memory().page(first), random.between(1, kPages - first) * page_size(),
                    random.one_in(2) ? MADV_DONTNEED : MADV_PAGEOUT),
          0);
    }
    const Pages taken = watched.take();
    for (std::size_t page = 0; page < kPages; ++page) {
      const char now = *watched.memory().page(page);
      ASSERT_TRUE(now == shadow[page] || taken.contains(page)) << "lost page " << page;
      shadow[page] = now;
    }
  }
}

// One range over anonymous memory, a private file and a memfd that lie side by side.
TEST_F(UffdAsyncTest, a_range_of_several_mappings_is_one_watch) {
  const FileOfText file(4);
  const UniqueFd text = file.open(O_RDONLY);
  const UniqueFd memory = memory_file(4);
  Mapping mapping(kPages);
  ASSERT_NE(::mmap(mapping.page(4), 4 * page_size(), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_FIXED, text.get(), 0),
            MAP_FAILED);
  ASSERT_NE(::mmap(mapping.page(8), 4 * page_size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   memory.get(), 0),
            MAP_FAILED);
  WatchedMemory watched(std::move(mapping));
  for (const std::size_t page : {0U, 5U, 9U, 15U}) watched.memory().write(page, 'x');
  EXPECT_EQ(*watched.memory().page(6), 'k');
  EXPECT_EQ(watched.take(), (Pages{0, 5, 8, 9, 10, 11, 15}));  // of the shared part all
  EXPECT_EQ(watched.take(), Pages());
  for (const std::size_t page : {6U, 10U}) watched.memory().write(page, 'y');
  EXPECT_EQ(watched.take(), (Pages{6, 10}));
}

TEST_F(UffdAsyncTest, a_part_of_a_mapping_can_be_watched) {
  const Mapping mapping(kPages);
  mapping.fill(1);
  Tracker tracker = async_tracker();
  const WatchId watch = must(tracker.watch(mapping.pages(4, 4)));
  EXPECT_EQ(take(tracker, watch), all_pages(4));
  mapping.fill(2);
  EXPECT_EQ(take(tracker, watch), all_pages(4));
  mapping.write(0, 3);
  mapping.write(12, 3);
  EXPECT_EQ(take(tracker, watch), Pages());
  tracker.unwatch(watch);
  EXPECT_EQ(mapping_flags(mapping.page(5)).find(" uw "), std::string::npos);
}

TEST_F(UffdAsyncTest, two_parts_of_one_mapping_have_epochs_of_their_own) {
  const Mapping mapping(kPages);
  Tracker tracker = async_tracker();
  const WatchId low = must(tracker.watch(mapping.pages(0, 4)));
  const WatchId high = must(tracker.watch(mapping.pages(8, 4)));
  mapping.write(1, 1);
  mapping.write(9, 1);
  EXPECT_EQ(take(tracker, high), (Pages{1}));
  EXPECT_EQ(take(tracker, low), (Pages{1}));
  EXPECT_EQ(take(tracker, high), Pages());
}

TEST_F(UffdAsyncTest, ten_thousand_separate_ranges_are_watched_exactly) {
  constexpr std::size_t kRanges = 10'000;
  RandomSource random;
  const Mapping mapping(2 * kRanges);
  Tracker tracker = async_tracker();
  std::vector<WatchId> watches;
  // Every second page, so that none can be merged.
  for (std::size_t i = 0; i < kRanges; ++i) {
    watches.push_back(must(tracker.watch(mapping.pages(2 * i, 1))));
  }
  Pages written;
  for (std::size_t i = 0; i < 500; ++i) {
    const std::size_t range = random.below(kRanges);
    mapping.write(2 * range, 1);
    mapping.write(2 * range + 1, 1);  // watched by nobody
    written.insert(range);
  }
  Pages found;
  for (std::size_t i = 0; i < kRanges; ++i) {
    if (!take(tracker, watches[i]).empty()) found.insert(i);
  }
  EXPECT_EQ(found, written);
  for (const WatchId watch : watches) tracker.unwatch(watch);
  // Their places can be had again.
  const WatchId whole = must(tracker.watch(mapping.range()));
  EXPECT_EQ(take(tracker, whole).size(), 2 * written.size());
}

TEST_F(UffdAsyncTest, hugetlb_memory_is_refused_with_a_way_out) {
  void* p = ::mmap(nullptr, std::size_t{2} << 20, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) PAGETIDE_SKIP("this kernel has no hugetlb memory");
  const ByteRange range = ByteRange::of(p, std::size_t{2} << 20);
  for (const bool fast : {true, false}) {
    const Disabled disabled(fast ? "" : "procmap_query");
    Tracker tracker = async_tracker();
    const auto r = tracker.watch(range);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::unsupported);
    EXPECT_THAT(r.error().message(), StartsWith("cannot watch hugetlb memory (pages of "));
    EXPECT_THAT(r.error().message(), HasSubstr("Use transparent huge pages"));
  }
  ::munmap(p, range.size);
}

TEST_F(UffdAsyncTest, a_shared_mapping_of_a_file_opened_for_reading_is_refused) {
  const FileOfText file(kPages);
  const UniqueFd fd = file.open(O_RDONLY);
  void* p = ::mmap(nullptr, kPages * page_size(), PROT_READ, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(p, MAP_FAILED);
  Tracker tracker = async_tracker();
  const auto r = tracker.watch(ByteRange::of(p, kPages * page_size()));
  ASSERT_FALSE(r);
  EXPECT_THAT(r.error().message(), HasSubstr("a shared file must be opened for writing"));
  ::munmap(p, kPages * page_size());
}

TEST_F(UffdAsyncTest, a_range_with_a_hole_is_refused_and_the_hole_named) {
  Mapping mapping(kPages);
  ASSERT_EQ(::munmap(mapping.page(5), page_size()), 0);
  for (const bool fast : {true, false}) {
    const Disabled disabled(fast ? "" : "procmap_query");
    Tracker tracker = async_tracker();
    const auto r = tracker.watch(mapping.range());
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().message(),
              "nothing is mapped at " +
                  fmt::format("{:#x}", reinterpret_cast<std::uintptr_t>(mapping.page(5))) +
                  "; watch only memory that is mapped.");
  }
}

// --- purging and prefilling what is not anonymous ---

TEST_F(UffdAsyncTest, memory_with_a_file_behind_it_cannot_be_purged) {
  const FileOfText file(kPages);
  const UniqueFd fd = file.open(O_RDONLY);
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_PRIVATE));
  watched.memory().write(3, 'x');
  const auto r = watched.tracker().purge(watched.memory().pages(3, 1));
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::unsupported);
  EXPECT_THAT(r.error().message(), HasSubstr("what the file holds would come back"));
  EXPECT_EQ(*watched.memory().page(3), 'x');
  EXPECT_EQ(watched.take(), (Pages{3}));
}

TEST_F(UffdAsyncTest, a_purge_of_file_memory_that_is_told_later_counts_as_a_write) {
  const FileOfText file(kPages);
  const UniqueFd fd = file.open(O_RDONLY);
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_PRIVATE));
  watched.memory().write(3, 'x');
  (void)watched.take();
  ASSERT_EQ(::madvise(watched.memory().page(3), page_size(), MADV_DONTNEED), 0);
  watched.tracker().note_purged(watched.memory().pages(3, 1));
  EXPECT_EQ(*watched.memory().page(3), 'k');
  const Collected collected = watched.collect(CollectMode::take);
  EXPECT_EQ(pages_of(collected.written), (Pages{3}));
  EXPECT_FALSE(collected.zeroed.any());
}

TEST_F(UffdAsyncTest, prefill_hides_no_content_of_files) {
  for (const Prefill policy : {Prefill::automatic, Prefill::zero_page, Prefill::marker}) {
    const UniqueFd memory = memory_file(kPages);
    Mapping::of_file(memory.get(), kPages, MAP_SHARED).fill('m');
    for (const int flags : {MAP_SHARED, MAP_PRIVATE}) {
      WatchedMemory watched(Mapping::of_file(memory.get(), kPages, flags));
      must(watched.tracker().prefill(watched.memory().range(), policy));
      for (std::size_t page = 0; page < kPages; ++page) {
        ASSERT_EQ(*watched.memory().page(page), 'm') << to_string(policy);
      }
    }
  }
}

TEST_F(UffdAsyncTest, prefill_goes_on_over_the_border_of_two_mappings) {
  for (const BackendKind kind :
       {BackendKind::uffd_async, BackendKind::uffd_sync, BackendKind::uffd_sigbus}) {
    if (!check_backend(kind)) continue;
    Mapping mapping(kPages);
    ASSERT_EQ(::madvise(mapping.page(3), 4 * page_size(), MADV_NOHUGEPAGE), 0);
    WatchedMemory watched(std::move(mapping), {kind});
    must(watched.tracker().prefill(watched.memory().range(), Prefill::zero_page));
    for (std::size_t page = 0; page < kPages; ++page) EXPECT_EQ(*watched.memory().page(page), 0);
    EXPECT_EQ(watched.take(), Pages()) << to_string(kind);
    watched.memory().write(6, 1);
    EXPECT_EQ(watched.take(), (Pages{6})) << to_string(kind);
  }
}

TEST_F(UffdAsyncTest, prefill_of_a_mixed_range_prepares_its_anonymous_parts) {
  const FileOfText file(4);
  const UniqueFd text = file.open(O_RDONLY);
  Mapping mapping(12);
  ASSERT_NE(::mmap(mapping.page(4), 4 * page_size(), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_FIXED, text.get(), 0),
            MAP_FAILED);
  WatchedMemory watched(std::move(mapping));
  must(watched.tracker().prefill(watched.memory().range(), Prefill::zero_page));
  // Reading a prefilled page dirties nothing.
  for (std::size_t page = 0; page < 12; ++page) {
    EXPECT_EQ(*watched.memory().page(page), page / 4 == 1 ? 'k' : 0);
  }
  EXPECT_EQ(watched.take(), Pages());
  watched.memory().write(2, 1);
  watched.memory().write(5, 1);
  watched.memory().write(10, 1);
  EXPECT_EQ(watched.take(), (Pages{2, 5, 10}));
}

}  // namespace
}  // namespace pagetide
