// Every workload at a hundredth of its size: that it runs, verifies what it should, and reports.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "bench/heap/workload.h"
#include "tests/support/run_program.h"

namespace pagetide::bench {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

RunResult run_worker_with(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), PAGETIDE_HEAP_WORKER);
  return run_program(arguments);
}

Json report_of(const RunResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return Json::parse(result.out, nullptr, /*allow_exceptions=*/false);
}

class HeapWorkerTest : public testing::TestWithParam<std::tuple<std::string, std::string_view>> {
 protected:
  std::string source() const { return "--source=" + std::get<0>(GetParam()); }
  std::string workload() const { return "--workload=" + std::string(std::get<1>(GetParam())); }
};

TEST_P(HeapWorkerTest, does_its_work) {
  const Json report = report_of(run_worker_with({source(), workload(), "--percent=1"}));
  EXPECT_GT(report.value("seconds", 0.0), 0.0);
  EXPECT_GT(report.value("operations", 0), 0);
  EXPECT_GT(report.value("peak_rss_kib", 0), 0);
}

std::string name_of(const testing::TestParamInfo<HeapWorkerTest::ParamType>& instance) {
  return std::get<0>(instance.param) + "_" + std::string(std::get<1>(instance.param));
}

INSTANTIATE_TEST_SUITE_P(every, HeapWorkerTest,
                         testing::Combine(testing::Values("malloc", "arena", "arena_clears",
                                                          "arena_keeps"),
                                          testing::ValuesIn(kWorkloads)),
                         name_of);

TEST(HeapWorker, does_as_many_portions_as_asked_for) {
  const auto operations = [](const std::string& portions) {
    return report_of(run_worker_with({"--source=malloc", "--workload=growth", "--percent=1",
                                      "--portions=" + portions}))
        .value("operations", 0);
  };
  EXPECT_EQ(operations("4"), 2 * operations("2"));
}

TEST(HeapWorker, works_as_long_as_epochs_are_taken) {
  const Json report = report_of(run_worker_with({"--source=arena_clears", "--workload=small_churn",
                                                 "--percent=1", "--epoch-ms=20", "--epochs=3"}));
  EXPECT_GE(report.value("seconds", 0.0), 0.06);
  // 500 blocks lie in 13 pages at least, and 6000 replacements write to all of them.
  EXPECT_GE(report.value("taken_pages", 0), 13);
}

TEST(HeapWorker, takes_no_epochs_of_another_heap_than_an_arena) {
  const RunResult result = run_worker_with(
      {"--source=malloc", "--workload=growth", "--percent=1", "--epoch-ms=10", "--epochs=1"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("arena's tracker"));
}

TEST(HeapWorker, names_the_library_of_malloc) {
  const Json report =
      report_of(run_worker_with({"--source=malloc", "--workload=growth", "--percent=1"}));
  EXPECT_THAT(report.value("malloc", ""), HasSubstr("/libc.so"));
}

TEST(HeapWorker, refuses_what_it_does_not_know) {
  EXPECT_EQ(run_worker_with({"--source=none", "--workload=growth"}).exit_code, 2);
  EXPECT_EQ(run_worker_with({"--source=malloc", "--workload=none"}).exit_code, 2);
  EXPECT_EQ(run_worker_with({"--sauce=malloc"}).exit_code, 2);
}

class DirtyPagesTest : public testing::TestWithParam<std::string> {};

// A hundredth: 10 000 objects in some 350 pages, and in each epoch 100 replaced, 500 replaced, both
// also with 100 updated; and these alone.
TEST_P(DirtyPagesTest, counts_pages_of_every_phase) {
  const Json report = report_of(
      run_worker_with({"--source=" + GetParam(), "--workload=dirty_pages", "--percent=1"}));
  const Json phases = report.value("dirty", Json::array());
  ASSERT_EQ(phases.size(), 5U);
  for (const Json& phase : phases) {
    const double dirty = phase.at("dirty_pages");
    const double memory = phase.at("memory_pages");
    EXPECT_GE(memory, 340);
    EXPECT_LE(dirty, memory);
    // Random blocks lie in different pages, nearly all of them. An arena that does not clear at
    // once frees them without writing there, and makes the new ones side by side.
    const double least = phase.at("replaced") > 100 ? 200 : 70;
    const bool writes_nothing = GetParam() == "arena" || GetParam() == "arena_keeps";
    EXPECT_GE(dirty, writes_nothing ? least / 4 : least);
  }
  // Updates dirty further pages.
  EXPECT_GT(phases[1].at("dirty_pages"), phases[0].at("dirty_pages"));
  EXPECT_EQ(phases[2].at("replaced"), 0);
  EXPECT_EQ(phases[2].at("updated"), phases[1].at("updated"));
  EXPECT_LT(phases[2].at("dirty_pages"), phases[1].at("dirty_pages"));
}

TEST_P(DirtyPagesTest, counts_ranges_of_an_arenas_pages) {
  const Json report = report_of(
      run_worker_with({"--source=" + GetParam(), "--workload=dirty_pages", "--percent=1"}));
  for (const Json& phase : report.value("dirty", Json::array())) {
    if (GetParam() == "malloc") {
      EXPECT_EQ(phase.at("dirty_ranges"), 0);
    } else {
      EXPECT_GE(phase.at("dirty_ranges"), 2);
      EXPECT_LT(phase.at("dirty_ranges"), phase.at("dirty_pages"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(of, DirtyPagesTest,
                         testing::Values("malloc", "arena", "arena_clears", "arena_keeps"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace pagetide::bench
