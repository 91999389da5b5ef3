#include "pagetide/tracker/backends/compare_backend.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <set>
#include <string>

#include "pagetide/tracker/tracker.h"
#include "tests/support/child_process.h"
#include "tests/support/mapping.h"
#include "tests/support/memory_file.h"
#include "tests/support/must.h"
#include "tests/support/skip.h"

namespace pagetide {
namespace {

using Pages = std::set<std::size_t>;

Pages take(CompareBackend& backend, const Mapping& mapping) {
  DirtyBitmap written(mapping.pages());
  must(backend.collect(mapping.range(), mapping.range(), CollectMode::take, written));
  Pages pages;
  for (std::size_t page = 0; page < mapping.pages(); ++page) {
    if (written.test(page)) pages.insert(page);
  }
  return pages;
}

class CompareBackendTest : public testing::Test {
 protected:
  CompareBackendTest() : backend_(must(CompareBackend::open())) {}
  CompareBackend backend_;
};

TEST_F(CompareBackendTest, reports_first_what_is_not_zero) {
  const Mapping mapping(16);
  mapping.write(3, 1);
  mapping.write(4, 0);
  must(backend_.watch(mapping.range()));
  EXPECT_EQ(take(backend_, mapping), (Pages{3}));
  EXPECT_EQ(take(backend_, mapping), Pages());
}

TEST_F(CompareBackendTest, reports_a_change_of_any_byte_and_nothing_that_stayed_equal) {
  const Mapping mapping(4);
  must(backend_.watch(mapping.range()));
  for (std::size_t i = 0; i < page_size(); i += 61) {
    mapping.page(2)[i] = 1;
    EXPECT_EQ(take(backend_, mapping), (Pages{2})) << i;
    mapping.page(2)[i] = 1;
    EXPECT_EQ(take(backend_, mapping), Pages()) << i;
  }
}

TEST_F(CompareBackendTest, a_page_that_became_zero_is_a_change) {
  const Mapping mapping(4);
  must(backend_.watch(mapping.range()));
  mapping.write(1, 1);
  take(backend_, mapping);
  mapping.write(1, 0);
  EXPECT_EQ(take(backend_, mapping), (Pages{1}));
}

TEST_F(CompareBackendTest, a_peek_remembers_nothing) {
  const Mapping mapping(4);
  must(backend_.watch(mapping.range()));
  mapping.write(1, 1);
  DirtyBitmap seen(4);
  must(backend_.collect(mapping.range(), mapping.range(), CollectMode::peek, seen));
  EXPECT_TRUE(seen.test(1));
  EXPECT_EQ(take(backend_, mapping), (Pages{1}));
}

TEST_F(CompareBackendTest, purged_pages_are_reported_only_when_they_are_written_again) {
  const Mapping mapping(6);
  must(backend_.watch(mapping.range()));
  mapping.fill(7);
  take(backend_, mapping);
  const ByteRange purged = mapping.pages(2, 2);
  ASSERT_EQ(::madvise(purged.data(), purged.size, MADV_DONTNEED), 0);
  backend_.purged(purged);
  mapping.write(3, 7);  // no more than before, and yet another page
  EXPECT_EQ(take(backend_, mapping), (Pages{3}));
}

TEST_F(CompareBackendTest, memory_watched_again_starts_afresh) {
  const Mapping mapping(4);
  must(backend_.watch(mapping.range()));
  mapping.write(1, 1);
  take(backend_, mapping);
  backend_.unwatch(mapping.range());
  must(backend_.watch(mapping.range()));
  EXPECT_EQ(take(backend_, mapping), (Pages{1}));
}

TEST_F(CompareBackendTest, pages_that_cannot_be_read_are_passed_over_until_they_can) {
  const UniqueFd fd = memory_file(4);
  const Mapping mapping = Mapping::of_file(fd.get(), 4, MAP_SHARED);
  must(backend_.watch(mapping.range()));
  mapping.fill(1);
  take(backend_, mapping);
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(2 * page_size())), 0);
  mapping.write(1, 2);
  EXPECT_EQ(take(backend_, mapping), (Pages{1}));
  ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(4 * page_size())), 0);
  EXPECT_EQ(take(backend_, mapping), (Pages{2, 3}));  // zeros now
}

TEST_F(CompareBackendTest, guard_pages_are_passed_over) {
  constexpr int kGuardInstall = 102;
  const Mapping mapping(4);
  must(backend_.watch(mapping.range()));
  mapping.fill(1);
  take(backend_, mapping);
  if (::madvise(mapping.page(2), page_size(), kGuardInstall) != 0) {
    PAGETIDE_SKIP("this kernel has no MADV_GUARD_INSTALL (Linux 6.13)");
  }
  mapping.write(3, 2);
  EXPECT_EQ(take(backend_, mapping), (Pages{3}));
}

// A region is a reservation without access that is committed piece by piece; whoever collects all
// of it must not fault on the rest.
TEST_F(CompareBackendTest, passes_over_pages_that_cannot_be_read) {
  EXPECT_EQ(run_in_child([&]() -> std::string {
              const Mapping mapping(64, PROT_NONE);
              for (const std::size_t page : {0U, 5U, 6U, 63U}) {
                if (::mprotect(mapping.page(page), page_size(), PROT_READ | PROT_WRITE) != 0) {
                  return "mprotect";
                }
              }
              must(backend_.watch(mapping.range()));
              for (const std::size_t page : {0U, 6U, 63U}) mapping.write(page, 1);
              if (take(backend_, mapping) != Pages{0, 6, 63}) return "wrong pages";
              return take(backend_, mapping).empty() ? "" : "reported twice";
            }),
            "");
}

TEST_F(CompareBackendTest, a_page_hidden_at_one_take_is_compared_by_the_next_that_can_read_it) {
  EXPECT_EQ(run_in_child([&]() -> std::string {
              const Mapping mapping(8);
              must(backend_.watch(mapping.range()));
              mapping.write(2, 1);
              mapping.write(4, 1);
              (void)::mprotect(mapping.page(2), page_size(), PROT_NONE);
              if (take(backend_, mapping) != Pages{4}) return "hidden";
              (void)::mprotect(mapping.page(2), page_size(), PROT_READ);
              return take(backend_, mapping) == Pages{2} ? "" : "lost";
            }),
            "");
}

TEST_F(CompareBackendTest, many_mappings_in_between_are_read_to_their_end) {
  // More lines of /proc/self/maps than fit into one buffer, at borders that move.
  const Mapping mapping(400);
  must(backend_.watch(mapping.range()));
  for (std::size_t page = 0; page < 400; page += 2) {
    mapping.write(page, 1);
    ASSERT_EQ(::mprotect(mapping.page(page), page_size(), PROT_READ), 0);
  }
  mapping.write(399, 1);
  Pages expected{399};
  for (std::size_t page = 0; page < 400; page += 2) expected.insert(page);
  EXPECT_EQ(take(backend_, mapping), expected);
}

}  // namespace
}  // namespace pagetide
