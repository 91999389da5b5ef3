#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace pagetide {

// How many rounds a property test does: `rounds` by default, many more under ./dev soak, fewer
// under a sanitizer, where each costs several times as much.
inline std::size_t scaled(std::size_t rounds) {
  if (std::getenv("PAGETIDE_SOAK") != nullptr) rounds *= 20;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  rounds = (rounds + 3) / 4;
#endif
  return rounds;
}

// A fresh seed, printed so that a failure can be repeated with PAGETIDE_SEED.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("PAGETIDE_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  std::printf("seed %llu (repeat with PAGETIDE_SEED)\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace pagetide
