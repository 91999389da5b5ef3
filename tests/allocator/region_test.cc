#include "pagetide/allocator/region.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "pagetide/base/bytes.h"
#include "pagetide/base/hash.h"
#include "pagetide/base/unique_fd.h"
#include "tests/support/child_process.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/no_sanitizer_handlers.h"
#include "tests/support/random_source.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

namespace pagetide {
namespace {

using namespace literals;
using ::testing::HasSubstr;

constexpr std::uintptr_t kFirstSmallBase = 0x5500'0000'0000;
constexpr std::uintptr_t kFirstLargeBase = 0x2000'0000'0000;
// A base that tests may name: no region is put there by itself while it is free below.
constexpr std::uintptr_t kNamedBase = 0x5540'0000'0000;

RegionOptions options(std::size_t reserve_bytes) {
  RegionOptions result;
  result.reserve_bytes = reserve_bytes;
  return result;
}

RegionOptions options_at(std::uintptr_t base, std::size_t reserve_bytes) {
  RegionOptions result = options(reserve_bytes);
  result.base = base;
  return result;
}

ByteRange pages_of(const Region& region, std::size_t first, std::size_t count) {
  return PageRange{first, count}.bytes_from(region.range().begin);
}

volatile char& byte_of(const Region& region, std::size_t page) {
  return *reinterpret_cast<volatile char*>(pages_of(region, page, 1).data());
}

Collected collect(const Region& region, CollectMode mode) {
  return must(region.tracker().collect(region.watch(), mode));
}

// Memory that somebody else has.
class Occupant {
 public:
  Occupant(ByteRange range, int fd)
      : range_(range),
        mapped_(::mmap(range.data(), range.size, PROT_READ,
                       MAP_PRIVATE | MAP_FIXED_NOREPLACE | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0)) {
    EXPECT_EQ(mapped_, range_.data());
  }
  Occupant(const Occupant&) = delete;
  Occupant& operator=(const Occupant&) = delete;
  ~Occupant() { ::munmap(range_.data(), range_.size); }

 private:
  ByteRange range_;
  void* mapped_;
};

TEST(RegionBaseTest, the_first_regions_of_a_program_have_the_same_bases_each_time) {
  for (int round = 0; round < 2; ++round) {
    const Region first = must(Region::reserve(options(64_KiB)));
    const Region second = must(Region::reserve(options(3_GiB)));
    const Region third = must(Region::reserve(options(1_GiB)));
    EXPECT_EQ(first.range(), (ByteRange{kFirstSmallBase, 64_KiB}));
    EXPECT_EQ(second.range(), (ByteRange{kFirstSmallBase + 1_GiB, 3_GiB}));
    EXPECT_EQ(third.range(), (ByteRange{kFirstSmallBase + 4_GiB, 1_GiB}));
  }
}

TEST(RegionBaseTest, a_region_too_large_for_the_small_area_gets_a_base_of_the_large_one) {
#ifdef __SANITIZE_THREAD__
  PAGETIDE_SKIP("ThreadSanitizer keeps that area to itself");
#endif
  const Region region = must(Region::reserve(options(400_GiB)));
  EXPECT_EQ(region.range(), (ByteRange{kFirstLargeBase, 400_GiB}));
}

TEST(RegionBaseTest, a_named_base_is_kept) {
  const Region region = must(Region::reserve(options_at(kNamedBase + 64_KiB, 1_MiB)));
  EXPECT_EQ(region.range(), (ByteRange{kNamedBase + 64_KiB, 1_MiB}));
  EXPECT_EQ(region.base(), region.range().data());
}

TEST(RegionBaseTest, the_size_is_rounded_up_to_pages) {
  const Region region = must(Region::reserve(options(page_size() + 1)));
  EXPECT_EQ(region.range().size, 2 * page_size());
}

TEST(RegionBaseTest, a_taken_range_names_the_file_that_occupies_it) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("with a space");
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(64_KiB)), 0);
  const Occupant occupant({kNamedBase + 512_KiB, 64_KiB}, fd.get());
  const auto region = Region::reserve(options_at(kNamedBase, 1_MiB));
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code(), ErrorCode::address_taken);
  EXPECT_EQ(region.error().system_errno(), EEXIST);
  EXPECT_EQ(
      region.error().message(),
      "cannot reserve 1048576 bytes at 0x554000000000: the range is taken by "
      "0x554000080000-0x554000090000 " +
          path +
          ". An arena only works at its recorded base; free that range, open the arena earlier "
          "in the program, or start the program with another mapping layout.");
}

