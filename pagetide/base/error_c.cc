#include "pagetide/base/error_c.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>

#include "pagetide/base/c_border.h"
#include "pagetide/base/c_numbers.h"

namespace {

using pagetide::ErrorCode;
using pagetide::c_api::Meaning;
using pagetide::c_api::name_of;
using pagetide::c_api::number_of;

constexpr std::array<Meaning<ErrorCode>, 16> kErrors = {{
    {PAGETIDE_INVALID_ARGUMENT, ErrorCode::invalid_argument},
    {PAGETIDE_OUT_OF_MEMORY, ErrorCode::out_of_memory},
    {PAGETIDE_ADDRESS_TAKEN, ErrorCode::address_taken},
    {PAGETIDE_UNSUPPORTED, ErrorCode::unsupported},
    {PAGETIDE_PERMISSION_DENIED, ErrorCode::permission_denied},
    {PAGETIDE_SYSTEM_FAILURE, ErrorCode::system_failure},
    {PAGETIDE_NOT_FOUND, ErrorCode::not_found},
    {PAGETIDE_ALREADY_EXISTS, ErrorCode::already_exists},
    {PAGETIDE_BUSY, ErrorCode::busy},
    {PAGETIDE_NOT_A_STORE, ErrorCode::not_a_store},
    {PAGETIDE_VERSION_TOO_NEW, ErrorCode::version_too_new},
    {PAGETIDE_DAMAGED, ErrorCode::damaged},
    {PAGETIDE_NO_SPACE, ErrorCode::no_space},
    {PAGETIDE_IDENTITY_MISMATCH, ErrorCode::identity_mismatch},
    {PAGETIDE_FORKED, ErrorCode::forked},
    {PAGETIDE_TIMED_OUT, ErrorCode::timed_out},
}};
static_assert(kErrors.size() == static_cast<std::size_t>(ErrorCode::timed_out) + 1);

struct LastError {
  std::array<char, 1024> message;  // ends with a zero byte
  int number;
  int system_errno;
};
constinit thread_local LastError last_error{};

}  // namespace

namespace pagetide::c_api {

int fail(ErrorCode code, std::string_view message, int system_errno) noexcept {
  const std::size_t length = std::min(message.size(), last_error.message.size() - 1);
  std::copy_n(message.begin(), length, last_error.message.begin());
  last_error.message.at(length) = '\0';
  last_error.number = number_of(code, kErrors);
  last_error.system_errno = system_errno;
  return last_error.number;
}

int fail_for_null(const char* name) noexcept {
  std::array<char, 80> message{};
  (void)std::snprintf(message.data(), message.size(), "%s must not be a null pointer.", name);
  return fail(ErrorCode::invalid_argument, message.data());
}

}  // namespace pagetide::c_api

const char* pagetide_error_name(int error) {
  return error >= 0 ? "ok" : name_of(error, kErrors);
}

int pagetide_last_error(void) {
  return last_error.number;
}

const char* pagetide_last_error_message(void) {
  return last_error.message.data();
}

int pagetide_last_errno(void) {
  return last_error.system_errno;
}
