#pragma once

#include <cstddef>
#include <cstdint>

namespace pagetide::bench {

// SplitMix64: a few instructions a number, so that little of a time is its own. Not thread-safe.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
  }
  // Below `limit`, which is not 0 and far below 2^32: the upper half is scaled, not divided.
  std::size_t below(std::size_t limit) { return ((next() >> 32) * limit) >> 32; }
  // From `first` to `last`, both included.
  std::size_t between(std::size_t first, std::size_t last) {
    return first + below(last - first + 1);
  }
  std::uint32_t tag() { return static_cast<std::uint32_t>(next()); }

 private:
  std::uint64_t state_;
};

}  // namespace pagetide::bench
