#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

#include "pagetide/base/export.h"

// Errors are values. A function that can fail returns Result<T>; nothing of the library throws
// across its API, except std::bad_alloc where the C++ standard demands it (memory_resource and
// allocator).

namespace pagetide {

enum class ErrorCode : std::uint8_t {
  invalid_argument,   // the caller passed something that can never work
  out_of_memory,      // the machine or the reservation is exhausted
  address_taken,      // the address range asked for is already mapped
  unsupported,        // kernel, CPU or file system lacks what was asked for
  permission_denied,  // it exists, but not for this user or in this sandbox
  system_failure,     // a system call failed; system_errno() says how
  not_found,
  already_exists,
  busy,               // another writer or consumer holds it
  not_a_store,        // the path holds something else, or an interrupted creation
  version_too_new,    // written by a newer Pagetide
  damaged,            // a checksum or a bound does not hold
  no_space,           // the disk is full
  identity_mismatch,  // written by another program or at another load address
  forked,             // used in a child process of the one that opened it
  timed_out,          // somebody did not do in time what was waited for
};

PAGETIDE_API std::string_view to_string(ErrorCode code);

// What went wrong, why, and what the caller can do. message() is one or more full sentences
// that already contain the text of system_errno().
class [[nodiscard]] Error {
 public:
  Error(ErrorCode code, std::string message, int system_errno = 0)
      : message_(std::move(message)), system_errno_(system_errno), code_(code) {}

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // 0 where no system call was involved.
  int system_errno() const { return system_errno_; }

  // Puts what was being done in front: "cannot open the store: <message>".
  Error with_context(std::string_view what) && {
    message_.insert(0, std::string(what) + ": ");
    return std::move(*this);
  }

 private:
  std::string message_;
  int system_errno_;
  ErrorCode code_;
};

// Test a Result<void> with `if (!r)`: its value() does not compile in Debian 12's tl::expected.
template <typename T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> failure(ErrorCode code, std::string message, int system_errno = 0) {
  return tl::unexpected<Error>(Error(code, std::move(message), system_errno));
}

// For a system call that failed: "cannot <what>: <strerror>. <way out>". The code follows from
// errno (ENOSPC and EDQUOT, EACCES and EPERM, ENOMEM, ENOENT, EEXIST), else system_failure. Where
// descriptors ran out the way out is to have more, whatever was tried.
PAGETIDE_API Error system_error(std::string_view what, int system_errno,
                                std::string_view way_out = {});

inline tl::unexpected<Error> system_failure(std::string_view what, int system_errno,
                                            std::string_view way_out = {}) {
  return tl::unexpected<Error>(system_error(what, system_errno, way_out));
}

// Hands a failure on: `if (!r) return propagate(r);`
template <typename T>
tl::unexpected<Error> propagate(Result<T>& result) {
  return tl::unexpected<Error>(std::move(result).error());
}

}  // namespace pagetide
