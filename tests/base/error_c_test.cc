// What all parts of the C API have in common.

#include "pagetide/base/error_c.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "pagetide/base/c_border.h"

namespace pagetide {
namespace {

using c_api::at_border;
using ::testing::ElementsAre;

TEST(ErrorC, has_the_names_of_the_cpp_api) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::timed_out); ++code) {
    EXPECT_EQ(pagetide_error_name(-1 - code), to_string(static_cast<ErrorCode>(code)));
  }
  EXPECT_STREQ(pagetide_error_name(PAGETIDE_OK), "ok");
  EXPECT_STREQ(pagetide_error_name(1), "ok");
  EXPECT_STREQ(pagetide_error_name(-17), "unknown");
  EXPECT_STREQ(pagetide_error_name(INT32_MIN), "unknown");
}

TEST(ErrorC, has_the_numbers_that_programs_were_compiled_with) {
  EXPECT_THAT(
      (std::array{PAGETIDE_INVALID_ARGUMENT, PAGETIDE_OUT_OF_MEMORY, PAGETIDE_ADDRESS_TAKEN,
                  PAGETIDE_UNSUPPORTED, PAGETIDE_PERMISSION_DENIED, PAGETIDE_SYSTEM_FAILURE,
                  PAGETIDE_NOT_FOUND, PAGETIDE_ALREADY_EXISTS, PAGETIDE_BUSY, PAGETIDE_NOT_A_STORE,
                  PAGETIDE_VERSION_TOO_NEW, PAGETIDE_DAMAGED, PAGETIDE_NO_SPACE,
                  PAGETIDE_IDENTITY_MISMATCH, PAGETIDE_FORKED, PAGETIDE_TIMED_OUT}),
      ElementsAre(-1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13, -14, -15, -16));
}

// --- The border ---

TEST(CBorder, makes_a_failure_the_last_error) {
  const auto fails = []() -> Result<int> { return failure(ErrorCode::busy, "in use.", EAGAIN); };
  EXPECT_EQ(at_border({}, fails), PAGETIDE_BUSY);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_BUSY);
  EXPECT_STREQ(pagetide_last_error_message(), "in use.");
  EXPECT_EQ(pagetide_last_errno(), EAGAIN);
}

TEST(CBorder, answers_with_null_or_zero_where_no_error_is_possible) {
  const auto fails = []() -> Result<void*> { return failure(ErrorCode::busy, "in use."); };
  EXPECT_EQ(at_border<void*>({}, fails), nullptr);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_BUSY);
  const auto no_size = []() -> Result<std::size_t> { return failure(ErrorCode::busy, "in use."); };
  EXPECT_EQ(at_border<std::size_t>({}, no_size), 0U);
  EXPECT_EQ(at_border<std::int64_t>({}, no_size), PAGETIDE_BUSY);
}

TEST(CBorder, leaves_the_last_error_alone_when_it_succeeds) {
  (void)c_api::fail(ErrorCode::busy, "in use.", EAGAIN);
  EXPECT_EQ(at_border({}, []() -> Result<int> { return 5; }), 5);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_BUSY);
  EXPECT_STREQ(pagetide_last_error_message(), "in use.");
  EXPECT_EQ(pagetide_last_errno(), EAGAIN);
}

TEST(CBorder, has_an_error_for_each_thread) {
  (void)c_api::fail(ErrorCode::busy, "in use.", EAGAIN);
  int error = 1;
  std::string message = "unset";
  std::thread([&] {
    error = pagetide_last_error();
    message = pagetide_last_error_message();
  }).join();
  EXPECT_EQ(error, PAGETIDE_OK);
  EXPECT_EQ(message, "");
}

TEST(CBorder, lets_no_exception_through) {
  EXPECT_EQ(at_border({}, []() -> Result<void> { throw std::bad_alloc(); }),
            PAGETIDE_OUT_OF_MEMORY);
  EXPECT_STREQ(pagetide_last_error_message(), "the program is out of memory.");
  EXPECT_EQ(at_border({}, []() -> Result<void> { throw std::runtime_error("odd"); }),
            PAGETIDE_SYSTEM_FAILURE);
  EXPECT_STREQ(pagetide_last_error_message(), "odd");
}

TEST(CBorder, calls_nothing_without_its_pointers) {
  bool called = false;
  const auto call = [&]() -> Result<void> {
    called = true;
    return {};
  };
  EXPECT_EQ(at_border({{&called, "first"}, {nullptr, "second"}}, call), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_STREQ(pagetide_last_error_message(), "second must not be a null pointer.");
  EXPECT_FALSE(called);
}

TEST(CBorder, keeps_errno) {
  errno = ESRCH;
  (void)at_border({}, []() -> Result<void> {
    errno = ENOSPC;
    return {};
  });
  EXPECT_EQ(errno, ESRCH);
}

TEST(CBorder, cuts_what_is_too_long) {
  const std::string text(2000, 'x');
  EXPECT_EQ(c_api::fail(ErrorCode::damaged, text), PAGETIDE_DAMAGED);
  EXPECT_EQ(pagetide_last_error_message(), text.substr(0, 1023));
}

}  // namespace
}  // namespace pagetide
