#include "bench/heap/heap_contest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/must.h"

namespace pagetide::bench {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::DoubleNear;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Pair;

std::vector<HeapEntrant> arena_and_glibc() {
  return {{kOurs, kOurs, "", {}, ""}, {"glibc", "malloc", "", {}, ""}};
}

TEST(GeometricMeans, are_taken_figure_by_figure) {
  const Figures means = geometric_means({{{"ns", 2}, {"ratio", 8}}, {{"ns", 8}, {"ratio", 0.5}}});
  EXPECT_THAT(means, AllOf(Contains(Pair("ns", DoubleNear(4, 1e-9))),
                           Contains(Pair("ratio", DoubleNear(2, 1e-9)))));
}

TEST(GeometricMeans, leave_out_what_is_not_everywhere_or_zero) {
  const Figures means = geometric_means({{{"a", 2}, {"b", 0}}, {{"b", 1}, {"c", 1}}});
  EXPECT_TRUE(means.empty());
}

TEST(DirtyPagesContest, has_figures_of_every_phase) {
  DirtyPagesContest contest(arena_and_glibc(), 0.5);
  for (std::size_t phase = 0; phase < 5; ++phase) {
    const auto figures = contest.figures("glibc", phase);
    ASSERT_TRUE(figures.has_value()) << figures.error().message();
    EXPECT_THAT(
        *figures,
        AllOf(Contains(Pair("ns", Gt(0.0))), Contains(Pair("dirty_pages", Gt(0.0))),
              Contains(Pair("memory_MiB", Gt(0.0))), Contains(Pair("pages_ratio", Gt(0.0)))));
  }
}

TEST(DirtyPagesContest, compares_replacements_and_updates_with_the_updates_alone) {
  DirtyPagesContest contest(arena_and_glibc(), 0.5);
  const Figures both = must(contest.figures(kOurs, 1));
  const Figures updates = must(contest.figures(kOurs, 2));
  EXPECT_DOUBLE_EQ(both.at("updates_ratio"), both.at("dirty_pages") / updates.at("dirty_pages"));
  for (const std::size_t phase : {0U, 2U, 3U, 4U}) {
    EXPECT_EQ(must(contest.figures(kOurs, phase)).count("updates_ratio"), 0U) << phase;
  }
}

TEST(DirtyPagesContest, says_that_an_entrant_did_not_take_part) {
  std::vector<HeapEntrant> entrants = arena_and_glibc();
  entrants[1].missing = "not installed";
  DirtyPagesContest contest(entrants, 0.1);
  EXPECT_FALSE(contest.figures("glibc", 0).has_value());
}

TEST(RunWorker, hands_on_what_the_worker_said) {
  const auto report = run_worker({{"--source=malloc", "--workload=no_such"}, "", {}});
  ASSERT_FALSE(report.has_value());
  EXPECT_THAT(report.error().message(), HasSubstr("there is no workload 'no_such'"));
}

// The dynamic linker only warns of a library that it cannot load, and glibc would compete under
// another's name.
TEST(RunWorker, refuses_a_result_of_another_malloc) {
  const auto report = run_worker(
      {{"--source=malloc", "--workload=growth", "--percent=1"}, "/nowhere/libmalloc.so", {}});
  ASSERT_FALSE(report.has_value());
  EXPECT_THAT(report.error().message(), ContainsRegex("malloc came from '.*/libc.so"));
}

#if defined(PAGETIDE_HAS_JEMALLOC)
TEST(RunWorker, preloads_the_library_that_takes_the_place_of_malloc) {
  const auto report = run_worker(
      {{"--source=malloc", "--workload=growth", "--percent=1"}, PAGETIDE_LIBJEMALLOC, {}});
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_GT(report->operations, 0);
}

TEST(RunWorker, hands_no_preload_of_its_own_process_on) {
  ::setenv("LD_PRELOAD", PAGETIDE_LIBJEMALLOC, 1);
  const auto report = run_worker({{"--source=malloc", "--workload=growth", "--percent=1"}, "", {}});
  ::unsetenv("LD_PRELOAD");
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_GT(report->operations, 0);
}
#endif

}  // namespace
}  // namespace pagetide::bench
