#pragma once

#include <gtest/gtest.h>

#include <cstdio>

// Skips the running test and prints the reason where ./dev test collects it. Every skip must be
// on the list in tests/allowed_skips.txt.
#define PAGETIDE_SKIP(reason)                                                                   \
  do {                                                                                          \
    const auto* info_ = ::testing::UnitTest::GetInstance()->current_test_info();                \
    std::printf("SKIP-REASON: %s.%s: %s\n", info_->test_suite_name(), info_->name(), (reason)); \
    GTEST_SKIP() << (reason);                                                                   \
  } while (false)
