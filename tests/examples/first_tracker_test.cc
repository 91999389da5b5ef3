// The first program of docs/tracker.md as its readers build and run it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/run_program.h"

namespace pagetide {
namespace {

using ::testing::HasSubstr;

std::string text_of(const std::string& path) {
  const std::ifstream file(std::string(PAGETIDE_SOURCE_DIR) + "/" + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void expect_runs(const RunResult& result) {
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "2 pages from page 2\n1 pages from page 9\n");
}

TEST(FirstTracker, prints_the_runs_of_written_pages_with_the_best_back_end) {
  expect_runs(run_program({FIRST_TRACKER_PATH}));
}

TEST(FirstTracker, prints_the_same_where_only_compare_works) {
  expect_runs(
      run_program({FIRST_TRACKER_PATH}, {.environment = {{"PAGETIDE_DISABLE", "userfaultfd"}}}));
}

TEST(FirstTracker, is_in_the_documentation_word_for_word) {
  const std::string program = text_of("examples/first_tracker.cc");
  ASSERT_THAT(program, HasSubstr("int main()"));
  EXPECT_THAT(text_of("docs/tracker.md"), HasSubstr("\n```cpp\n" + program + "```\n"));
}

TEST(FirstTracker, prints_what_the_documentation_says) {
  const std::string printed = run_program({FIRST_TRACKER_PATH}).out;
  ASSERT_NE(printed, "");
  EXPECT_THAT(text_of("docs/tracker.md"), HasSubstr("\n```\n" + printed + "```\n"));
}

}  // namespace
}  // namespace pagetide