TEST(RegionBaseTest, a_taken_range_names_anonymous_memory_as_such) {
  const Occupant occupant({kNamedBase, 64_KiB}, -1);
  const auto region = Region::reserve(options_at(kNamedBase, 1_MiB));
  ASSERT_FALSE(region);
  EXPECT_THAT(region.error().message(),
              HasSubstr("is taken by 0x554000000000-0x554000010000 anonymous memory."));
}

TEST(RegionBaseTest, a_range_taken_by_another_region_is_refused_and_that_one_unharmed) {
  const Region first = must(Region::reserve(options_at(kNamedBase, 1_MiB)));
  must(first.tracker().collect(first.watch(), CollectMode::take));
  EXPECT_EQ(Region::reserve(options_at(kNamedBase, 1_MiB)).error().code(),
            ErrorCode::address_taken);
  EXPECT_FALSE(collect(first, CollectMode::take).poisoned);
}

TEST(RegionBaseTest, sizes_and_bases_that_can_never_work_are_invalid) {
  for (const RegionOptions& wrong :
       {options(0), options(SIZE_MAX), options_at(kNamedBase + 8, 1_MiB)}) {
    const auto region = Region::reserve(wrong);
    ASSERT_FALSE(region);
    EXPECT_EQ(region.error().code(), ErrorCode::invalid_argument);
  }
  EXPECT_EQ(
      Region::reserve(options(0)).error().message(),
      "cannot reserve 0 bytes at 0x0: the size must not be 0 and the base must be a multiple of "
      "the page size " +
          std::to_string(page_size()) + ".");
}

TEST(RegionBaseTest, more_than_the_address_space_is_out_of_memory) {
  const auto region = Region::reserve(options(256_TiB));
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code(), ErrorCode::out_of_memory) << region.error().message();
}

TEST(RegionBaseTest, a_base_that_is_no_address_of_a_program_is_refused) {
#ifdef __SANITIZE_THREAD__
  PAGETIDE_SKIP("ThreadSanitizer ends the program at such an address");
#endif
  const auto region = Region::reserve(options_at(0xffff'8000'0000'0000, 1_MiB));
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code(), ErrorCode::out_of_memory) << region.error().message();
}

class RegionTest : public testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    auto region = Region::reserve(with(Prefill::zero_page));
    if (!region) PAGETIDE_SKIP(region.error().message().c_str());
    region_.emplace(std::move(*region));
  }
  static RegionOptions with(Prefill prefill) {
    RegionOptions result = options(64 * page_size());
    result.prefill = prefill;
    result.backend = GetParam();
    return result;
  }
  Region& region() { return *region_; }

 private:
  std::optional<Region> region_;
};

INSTANTIATE_TEST_SUITE_P(every_back_end, RegionTest,
                         testing::Values(BackendKind::uffd_async, BackendKind::uffd_sync,
                                         BackendKind::uffd_sigbus, BackendKind::write_protect,
                                         BackendKind::compare),
                         [](const auto& kind) { return std::string(to_string(kind.param)); });

TEST_P(RegionTest, uncommitted_memory_cannot_be_used) {
  must(region().commit(pages_of(region(), 0, 1)));
  EXPECT_EQ(run_in_child([&] {
              byte_of(region(), 0) = 1;
              byte_of(region(), 1) = 1;
              return std::string("wrote to uncommitted memory");
            }),
            "killed by SIGSEGV");
}

TEST_P(RegionTest, committed_memory_is_zero_and_usable) {
  must(region().commit(pages_of(region(), 4, 8)));
  const ByteRange committed = pages_of(region(), 4, 8);
  EXPECT_TRUE(is_all_zero(committed.data(), committed.size));
  std::memset(committed.data(), 7, committed.size);
  EXPECT_EQ(byte_of(region(), 11), 7);
}

