#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tests/support/file_of_text.h"
#include "tests/support/io_ring.h"
#include "tests/support/memory_file.h"
#include "tests/support/watched_memory.h"

// Writes that no page table shows, and so no back end but compare. These tests document the
// misses, and that mark_always_dirty() and the compare back end make up for them.

namespace pagetide {
namespace {

constexpr std::size_t kPages = 8;

TEST_F(UffdAsyncTest, writes_through_another_mapping_are_unseen_unless_declared) {
  const UniqueFd fd = memory_file(kPages);
  const Mapping other = Mapping::of_file(fd.get(), kPages, MAP_SHARED);
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_SHARED));
  watched.arm();
  watched.memory().write(2, 2);
  other.write(5, 2);
  EXPECT_EQ(*watched.memory().page(5), 2);
  // This is the limit that mark_always_dirty() exists for.
  EXPECT_EQ(watched.take(), (Pages{2}));
  watched.tracker().mark_always_dirty(watched.memory().pages(5, 1));
  other.write(5, 3);
  EXPECT_EQ(watched.take(), (Pages{5}));
}

TEST_F(UffdAsyncTest, compare_sees_writes_through_another_mapping) {
  const UniqueFd fd = memory_file(kPages);
  const Mapping other = Mapping::of_file(fd.get(), kPages, MAP_SHARED);
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_SHARED), {BackendKind::compare});
  watched.arm();
  other.write(5, 2);
  EXPECT_EQ(watched.take(), (Pages{5}));
}

TEST_F(UffdAsyncTest, writes_to_the_file_under_a_private_mapping_are_unseen) {
  const FileOfText file(kPages);
  const UniqueFd fd = file.open(O_RDWR);
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_PRIVATE));
  EXPECT_EQ(*watched.memory().page(3), 'k');
  (void)watched.take();
  ASSERT_EQ(::pwrite(fd.get(), "x", 1, static_cast<off_t>(3 * page_size())), 1);
  EXPECT_EQ(*watched.memory().page(3), 'x');
  EXPECT_EQ(watched.take(), Pages());
}

TEST_F(UffdAsyncTest, a_hole_punched_under_a_write_protect_marker_is_unseen) {
  const UniqueFd fd = memory_file(kPages);
  WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_SHARED));
  watched.arm();
  // The page table entry is dropped and leaves a marker; the content is still the file's.
  ASSERT_EQ(::madvise(watched.memory().page(4), page_size(), MADV_DONTNEED), 0);
  ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        static_cast<off_t>(4 * page_size()), static_cast<off_t>(page_size())),
            0);
  EXPECT_EQ(watched.take(), Pages());
  EXPECT_EQ(*watched.memory().page(4), 0);
}

// A page that is there and armed, and is taken out of the file under it.
enum class Hole { punched, removed, cut_off };

class HoleTest : public UffdAsyncTest, public testing::WithParamInterface<Hole> {
 protected:
  static bool make(Hole how, int fd, const Mapping& mapping, std::size_t page) {
    const auto offset = static_cast<off_t>(page * page_size());
    const auto size = static_cast<off_t>(page_size());
    switch (how) {
      case Hole::punched:
        return ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size) == 0;
      case Hole::removed:
        return ::madvise(mapping.page(page), page_size(), MADV_REMOVE) == 0;
      case Hole::cut_off:
        return ::ftruncate(fd, offset) == 0 && ::ftruncate(fd, offset + size) == 0;
    }
    return false;
  }
};

INSTANTIATE_TEST_SUITE_P(each, HoleTest,
                         testing::Values(Hole::punched, Hole::removed, Hole::cut_off));

TEST_P(HoleTest, is_unseen_by_all_but_compare) {
  for (const BackendKind kind :
       {BackendKind::uffd_async, BackendKind::uffd_sync, BackendKind::uffd_sigbus,
        BackendKind::write_protect, BackendKind::compare}) {
    if (!check_backend(kind)) continue;
    const UniqueFd fd = memory_file(kPages);
    WatchedMemory watched(Mapping::of_file(fd.get(), kPages, MAP_SHARED), {kind});
    watched.arm();
    ASSERT_TRUE(make(GetParam(), fd.get(), watched.memory(), kPages - 1)) << std::strerror(errno);
    EXPECT_EQ(watched.take(), kind == BackendKind::compare ? Pages{kPages - 1} : Pages())
        << to_string(kind);
    EXPECT_EQ(*watched.memory().page(kPages - 1), 0);
  }
}

// A buffer is pinned when it is registered; from then on the kernel writes to the pages and not
// through the page table.

TEST_F(UffdAsyncTest, registering_a_buffer_with_io_uring_is_a_write) {
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  IoRing ring;
  ASSERT_TRUE(ring.register_buffer(watched.memory().pages(2, 2)));
  EXPECT_EQ(watched.take(), (Pages{2, 3}));
}

TEST_F(UffdAsyncTest, reads_into_a_registered_buffer_are_unseen_unless_declared) {
  const FileOfText file;
  WatchedMemory watched{Mapping(kPages)};
  watched.arm();
  IoRing ring;
  ASSERT_TRUE(ring.register_buffer(watched.memory().pages(2, 2)));
  (void)watched.take();
  const UniqueFd fd = file.open(O_RDONLY);
  ASSERT_EQ(ring.read_fixed(fd.get(), watched.memory().page(3), 100), 100);
  EXPECT_EQ(*watched.memory().page(3), 'k');
  EXPECT_EQ(watched.take(), Pages());
  watched.tracker().mark_always_dirty(watched.memory().pages(2, 2));
  EXPECT_EQ(watched.take(), (Pages{2, 3}));
  EXPECT_EQ(watched.take(), (Pages{2, 3}));
}

}  // namespace
}  // namespace pagetide
