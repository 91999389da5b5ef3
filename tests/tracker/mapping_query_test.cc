#include "pagetide/tracker/kernel/mapping_query.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "pagetide/tracker/kernel/maps_reader.h"
#include "tests/support/environment.h"
#include "tests/support/mapping.h"
#include "tests/support/memory_file.h"
#include "tests/support/must.h"

namespace pagetide {
namespace {

bool operator==(const MappedPart& a, const MappedPart& b) {
  return a.range == b.range && a.is_file == b.is_file && a.is_shared == b.is_shared &&
         a.page_bytes == b.page_bytes;
}

// Both ways of asking must give one answer.
class MappingQueryTest : public testing::TestWithParam<bool> {
 protected:
  MappingQueryTest()
      : disabled_(GetParam() ? "" : "procmap_query"), query_(must(MappingQuery::open())) {}
  std::vector<MappedPart> parts_of(ByteRange range) { return must(query_.parts_of(range)); }

  Disabled disabled_;
  MappingQuery query_;
};

INSTANTIATE_TEST_SUITE_P(by, MappingQueryTest, testing::Bool(), [](const auto& fast) {
  return std::string(fast.param ? "ioctl" : "reading");
});

TEST_P(MappingQueryTest, anonymous_memory_is_one_part) {
  const Mapping mapping(10);
  const auto parts = parts_of(mapping.pages(2, 5));
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_TRUE(parts[0] == (MappedPart{mapping.pages(2, 5), false, false, page_size()}));
}

TEST_P(MappingQueryTest, neighbours_of_one_kind_are_one_part) {
  const Mapping mapping(10);
  ASSERT_EQ(::madvise(mapping.page(4), page_size(), MADV_NOHUGEPAGE), 0);
  EXPECT_EQ(parts_of(mapping.range()).size(), 1U);
  ASSERT_EQ(::mprotect(mapping.page(4), page_size(), PROT_READ), 0);
  const auto parts = parts_of(mapping.range());
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_TRUE(parts[0].is_writable && !parts[1].is_writable && parts[1].is_readable);
}

TEST_P(MappingQueryTest, files_private_and_shared_are_parts_of_their_own) {
  const UniqueFd fd = memory_file(2);
  const Mapping mapping(10);
  ASSERT_NE(::mmap(mapping.page(2), 2 * page_size(), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_FIXED, fd.get(), 0),
            MAP_FAILED);
  ASSERT_NE(::mmap(mapping.page(4), 2 * page_size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   fd.get(), 0),
            MAP_FAILED);
  const auto parts = parts_of(mapping.range());
  ASSERT_EQ(parts.size(), 4U);
  EXPECT_TRUE(parts[0] == (MappedPart{mapping.pages(0, 2), false, false, page_size()}));
  EXPECT_TRUE(parts[1] == (MappedPart{mapping.pages(2, 2), true, false, page_size()}));
  EXPECT_TRUE(parts[2] == (MappedPart{mapping.pages(4, 2), true, true, page_size()}));
  EXPECT_TRUE(parts[3] == (MappedPart{mapping.pages(6, 4), false, false, page_size()}));
}

TEST_P(MappingQueryTest, a_hole_is_an_error_that_names_its_address) {
  const Mapping mapping(3);
  ASSERT_EQ(::munmap(mapping.page(1), page_size()), 0);
  const auto parts = query_.parts_of(mapping.range());
  ASSERT_FALSE(parts);
  EXPECT_EQ(parts.error().code(), ErrorCode::invalid_argument);
  std::ostringstream address;
  address << std::hex << reinterpret_cast<std::uintptr_t>(mapping.page(1));
  EXPECT_NE(parts.error().message().find("0x" + address.str()), std::string::npos);
}

// By address, since other mappings come and go meanwhile.
std::map<std::uintptr_t, MapsLine> lines_by_address() {
  std::map<std::uintptr_t, MapsLine> lines;
  std::ifstream maps("/proc/self/maps");
  for (std::string text; std::getline(maps, text);) {
    std::istringstream fields(text);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::string permissions;
    std::string offset;
    std::string device;
    std::uint64_t inode = 0;
    fields >> std::hex >> begin >> dash >> end >> permissions >> offset >> device >> std::dec >>
        inode;
    MapsLine& line = lines[begin];
    line.range = {begin, end - begin};
    line.readable = permissions[0] == 'r';
    line.writable = permissions[1] == 'w';
    line.executable = permissions[2] == 'x';
    line.shared = permissions[3] == 's';
    line.is_file = inode != 0;
  }
  return lines;
}

TEST(MapsReaderTest, reads_what_the_file_says) {
  const auto lines = lines_by_address();
  MapsReader reader;
  ASSERT_TRUE(reader.valid());
  MapsLine line;
  std::size_t compared = 0;
  while (reader.next(line)) {
    const auto other = lines.find(line.range.begin);
    if (other == lines.end() || other->second.range != line.range) continue;
    ++compared;
    EXPECT_EQ(line.readable, other->second.readable);
    EXPECT_EQ(line.writable, other->second.writable);
    EXPECT_EQ(line.executable, other->second.executable);
    EXPECT_EQ(line.shared, other->second.shared);
    EXPECT_EQ(line.is_file, other->second.is_file);
  }
  EXPECT_GT(compared, lines.size() / 2);
  EXPECT_GT(compared, 10U);
}

TEST(MapsReaderTest, ends) {
  MapsReader reader;
  MapsLine line;
  std::size_t count = 0;
  while (reader.next(line)) ASSERT_LT(++count, 100'000U);
  EXPECT_GT(count, 10U);
  EXPECT_FALSE(reader.next(line));
}

}  // namespace
}  // namespace pagetide
