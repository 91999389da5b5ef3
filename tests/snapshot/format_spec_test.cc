// Reads a store by docs/format.md alone: no header of the library's format is included, every
// number below is from that page. If this test and the library disagree, one of them and the
// page is wrong.

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "pagetide/snapshot/snapshotter.h"
#include "tests/support/arena_image.h"
#include "tests/support/must.h"
#include "tests/support/random_mutator.h"
#include "tests/support/temporary_directory.h"

namespace pagetide {
namespace {

using namespace literals;

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::uint64_t u64(const std::string& bytes, std::size_t offset) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + offset, 8);
  return value;
}

std::uint32_t u32(const std::string& bytes, std::size_t offset) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, 4);
  return value;
}

class SpecReader {
 public:
  explicit SpecReader(std::string directory)
      : directory_(std::move(directory)), root_(read_all(directory_ + "/root")) {
    EXPECT_EQ(root_.size(), 128U);
    EXPECT_EQ(root_.substr(0, 8), "PGTDROOT");
    EXPECT_EQ(u32(root_, 8), 1U);
    EXPECT_EQ(XXH3_64bits(root_.data(), 120), u64(root_, 120));
  }

  std::uint64_t head() const { return u64(root_, 48); }
  std::uint64_t next_id() const { return u64(root_, 56); }
  std::size_t page_size() const { return u32(root_, 12); }

  std::string manifest(std::uint64_t id) const {
    const std::string bytes = read_all(file(id, "manifest"));
    EXPECT_EQ(bytes.substr(0, 8), "PGTDMANI");
    EXPECT_EQ(bytes.substr(16, 16), root_.substr(16, 16));
    EXPECT_EQ(u64(bytes, 32), id);
    EXPECT_EQ(XXH3_64bits(bytes.data(), 504), u64(bytes, 504));
    const XXH128_hash_t body = hash(bytes.data() + 512, bytes.size() - 512);
    EXPECT_EQ(body.low64, u64(bytes, 208));
    EXPECT_EQ(body.high64, u64(bytes, 216));
    return bytes;
  }

  std::map<std::size_t, std::string> image(std::uint64_t id) const {
    std::vector<std::string> chain;
    for (std::uint64_t at = id; at != 0;) {
      chain.push_back(manifest(at));
      at = u64(chain.back(), 184) != 0 ? 0 : u64(chain.back(), 40);
    }
    std::map<std::size_t, std::string> pages;
    for (auto bytes = chain.rbegin(); bytes != chain.rend(); ++bytes) apply(*bytes, pages);
    return pages;
  }

 private:
  std::string file(std::uint64_t id, const char* kind) const {
    char name[64];
    std::snprintf(name, sizeof(name), "/%012llu.%s", static_cast<unsigned long long>(id), kind);
    return directory_ + name;
  }

  XXH128_hash_t hash(const char* data, std::size_t size) const {
    return XXH3_128bits_withSeed(data, size, u64(root_, 32));
  }

  // Applies a manifest's full index if it has one, else its delta.
  void apply(const std::string& bytes, std::map<std::size_t, std::string>& pages) const {
    const std::uint64_t delta = u64(bytes, 176);
    const std::uint64_t full = u64(bytes, 184);
    const std::size_t delta_hashes = 512 + delta * 32;
    if (full == 0) return apply_extents(bytes, 512, delta, delta_hashes, pages);
    std::size_t data_pages = 0;
    for (std::uint64_t i = 0; i < delta; ++i) {
      if (u32(bytes, 512 + i * 32 + 12) == 1) data_pages += u32(bytes, 512 + i * 32 + 8);
    }
    const std::size_t full_extents = delta_hashes + data_pages * 16;
    apply_extents(bytes, full_extents, full, full_extents + full * 32, pages);
  }

  void apply_extents(const std::string& bytes, std::size_t extents, std::uint64_t count,
                     std::size_t hashes, std::map<std::size_t, std::string>& pages) const {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::size_t at = extents + i * 32;
      for (std::uint32_t k = 0; k < u32(bytes, at + 8); ++k) {
        const std::size_t page = u64(bytes, at) + k;
        if (u32(bytes, at + 12) == 2) {
          pages.erase(page);
          continue;
        }
        const std::string content = payload(u64(bytes, at + 16), u64(bytes, at + 24) + k);
        const XXH128_hash_t checksum = hash(content.data(), content.size());
        EXPECT_EQ(checksum.low64, u64(bytes, hashes));
        EXPECT_EQ(checksum.high64, u64(bytes, hashes + 8));
        hashes += 16;
        pages[page] = content;
      }
    }
  }

  std::string payload(std::uint64_t segment, std::uint64_t page) const {
    const std::string bytes = read_all(file(segment, "segment"));
    EXPECT_EQ(bytes.substr(0, 8), "PGTDSEGM");
    EXPECT_EQ(u64(bytes, 32), segment);
    EXPECT_EQ(XXH3_64bits(bytes.data(), page_size() - 8), u64(bytes, page_size() - 8));
    return bytes.substr((page + 1) * page_size(), page_size());
  }

  std::string directory_;
  std::string root_;
};

class FormatSpec : public ::testing::Test {
 protected:
  // A history with purges, zero pages, a rollback and a full index.
  void SetUp() override {
    Store store = must(Store::open(directory_.file("store")));
    Arena arena = must(Arena::create({.name = "spec", .reserve_bytes = 64_MiB}));
    Snapshotter snapshotter(arena, store);
    RandomMutator mutator(arena, 21);
    for (int i = 0; i < 14; ++i) {
      mutator.steps(25);
      if (i == 5) must(snapshotter.rollback({3}));
      images_[must(snapshotter.take()).value] = image_of(arena);
    }
    base_ = arena.range().begin;
  }

  TemporaryDirectory directory_;
  std::map<std::uint64_t, ArenaImage> images_;
  std::uint64_t base_ = 0;
};

TEST_F(FormatSpec, every_image_can_be_read_by_the_page_alone) {
  const SpecReader reader(directory_.file("store"));
  EXPECT_EQ(reader.page_size(), page_size());
  EXPECT_EQ(reader.head(), images_.rbegin()->first);
  EXPECT_EQ(reader.next_id(), images_.rbegin()->first + 1);
  for (const auto& [id, image] : images_) {
    EXPECT_EQ(difference(image, reader.image(id)), "") << "snapshot " << id;
  }
}

TEST_F(FormatSpec, the_history_has_a_full_index_and_a_branch) {
  const SpecReader reader(directory_.file("store"));
  bool full = false;
  bool branch = false;
  for (const auto& [id, image] : images_) {
    const std::string manifest = reader.manifest(id);
    full = full || u64(manifest, 184) != 0;
    branch = branch || (id > 1 && u64(manifest, 40) != id - 1);
    EXPECT_EQ(u64(manifest, 56), base_);
    EXPECT_STREQ(manifest.c_str() + 224, "spec");
  }
  EXPECT_TRUE(full);
  EXPECT_TRUE(branch);
}

TEST_F(FormatSpec, bit_1_of_the_flags_says_that_free_bytes_are_zero) {
  Store store = must(Store::open(directory_.file("store")));
  Arena keeping =
      must(Arena::create({.name = "spec", .reserve_bytes = 64_MiB, .clear = ClearPolicy::never}));
  const SnapshotId id = must(Snapshotter(keeping, store).take());
  const SpecReader reader(directory_.file("store"));
  EXPECT_EQ(u32(reader.manifest(1), 80), 2U);
  EXPECT_EQ(u32(reader.manifest(id.value), 80), 0U);
}

}  // namespace
}  // namespace pagetide
