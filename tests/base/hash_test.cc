#include "pagetide/base/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/support/random_source.h"

namespace pagetide {
namespace {

// Stores keep hashes, so they must be those of XXH3 for ever. The values are those of the
// `xxhsum` program (0.8), which prints the high half first.
TEST(HashTest, is_xxh3) {
  const std::string text = "The quick brown fox jumps over the lazy dog";
  EXPECT_EQ(hash64(text.data(), text.size()), 0xce7d19a5418fb365ULL);
  EXPECT_EQ(hash128(text.data(), text.size(), 0),
            (Hash128{0x24a1cc2e3a8a7651ULL, 0xddd650205ca3e7faULL}));
  EXPECT_EQ(hash64("", 0), 0x2d06800538d394c2ULL);
  EXPECT_EQ(hash128("", 0, 0), (Hash128{0x6001c324468d497fULL, 0x99aa06d3014798d8ULL}));
}

TEST(HashTest, equal_bytes_at_other_places_hash_equally) {
  RandomSource random;
  std::vector<unsigned char> bytes(5000);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random.next());
  for (std::size_t offset = 1; offset < 64; ++offset) {
    std::vector<unsigned char> shifted(offset);
    shifted.insert(shifted.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(hash128(shifted.data() + offset, bytes.size(), 9),
              hash128(bytes.data(), bytes.size(), 9));
  }
}

TEST(HashTest, one_changed_bit_anywhere_changes_it) {
  RandomSource random;
  std::vector<unsigned char> page(4096);  // any size will do
  for (unsigned char& byte : page) byte = static_cast<unsigned char>(random.next());
  const Hash128 before = hash128(page.data(), page.size(), random.seed());
  for (std::size_t i = 0; i < page.size(); ++i) {
    const auto bit = static_cast<unsigned char>(1U << random.below(8));
    page[i] ^= bit;
    const Hash128 changed = hash128(page.data(), page.size(), random.seed());
    EXPECT_NE(changed.low, before.low) << i;
    EXPECT_NE(changed.high, before.high) << i;
    page[i] ^= bit;
  }
}

TEST(HashTest, every_seed_gives_another_hash) {
  const std::string text(4096, 'x');  // any size will do
  std::set<std::uint64_t> short_hashes;
  std::set<std::uint64_t> long_hashes;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    short_hashes.insert(hash64(text.data(), text.size(), seed));
    long_hashes.insert(hash128(text.data(), text.size(), seed).high);
  }
  EXPECT_EQ(short_hashes.size(), 1000U);
  EXPECT_EQ(long_hashes.size(), 1000U);
}

TEST(IsAllZeroTest, finds_a_set_bit_at_every_place_and_none_beside) {
  for (std::size_t size = 0; size <= 200; ++size) {
    for (const std::size_t offset : {0U, 1U, 7U}) {
      // Bytes in front of and behind the range do not count.
      std::vector<unsigned char> bytes(offset + size + 1, 0);
      if (offset > 0) bytes[offset - 1] = 0xff;
      bytes.back() = 0xff;
      EXPECT_TRUE(is_all_zero(bytes.data() + offset, size)) << size;
      for (std::size_t i = 0; i < size; ++i) {
        bytes[offset + i] = static_cast<unsigned char>(1U << (i % 8));
        ASSERT_FALSE(is_all_zero(bytes.data() + offset, size)) << i << " of " << size;
        bytes[offset + i] = 0;
      }
    }
  }
}

}  // namespace
}  // namespace pagetide
