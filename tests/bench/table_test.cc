#include "bench/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pagetide::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Report report_of(const std::string& entries) {
  auto report = read_report("clear_bench", R"({"context": {"date": "2025-01-02T03:04:05",
    "num_cpus": 2, "mhz_per_cpu": 2596, "load_avg": [0.25, 0, 0]}, "benchmarks": [)" +
                                               entries + "]}");
  EXPECT_TRUE(report.has_value());
  return report.value_or(Report{});
}

std::string entry(const std::string& aggregate, double time, const std::string& more = "") {
  return R"({"run_name": "Clear/16", "aggregate_name": ")" + aggregate +
         R"(", "time_unit": "us", "threads": 1, "iterations": 3, "real_time": )" +
         std::to_string(time) + more + "}";
}

TEST(BenchTable, TakesTheMedianAndTheVariationOfAggregates) {
  const Report report = report_of(
      entry("mean", 9) + "," + entry("median", 4.5, R"(, "bytes_per_second": 36.38e9, "ratio": 1.9,
                                       "dirty_pages": 1164, "label": "erms")") +
      "," + entry("stddev", 1) + "," + entry("cv", 0.034));
  ASSERT_EQ(report.rows.size(), 1U);
  const Row& row = report.rows[0];
  EXPECT_EQ(row.name, "Clear/16");
  EXPECT_DOUBLE_EQ(row.time_ns, 4500);
  EXPECT_DOUBLE_EQ(row.variation.value_or(-1), 0.034);
  EXPECT_DOUBLE_EQ(row.ratio.value_or(-1), 1.9);
  EXPECT_EQ(row.details, "36.4 GB/s  dirty_pages=1164  erms");
}

TEST(BenchTable, ComputesTheMedianOfPlainRepetitions) {
  const Report report = report_of(entry("", 3) + "," + entry("", 1) + "," + entry("", 2));
  ASSERT_EQ(report.rows.size(), 1U);
  EXPECT_DOUBLE_EQ(report.rows[0].time_ns, 2000);
  EXPECT_DOUBLE_EQ(report.rows[0].variation.value_or(-1), 0.5);
}

TEST(BenchTable, GivesNoVariationOfASingleRun) {
  const Report report = report_of(entry("", 3));
  ASSERT_EQ(report.rows.size(), 1U);
  EXPECT_FALSE(report.rows[0].variation.has_value());
}

TEST(BenchTable, ShowsABenchmarkThatFailedAsSuch) {
  const Report report = report_of(
      R"({"run_name": "Scan", "error_occurred": true, "error_message": "no async uffd"})");
  ASSERT_EQ(report.rows.size(), 1U);
  EXPECT_THAT(render(std::vector{report}), HasSubstr("NO RESULT: no async uffd"));
}

TEST(BenchTable, ShowsAReportWithoutAMedianAsAProblem) {
  const Report report = report_of(entry("mean", 9));
  ASSERT_EQ(report.rows.size(), 1U);
  EXPECT_THAT(report.rows[0].problem, HasSubstr("neither repetitions nor a median"));
}

TEST(BenchTable, RefusesWhatIsNoReport) {
  for (const char* text :
       {"", "{", "[]", "{}", R"({"benchmarks": 1})", R"({"benchmarks": [{"run_name": "a")"}) {
    const auto report = read_report("clear_bench", text);
    ASSERT_FALSE(report.has_value()) << text;
    EXPECT_EQ(report.error().code(), ErrorCode::damaged);
    EXPECT_THAT(report.error().message(), HasSubstr("clear_bench"));
  }
}

TEST(BenchTable, AlignsTheColumnsOfAllPrograms) {
  Report first{.program = "a", .machine = "m", .rows = {{.name = "x", .time_ns = 1.5e6}}};
  Report second{.program = "b", .machine = "m", .rows = {}};
  second.rows.push_back({.name = "longer/name",
                         .time_ns = 12.34,
                         .variation = 0.02,
                         .ratio = 27.5,
                         .details = "n=1"});
  EXPECT_EQ(render(std::vector{first, second}),
            "benchmark       median     +-    ratio  counters\n"
            "\n"
            "a (m)\n"
            "  x            1.50 ms\n"
            "\n"
            "b (m)\n"
            "  longer/name  12.3 ns  2.0 %  27.50 x  n=1\n");
}

TEST(BenchTable, NamesTheMachineButNotItsHost) {
  auto report = read_report("p", R"({"context": {"host_name": "secret", "date": "today",
    "num_cpus": 2, "mhz_per_cpu": 2596, "load_avg": [0.25]}, "benchmarks": []})");
  ASSERT_TRUE(report.has_value());
  EXPECT_THAT(render(std::vector{*report}),
              AllOf(HasSubstr("p (today, 2 CPUs at 2596 MHz, load 0.25)"), Not(HasSubstr("secret")),
                    HasSubstr("no benchmark ran")));
}

}  // namespace
}  // namespace pagetide::bench
