#include "pagetide/base/standard_error.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace pagetide {
namespace {

TEST(StandardErrorDeathTest, is_one_line_of_all_parts) {
  EXPECT_EXIT(
      {
        write_standard_error({"three ", "parts", "."});
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "^pagetide: three parts\\.\n$");
}

TEST(StandardErrorDeathTest, cuts_off_what_is_too_long_and_still_ends_the_line) {
  EXPECT_EXIT(
      {
        write_standard_error({std::string(5000, 'x')});
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "^pagetide: x+\n$");
}

TEST(StandardErrorDeathTest, keeps_errno_also_where_nothing_can_be_written) {
  EXPECT_EXIT(
      {
        ::close(STDERR_FILENO);
        errno = EXFULL;
        write_standard_error({"lost"});
        std::_Exit(errno == EXFULL ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace pagetide
