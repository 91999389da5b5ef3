#include "pagetide/base/hash.h"

#include <xxhash.h>

#include <cstring>

namespace pagetide {

Hash128 hash128(const void* data, std::size_t size, std::uint64_t seed) {
  const XXH128_hash_t h = XXH3_128bits_withSeed(data, size, seed);
  return {h.low64, h.high64};
}

std::uint64_t hash64(const void* data, std::size_t size, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

bool is_all_zero(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  // Eight words a step: the compiler turns the OR into vector code.
  while (size >= 64) {
    std::uint64_t words[8];
    std::memcpy(words, bytes, sizeof(words));
    std::uint64_t any = 0;
    for (const std::uint64_t word : words) any |= word;
    if (any != 0) return false;
    bytes += 64;
    size -= 64;
  }
  for (; size > 0; ++bytes, --size) {
    if (*bytes != 0) return false;
  }
  return true;
}

}  // namespace pagetide
