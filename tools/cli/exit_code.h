#pragma once

#include <string_view>

#include "pagetide/base/error.h"

namespace pagetide::cli {

// What the command ends with; documented in docs/man/pagetide.1, so scripts rely on it.
enum class ExitCode : int {
  fine = 0,
  problem = 1,     // something stored is damaged, or a check found something
  usage = 2,       // the command line cannot be followed
  unreadable = 3,  // no store, no permission, a newer format, a failing disk, a full disk, nothing
                   // to check by
};

// For an error of opening a store, or of anything outside one.
ExitCode exit_code_of(const Error& error);

// For an error of reading in a store that is open. A file that is gone there is damage: nobody
// but a mistake removes a file that a committed snapshot needs.
ExitCode exit_code_in_store(const Error& error);

// "pagetide: <message>" on standard error.
void report(std::string_view message);
void warn(std::string_view message);

}  // namespace pagetide::cli
