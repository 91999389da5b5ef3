#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "tests/support/test_scale.h"

namespace pagetide {

// The random numbers of one property test. The seed is printed and recorded with the test's
// result, so that a failure can be repeated with PAGETIDE_SEED.
class RandomSource {
 public:
  RandomSource() : RandomSource(test_seed()) {
    testing::Test::RecordProperty("seed", std::to_string(seed_));
  }
  // For the threads of a test, each from a number of the test's own source.
  explicit RandomSource(std::uint64_t seed) : seed_(seed), engine_(seed) {}

  std::uint64_t seed() const { return seed_; }
  std::uint64_t next() { return engine_(); }
  // 0 to n - 1.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  // low to high, both included.
  std::size_t between(std::size_t low, std::size_t high) { return low + below(high - low + 1); }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::uint64_t seed_;
  std::mt19937_64 engine_;
};

}  // namespace pagetide