TEST_P(RegionTest, committing_again_keeps_what_is_there) {
  must(region().commit(pages_of(region(), 0, 4)));
  byte_of(region(), 2) = 42;
  must(region().commit(pages_of(region(), 0, 8)));
  must(region().prefill(pages_of(region(), 0, 8)));
  EXPECT_EQ(byte_of(region(), 2), 42);
}

TEST_P(RegionTest, committing_again_does_not_disturb_tracking) {
  must(region().commit(pages_of(region(), 0, 8)));
  for (std::size_t page = 0; page < 8; ++page) byte_of(region(), page) = 1;
  EXPECT_EQ(collect(region(), CollectMode::take).written.count(), 8U);
  must(region().commit(pages_of(region(), 0, 16)));
  byte_of(region(), 3) = 2;
  byte_of(region(), 12) = 2;
  const DirtyBitmap written = collect(region(), CollectMode::take).written;
  EXPECT_TRUE(written.test(3));
  EXPECT_TRUE(written.test(12));
}

TEST_P(RegionTest, pieces_in_any_order_commit_what_they_cover) {
  RandomSource random;
  std::set<std::size_t> committed;
  for (int i = 0; i < 6; ++i) {
    const std::size_t first = random.below(60);
    const std::size_t count = random.between(1, std::min<std::size_t>(12, 64 - first));
    must(region().commit(pages_of(region(), first, count)));
    for (std::size_t page = first; page < first + count; ++page) committed.insert(page);
    for (const std::size_t page : committed) byte_of(region(), page) = static_cast<char>(i + 1);
  }
  for (std::size_t page = 0; page < 64; ++page) {
    const std::string flags = mapping_flags(pages_of(region(), page, 1).data());
    EXPECT_EQ(flags.find(" wr ") != std::string::npos, committed.contains(page)) << page;
  }
}

TEST_P(RegionTest, committed_memory_counts_as_not_written) {
  must(region().commit(pages_of(region(), 0, 64)));
  must(region().prefill(pages_of(region(), 0, 64)));
  const Collected collected = collect(region(), CollectMode::take);
  EXPECT_FALSE(collected.written.any());
  EXPECT_FALSE(collected.zeroed.any());
}

TEST_P(RegionTest, prefilled_memory_is_tracked_exactly) {
  must(region().commit(pages_of(region(), 0, 64)));
  must(region().prefill(pages_of(region(), 0, 64)));
  for (std::size_t page = 0; page < 64; ++page) EXPECT_EQ(byte_of(region(), page), 0);
  byte_of(region(), 9) = 1;
  byte_of(region(), 63) = 1;
  const Collected collected = collect(region(), CollectMode::take);
  EXPECT_EQ(collected.written.count(), 2U);
  EXPECT_TRUE(collected.written.test(9) && collected.written.test(63));
}

TEST_P(RegionTest, without_prefill_every_write_is_seen_too) {
  Region plain = must(Region::reserve(with(Prefill::none)));
  EXPECT_EQ(plain.prefill_policy(), Prefill::none);
  must(plain.commit(pages_of(plain, 0, 64)));
  const std::size_t resident = resident_pages(plain.range());
  must(plain.prefill(pages_of(plain, 0, 64)));
  EXPECT_EQ(resident_pages(plain.range()), resident) << "the policy says: leave it alone";
  for (int round = 1; round <= 3; ++round) {
    byte_of(plain, 9) = static_cast<char>(round);
    const Collected collected = collect(plain, CollectMode::take);
    EXPECT_EQ(collected.written.count(), 1U);
    EXPECT_TRUE(collected.written.test(9));
  }
}

TEST_P(RegionTest, purged_memory_reads_as_zero_and_is_logged) {
  must(region().commit(pages_of(region(), 0, 64)));
  const ByteRange used = pages_of(region(), 0, 16);
  std::memset(used.data(), 7, used.size);
  EXPECT_EQ(collect(region(), CollectMode::take).written.count(), 16U);
  must(region().purge(pages_of(region(), 4, 4)));
  const Collected collected = collect(region(), CollectMode::take);
  // A back end that looks at the content may call it written: that is right as well.
  DirtyBitmap known = collected.written;
  known |= collected.zeroed;
  EXPECT_EQ(known.count(), 4U);
  EXPECT_EQ(known.next_run(0), (PageRange{4, 4}));
  const ByteRange purged = pages_of(region(), 4, 4);
  EXPECT_TRUE(is_all_zero(purged.data(), purged.size));
  EXPECT_EQ(region().tracker().stats().pages_purged, 4U);
}

