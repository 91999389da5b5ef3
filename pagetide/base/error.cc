#include "pagetide/base/error.h"

#include <cerrno>
#include <cstring>

namespace pagetide {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::out_of_memory:
      return "out of memory";
    case ErrorCode::address_taken:
      return "address taken";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::permission_denied:
      return "permission denied";
    case ErrorCode::system_failure:
      return "system failure";
    case ErrorCode::not_found:
      return "not found";
    case ErrorCode::already_exists:
      return "already exists";
    case ErrorCode::busy:
      return "busy";
    case ErrorCode::not_a_store:
      return "not a store";
    case ErrorCode::version_too_new:
      return "version too new";
    case ErrorCode::damaged:
      return "damaged";
    case ErrorCode::no_space:
      return "no space";
    case ErrorCode::identity_mismatch:
      return "identity mismatch";
    case ErrorCode::forked:
      return "forked";
    case ErrorCode::timed_out:
      return "timed out";
  }
  return "unknown error";
}

namespace {

ErrorCode code_of(int system_errno) {
  switch (system_errno) {
    case ENOSPC:
    case EDQUOT:
      return ErrorCode::no_space;
    case EACCES:
    case EPERM:
      return ErrorCode::permission_denied;
    case ENOMEM:
      return ErrorCode::out_of_memory;
    case ENOENT:
      return ErrorCode::not_found;
    case EEXIST:
      return ErrorCode::already_exists;
    case ENOSYS:
    case EOPNOTSUPP:
      return ErrorCode::unsupported;
    default:
      return ErrorCode::system_failure;
  }
}

}  // namespace

Error system_error(std::string_view what, int system_errno, std::string_view way_out) {
  std::string message = "cannot ";
  message.append(what).append(": ").append(::strerrordesc_np(system_errno) != nullptr
                                               ? ::strerrordesc_np(system_errno)
                                               : "unknown error");
  // Whatever was tried, these want one thing.
  if (system_errno == EMFILE) way_out = "Raise the limit of open files (ulimit -n).";
  if (system_errno == ENFILE) way_out = "Raise the system's limit of open files (fs.file-max).";
  if (!way_out.empty()) message.append(". ").append(way_out);
  return {code_of(system_errno), std::move(message), system_errno};
}

}  // namespace pagetide
