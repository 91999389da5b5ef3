#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "pagetide/base/error.h"

namespace pagetide {

// The value, or the end of the test program with the error's message: for steps that a test
// takes for granted. What a test is about it checks with EXPECT and ASSERT.
template <typename T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "unexpected error: %s\n", result.error().message().c_str());
    std::abort();
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace pagetide
