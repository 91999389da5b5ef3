#include "pagetide/base/fatal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <span>

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

TEST(PrintAtTest, gives_the_same_text) {
  std::array<char, 64> text;
  print_at(text, "free of ", at(0x5500'dead'beef), ": no");
  EXPECT_STREQ(text.data(), "free of 0x5500deadbeef: no");
}

TEST(PrintAtTest, cuts_what_does_not_fit) {
  std::array<char, 12> text;
  text.fill('?');
  print_at(std::span(text).first(11), "free of ", at(0x5500'dead'beef), ": no");
  EXPECT_STREQ(text.data(), "free of 0x");
  EXPECT_EQ(text[11], '?');
}

}  // namespace
}  // namespace pagetide
