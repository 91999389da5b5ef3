// The C example of safepoints as its users run it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/run_program.h"
#include "tests/support/temporary_directory.h"

namespace pagetide {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(SafepointsExample, no_coin_is_missing_in_any_snapshot) {
  const TemporaryDirectory directory;
  const RunResult result = run_program({SAFEPOINTS_PATH, directory.file("store")});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out,
            "snapshot 1 holds 400000 coins\nsnapshot 2 holds 400000 coins\n"
            "snapshot 3 holds 400000 coins\nsnapshot 4 holds 400000 coins\n"
            "snapshot 5 holds 400000 coins\n");
}

TEST(SafepointsExample, says_what_is_wrong) {
  const RunResult unnamed = run_program({SAFEPOINTS_PATH});
  EXPECT_EQ(unnamed.exit_code, 2);
  EXPECT_THAT(unnamed.err, StartsWith("usage: "));
  const RunResult nowhere = run_program({SAFEPOINTS_PATH, "/nonexistent/store"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace pagetide
