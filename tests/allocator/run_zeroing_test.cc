#include "pagetide/allocator/run_zeroing.h"

#include <gtest/gtest.h>

#include <cstring>

#include "pagetide/base/hash.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"

namespace pagetide {
namespace {

using namespace literals;

TEST(CheaperZeroingTest, stores_where_nothing_is_armed_however_large) {
  for (std::size_t pages = 1; pages < 1'000'000; pages *= 3) {
    EXPECT_EQ(cheaper_zeroing(pages, 0, BackendKind::uffd_async), ZeroedBy::stores) << pages;
  }
}

TEST(CheaperZeroingTest, a_purge_where_more_than_a_few_pages_are_armed) {
  for (std::size_t pages = 4; pages < 1'000'000; pages *= 3) {
    EXPECT_EQ(cheaper_zeroing(pages, pages, BackendKind::uffd_async), ZeroedBy::purge) << pages;
  }
}

TEST(CheaperZeroingTest, one_page_is_not_worth_a_system_call) {
  EXPECT_EQ(cheaper_zeroing(1, 1, BackendKind::uffd_async), ZeroedBy::stores);
}

TEST(CheaperZeroingTest, the_dearer_the_fault_the_fewer_are_borne) {
  const auto most_armed = [](BackendKind backend) {
    std::size_t armed = 0;
    while (cheaper_zeroing(1000, armed + 1, backend) == ZeroedBy::stores) ++armed;
    return armed;
  };
  EXPECT_GT(most_armed(BackendKind::uffd_async), most_armed(BackendKind::uffd_sigbus));
  EXPECT_GT(most_armed(BackendKind::uffd_sigbus), most_armed(BackendKind::write_protect));
  EXPECT_GT(most_armed(BackendKind::write_protect), most_armed(BackendKind::uffd_sync));
}

class ZeroRunTest : public testing::TestWithParam<BackendKind> {
 protected:
  static constexpr std::size_t kBytes = 1_MiB;

  ZeroRunTest() : region_(must(Region::reserve(options()))) {
    must(region_.commit(region_.range()));
    take();
    std::memset(region_.base(), 1, kBytes);
  }
  static RegionOptions options() {
    RegionOptions result;
    result.reserve_bytes = kBytes;
    result.backend = GetParam();
    return result;
  }
  Collected take() { return must(region_.tracker().collect(region_.watch(), CollectMode::take)); }
  static bool protects() { return GetParam() != BackendKind::compare; }

  Region region_;
};

INSTANTIATE_TEST_SUITE_P(all, ZeroRunTest,
                         testing::Values(BackendKind::uffd_async, BackendKind::uffd_sigbus,
                                         BackendKind::write_protect, BackendKind::compare),
                         [](const auto& backend) { return std::string(to_string(backend.param)); });

TEST_P(ZeroRunTest, written_pages_are_cleared_by_stores) {
  EXPECT_EQ(region_.tracker().count_armed(region_.range()), 0U);
  EXPECT_EQ(zero_run(region_, region_.range()), ZeroedBy::stores);
  EXPECT_TRUE(is_all_zero(region_.base(), kBytes));
  EXPECT_EQ(resident_pages(region_.range()), kBytes / page_size());
}

TEST_P(ZeroRunTest, armed_pages_are_purged) {
  take();
  EXPECT_EQ(region_.tracker().count_armed(region_.range()), protects() ? kBytes / page_size() : 0);
  EXPECT_EQ(zero_run(region_, region_.range()), protects() ? ZeroedBy::purge : ZeroedBy::stores);
  EXPECT_TRUE(is_all_zero(region_.base(), kBytes));
}

TEST_P(ZeroRunTest, armed_pages_are_counted_one_by_one) {
  take();
  for (std::size_t page = 0; page < kBytes / page_size(); page += 3) {
    region_.base()[page * page_size()] = std::byte{2};
  }
  const ByteRange three = {region_.range().begin + 3 * page_size(), 3 * page_size()};
  // Opening a page can open its neighbours, which tracking by mprotect does.
  const std::size_t armed = region_.tracker().count_armed(three);
  if (GetParam() == BackendKind::write_protect) {
    EXPECT_LE(armed, 2U);
  } else {
    EXPECT_EQ(armed, protects() ? 2U : 0U);
  }
}

TEST_P(ZeroRunTest, the_next_take_tells_of_every_page_either_way) {
  for (const bool armed : {false, true}) {
    std::memset(region_.base(), 1, kBytes);
    take();
    if (!armed) std::memset(region_.base(), 2, kBytes);
    zero_run(region_, region_.range());
    const Collected collected = take();
    DirtyBitmap told = collected.written;
    told |= collected.zeroed;
    EXPECT_EQ(told.count(), kBytes / page_size()) << armed;
  }
}

TEST_P(ZeroRunTest, giving_back_frees_the_memory) {
  EXPECT_EQ(zero_run_and_give_back(region_, region_.range()), ZeroedBy::purge);
  EXPECT_TRUE(is_all_zero(region_.base(), kBytes));
}

}  // namespace
}  // namespace pagetide
