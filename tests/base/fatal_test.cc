#include "pagetide/base/fatal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdint>

namespace pagetide {
namespace {

using ::testing::Eq;
using ::testing::KilledBySignal;

const void* at(std::uintptr_t address) {
  return reinterpret_cast<const void*>(address);
}  // NOLINT

TEST(FatalDeathTest, writes_one_line_and_aborts) {
  EXPECT_EXIT(fatal("the sky fell"), KilledBySignal(SIGABRT), Eq("pagetide: the sky fell\n"));
}

TEST(FatalDeathTest, writes_an_address_in_hexadecimal) {
  EXPECT_EXIT(fatal_at("free of ", at(0x5500'dead'beef), ": no"), KilledBySignal(SIGABRT),
              Eq("pagetide: free of 0x5500deadbeef: no\n"));
}

TEST(FatalDeathTest, writes_the_null_address_as_zero) {
  EXPECT_EXIT(fatal_at("at ", nullptr, ""), KilledBySignal(SIGABRT), Eq("pagetide: at 0x0\n"));
}

TEST(FatalDeathTest, writes_the_highest_address_in_full) {
  EXPECT_EXIT(fatal_at("", at(UINTPTR_MAX), ""), KilledBySignal(SIGABRT),
              Eq("pagetide: 0xffffffffffffffff\n"));
}

}  // namespace
}  // namespace pagetide
