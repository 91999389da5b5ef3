#include "bench/heap/process_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "tests/support/must.h"

namespace pagetide::bench {
namespace {

// The rest of this process writes now and then, too: to its data and its heap.
constexpr std::size_t kOthers = 16;

// With a page before and behind it that nobody may touch, so that the kernel joins it to no
// neighbour.
class Memory {
 public:
  Memory(std::size_t pages, int kind)
      : whole_((pages + 2) * page_size()),
        first_(::mmap(nullptr, whole_, PROT_NONE, kind | MAP_ANONYMOUS, -1, 0)),
        range_(ByteRange::of(static_cast<char*>(first_) + page_size(), pages * page_size())) {
    EXPECT_EQ(::mprotect(range_.data(), range_.size, PROT_READ | PROT_WRITE), 0);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { ::munmap(first_, whole_); }

  ByteRange range() const { return range_; }
  void write(std::size_t first, std::size_t count) {
    for (std::size_t page = first; page < first + count; ++page) {
      range_.data()[page * page_size()] = std::byte{++value_};
    }
  }

 private:
  std::size_t whole_;
  void* first_;
  ByteRange range_;
  std::uint8_t value_ = 0;
};

std::size_t written(ProcessPages& pages) {
  return must(pages.count()).written;
}

TEST(ProcessPages, pages_that_were_written_after_arming_count) {
  Memory memory(1000, MAP_PRIVATE);
  memory.write(0, 1000);
  const auto pages = must(ProcessPages::open({}, {}));
  ASSERT_TRUE(pages->arm());
  memory.write(100, 70);
  const std::size_t found = written(*pages);
  EXPECT_GE(found, 70U);
  EXPECT_LE(found, 70 + kOthers);
}

TEST(ProcessPages, arming_again_begins_a_new_count) {
  Memory memory(1000, MAP_PRIVATE);
  const auto pages = must(ProcessPages::open({}, {}));
  ASSERT_TRUE(pages->arm());
  memory.write(0, 1000);
  ASSERT_TRUE(pages->arm());
  EXPECT_LE(written(*pages), kOthers);
}

TEST(ProcessPages, pages_of_a_mapping_that_is_new_count) {
  const auto pages = must(ProcessPages::open({}, {}));
  ASSERT_TRUE(pages->arm());
  Memory memory(1000, MAP_PRIVATE);
  memory.write(0, 300);
  const std::size_t found = written(*pages);
  EXPECT_GE(found, 300U);
  EXPECT_LE(found, 300 + kOthers);
}

TEST(ProcessPages, a_mapping_that_went_away_is_no_error) {
  const auto pages = must(ProcessPages::open({}, {}));
  {
    Memory memory(100, MAP_PRIVATE);
    memory.write(0, 100);
    ASSERT_TRUE(pages->arm());
  }
  EXPECT_LE(written(*pages), kOthers);
}

TEST(ProcessPages, pages_that_were_only_read_do_not_count) {
  Memory memory(1000, MAP_PRIVATE);
  const auto pages = must(ProcessPages::open({}, {}));
  ASSERT_TRUE(pages->arm());
  const std::size_t before = must(pages->count()).populated;
  for (std::size_t page = 0; page < 1000; ++page) {
    EXPECT_EQ(memory.range().data()[page * page_size()], std::byte{0});
  }
  const auto counts = must(pages->count());
  EXPECT_LE(counts.written, kOthers);
  EXPECT_LE(counts.populated, before + kOthers);
}

TEST(ProcessPages, of_shared_mappings_only_the_one_that_was_named_counts) {
  Memory named(500, MAP_SHARED);
  Memory other(500, MAP_SHARED);
  const auto pages = must(ProcessPages::open(named.range(), {}));
  ASSERT_TRUE(pages->arm());
  named.write(0, 200);
  other.write(0, 300);
  const std::size_t fresh = written(*pages);
  EXPECT_GE(fresh, 200U);
  EXPECT_LE(fresh, 200 + kOthers);
  ASSERT_TRUE(pages->arm());
  named.write(10, 40);
  const std::size_t again = written(*pages);
  EXPECT_GE(again, 40U);
  EXPECT_LE(again, 40 + kOthers);
}

TEST(ProcessPages, what_is_tracked_elsewhere_is_only_looked_at) {
  Memory tracked(1000, MAP_PRIVATE);
  const auto pages = must(ProcessPages::open({}, tracked.range()));
  ASSERT_TRUE(pages->arm());
  const std::size_t before = must(pages->count()).populated;
  tracked.write(0, 1000);
  const auto counts = must(pages->count());
  EXPECT_LE(counts.written, kOthers);
  EXPECT_GE(counts.populated, before + 1000);
}

}  // namespace
}  // namespace pagetide::bench
