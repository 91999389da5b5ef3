#pragma once

// What every function of the C API runs in. For the library's own *_c.cc files.

#include <cerrno>
#include <exception>
#include <initializer_list>
#include <new>
#include <string_view>
#include <type_traits>

#include "pagetide/base/error.h"
#include "pagetide/base/error_c.h"

namespace pagetide::c_api {

// Makes it the last error of the calling thread and gives its number. Allocates nothing: it also
// says that there is no memory.
int fail(ErrorCode code, std::string_view message, int system_errno = 0) noexcept;
int fail_for_null(const char* name) noexcept;

// A program that calls us between its own system call and its look at errno must not notice.
class KeptErrno {
 public:
  KeptErrno() = default;
  KeptErrno(const KeptErrno&) = delete;
  KeptErrno& operator=(const KeptErrno&) = delete;
  ~KeptErrno() { errno = value_; }

 private:
  int value_ = errno;
};

// A pointer without which a call cannot be done.
struct Required {
  const void* pointer;
  const char* name;
};

// What a function of C returns when it fails: the error, or null or 0 where no error is possible.
template <typename Answer>
Answer failed(int error) noexcept {
  if constexpr (std::is_integral_v<Answer> && std::is_signed_v<Answer>) {
    return error;
  } else {
    return Answer{};
  }
}

// Everything that C calls runs in here: checks its pointers, makes an answer of its Result and an
// error of what it throws.
template <typename Answer = int, typename Call>
Answer at_border(std::initializer_list<Required> required, Call&& call) noexcept {
  const KeptErrno kept_errno;
  for (const Required& argument : required) {
    if (argument.pointer == nullptr) return failed<Answer>(fail_for_null(argument.name));
  }
  try {
    auto result = call();
    if (!result) {
      return failed<Answer>(
          fail(result.error().code(), result.error().message(), result.error().system_errno()));
    }
    if constexpr (std::is_void_v<typename decltype(result)::value_type>) {
      return PAGETIDE_OK;
    } else {
      return static_cast<Answer>(*result);
    }
  } catch (const std::bad_alloc&) {
    return failed<Answer>(fail(ErrorCode::out_of_memory, "the program is out of memory.", ENOMEM));
  } catch (const std::exception& thrown) {
    return failed<Answer>(fail(ErrorCode::system_failure, thrown.what()));
  }
}

}  // namespace pagetide::c_api
