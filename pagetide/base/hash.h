#pragma once

#include <cstddef>
#include <cstdint>

#include "pagetide/base/export.h"

namespace pagetide {

// A 128-bit XXH3 hash (xxHash 0.8). Not cryptographic: whoever can choose the bytes and knows the
// seed can make two pages collide. For bytes not chosen against the seed the odds that a changed
// page goes unnoticed are 2^-128.
struct Hash128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

PAGETIDE_API Hash128 hash128(const void* data, std::size_t size, std::uint64_t seed);
PAGETIDE_API std::uint64_t hash64(const void* data, std::size_t size, std::uint64_t seed = 0);

// Whether all bytes are zero. Stops at the first that is not.
PAGETIDE_API bool is_all_zero(const void* data, std::size_t size);

}  // namespace pagetide
