#include "pagetide/base/error.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagetide {
namespace {

constexpr auto kLastCode = ErrorCode::timed_out;

TEST(ErrorTest, every_code_has_a_text_of_its_own) {
  std::set<std::string_view> texts;
  for (unsigned i = 0; i <= static_cast<unsigned>(kLastCode); ++i) {
    const std::string_view text = to_string(static_cast<ErrorCode>(i));
    EXPECT_NE(text, "unknown error") << i;
    EXPECT_TRUE(texts.insert(text).second) << text;
  }
}

TEST(ErrorTest, a_number_that_is_no_code_has_a_text_too) {
  EXPECT_EQ(to_string(static_cast<ErrorCode>(static_cast<unsigned>(kLastCode) + 1)),
            "unknown error");
}

TEST(ErrorTest, a_system_error_names_the_cause_and_the_way_out) {
  const Error error = system_error("open the list", ENOENT, "Create it first.");
  EXPECT_EQ(error.message(), "cannot open the list: No such file or directory. Create it first.");
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_EQ(error.system_errno(), ENOENT);
}

TEST(ErrorTest, a_system_error_without_a_way_out_ends_with_the_cause) {
  EXPECT_EQ(system_error("write", EIO).message(), "cannot write: Input/output error");
}

TEST(ErrorTest, an_errno_the_c_library_does_not_know_is_a_system_failure) {
  const Error error = system_error("do that", 99'999);
  EXPECT_EQ(error.message(), "cannot do that: unknown error");
  EXPECT_EQ(error.code(), ErrorCode::system_failure);
  EXPECT_EQ(error.system_errno(), 99'999);
}

TEST(ErrorTest, the_code_follows_from_errno) {
  const std::vector<std::pair<int, ErrorCode>> expected = {
      {ENOSPC, ErrorCode::no_space},          {EDQUOT, ErrorCode::no_space},
      {EACCES, ErrorCode::permission_denied}, {EPERM, ErrorCode::permission_denied},
      {ENOMEM, ErrorCode::out_of_memory},     {ENOENT, ErrorCode::not_found},
      {EEXIST, ErrorCode::already_exists},    {ENOSYS, ErrorCode::unsupported},
      {EOPNOTSUPP, ErrorCode::unsupported},   {EIO, ErrorCode::system_failure},
      {EINVAL, ErrorCode::system_failure}};
  for (const auto& [number, code] : expected) {
    EXPECT_EQ(system_error("x", number).code(), code) << number;
  }
}

TEST(ErrorTest, context_goes_in_front_and_changes_nothing_else) {
  const Error error = system_error("read the page", EIO).with_context("cannot verify snapshot 3");
  EXPECT_EQ(error.message(), "cannot verify snapshot 3: cannot read the page: Input/output error");
  EXPECT_EQ(error.code(), ErrorCode::system_failure);
  EXPECT_EQ(error.system_errno(), EIO);
}

TEST(ErrorTest, a_failure_becomes_a_result_of_any_type) {
  const Result<int> number = failure(ErrorCode::busy, "busy.", EAGAIN);
  const Result<void> nothing = failure(ErrorCode::damaged, "damaged.");
  const Result<std::string> text = system_failure("read", EIO);
  ASSERT_FALSE(number || nothing || text);
  EXPECT_EQ(number.error().code(), ErrorCode::busy);
  EXPECT_EQ(number.error().message(), "busy.");
  EXPECT_EQ(number.error().system_errno(), EAGAIN);
  EXPECT_EQ(nothing.error().system_errno(), 0);
  EXPECT_EQ(text.error().message(), "cannot read: Input/output error");
}

TEST(ErrorTest, propagate_hands_on_the_whole_error) {
  Result<int> from = failure(ErrorCode::no_space, "the disk is full.", ENOSPC);
  const Result<std::string> to = propagate(from);
  ASSERT_FALSE(to);
  EXPECT_EQ(to.error().code(), ErrorCode::no_space);
  EXPECT_EQ(to.error().message(), "the disk is full.");
  EXPECT_EQ(to.error().system_errno(), ENOSPC);
}

}  // namespace
}  // namespace pagetide