TEST_P(RegionTest, its_end_unmaps_everything_and_frees_the_base) {
  ByteRange range;
  {
    const Region second = must(Region::reserve(with(Prefill::zero_page)));
    range = second.range();
    EXPECT_NE(range.begin, region().range().begin);
  }
  EXPECT_TRUE(is_unmapped(range));
  EXPECT_EQ(must(Region::reserve(with(Prefill::zero_page))).range(), range);
}

TEST_P(RegionTest, moving_takes_memory_and_tracking_along) {
  must(region().commit(pages_of(region(), 0, 8)));
  const ByteRange range = region().range();
  byte_of(region(), 3) = 42;
  Region moved(std::move(region()));
  EXPECT_EQ(moved.range(), range);
  EXPECT_EQ(byte_of(moved, 3), 42);
  EXPECT_TRUE(collect(moved, CollectMode::take).written.test(3));
  Region other = must(Region::reserve(with(Prefill::none)));
  const ByteRange replaced = other.range();
  other = std::move(moved);
  EXPECT_EQ(other.range(), range);
  EXPECT_TRUE(is_unmapped(replaced));
}

TEST_P(RegionTest, a_forked_child_may_use_the_memory_and_leaves_its_parent_alone) {
  must(region().commit(pages_of(region(), 0, 32)));
  must(region().prefill(pages_of(region(), 0, 32)));
  byte_of(region(), 1) = 1;
  EXPECT_EQ(run_in_child([&]() -> std::string {
              byte_of(region(), 5) = 9;
              // A heap that goes on in the child calls these.
              if (!region().commit(pages_of(region(), 32, 8))) return "commit";
              if (!region().prefill(pages_of(region(), 32, 8))) return "prefill";
              if (!region().purge(pages_of(region(), 1, 1))) return "purge";
              byte_of(region(), 33) = 9;
              const Region ending = std::move(region());
              return byte_of(ending, 33) == 9 && byte_of(ending, 1) == 0 ? "" : "wrong memory";
            }),
            "");
  EXPECT_EQ(byte_of(region(), 1), 1);
  EXPECT_EQ(byte_of(region(), 5), 0);
  const Collected collected = collect(region(), CollectMode::take);
  EXPECT_FALSE(collected.poisoned);
  EXPECT_EQ(collected.written.count(), 1U);
  EXPECT_TRUE(collected.written.test(1));
}

TEST(RegionCoreDumpTest, holds_what_is_committed_and_not_the_reservation) {
  Region region = must(Region::reserve(options(1_GiB)));
  EXPECT_THAT(mapping_flags(region.base()), HasSubstr(" dd "));
  must(region.commit(pages_of(region, 0, 8)));
  EXPECT_THAT(mapping_flags(region.base()), testing::Not(HasSubstr(" dd ")));
  EXPECT_THAT(mapping_flags(pages_of(region, 8, 1).data()), HasSubstr(" dd "));
}

TEST(RegionCostTest, an_untouched_reservation_costs_no_memory) {
  const std::size_t before = status_kib("VmPTE");
  const Region region = must(Region::reserve(options(64_GiB)));
  must(region.tracker().collect(region.watch(), CollectMode::take));
  EXPECT_EQ(resident_pages({region.range().begin, 1_GiB}), 0U);
  // Arming it would cost 128 MiB of page tables; a sanitizer has a few of its own.
  EXPECT_LE(status_kib("VmPTE"), before + 1024);
}

TEST(RegionCostTest, a_back_end_that_is_not_there_is_refused_by_name) {
  ::setenv("PAGETIDE_DISABLE", "userfaultfd", 1);
  RegionOptions forced = options(1_MiB);
  forced.backend = BackendKind::uffd_async;
  const auto region = Region::reserve(forced);
  ::unsetenv("PAGETIDE_DISABLE");
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code(), ErrorCode::unsupported);
}

}  // namespace
}  // namespace pagetide
