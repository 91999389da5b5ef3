// The C example as its users run it.

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "tests/support/run_program.h"

namespace pagetide {
namespace {

// What it prints after the line that names the back end.
constexpr std::string_view kExpectedLines =
    "backup: written 1-2 7\n"
    "backup: written 12\n"
    "statistics: written 1-2 7 12\n"
    "backup: zeroed 1-2\n";

void expect_success_with(const RunResult& result, const std::string& backend) {
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "tracked by " + backend + "\n" + std::string(kExpectedLines));
}

TEST(WatchMemoryExample, prints_what_was_written_with_the_best_back_end) {
  const RunResult result = run_program({WATCH_MEMORY_PATH});
  const std::string first_line = result.out.substr(0, result.out.find('\n'));
  const std::string by = "tracked by ";
  ASSERT_TRUE(first_line.starts_with(by)) << result.out << result.err;
  expect_success_with(result, first_line.substr(by.size()));
}

TEST(WatchMemoryExample, prints_the_same_pages_where_only_compare_works) {
  const RunResult result =
      run_program({WATCH_MEMORY_PATH}, {.environment = {{"PAGETIDE_DISABLE", "userfaultfd"}}});
  expect_success_with(result, "compare");
}

}  // namespace
}  // namespace pagetide
