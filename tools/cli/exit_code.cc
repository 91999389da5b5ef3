#include "tools/cli/exit_code.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>

namespace pagetide::cli {

ExitCode exit_code_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::damaged:
      return ExitCode::problem;
    case ErrorCode::invalid_argument:
      return ExitCode::usage;
    default:
      return ExitCode::unreadable;
  }
}

ExitCode exit_code_in_store(const Error& error) {
  if (error.code() == ErrorCode::not_found && error.system_errno() == ENOENT) {
    return ExitCode::problem;
  }
  return exit_code_of(error);
}

namespace {

// Standard error may be closed or full; there is nowhere left to say so.
void print_to_stderr(const std::string& line) {
  (void)std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void report(std::string_view message) {
  print_to_stderr(fmt::format("pagetide: {}\n", message));
}

void warn(std::string_view message) {
  print_to_stderr(fmt::format("pagetide: warning: {}\n", message));
}

}  // namespace pagetide::cli
