#pragma once

// What tests of every part of the C API take for granted.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "pagetide/base/error_c.h"

namespace pagetide {

// Ends the test program where a step that a test takes for granted fails.
inline void must_c(int result) {
  if (result >= 0) return;
  std::fprintf(stderr, "unexpected error: %s\n", pagetide_last_error_message());
  std::abort();
}

inline std::string last_message() {
  return pagetide_last_error_message();
}

// Options of a program that was compiled for a newer version.
template <typename Options>
struct NewerOptions {
  Options known;
  unsigned long long added[2];
};

}  // namespace pagetide
