// Reads a store by docs/format.md alone: no header of the library's format is included, every
// number below is from that page. If this test and the library disagree, one of them and the
// page is wrong.

#include <gtest/gtest.h>
#include <xxhash.h>

#include <array>
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
    EXPECT_EQ(u32(root_, 8), 2U);
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
    EXPECT_EQ(u32(bytes, 8), 2U);
    const std::size_t heap_bytes = u64(bytes, 288) + u64(bytes, 296);
    const XXH128_hash_t body = hash(bytes.data() + 512, bytes.size() - 512 - heap_bytes);
    EXPECT_EQ(body.low64, u64(bytes, 208));
    EXPECT_EQ(body.high64, u64(bytes, 216));
    return bytes;
  }

  std::map<std::size_t, std::string> image(std::uint64_t id) const {
    std::vector<std::string> chain;
    for (std::uint64_t at = id; at != 0;) {
      chain.push_back(manifest(at));
      at = u64(chain.back(), 296) != 0 ? 0 : u64(chain.back(), 40);
    }
    std::map<std::size_t, std::string> pages;
    for (auto bytes = chain.rbegin(); bytes != chain.rend(); ++bytes) {
      apply(*bytes, pages);
      apply_heap(*bytes, pages);
    }
    // The mask: free bytes of pages that were stored while they were not.
    if ((u32(manifest(id), 80) & 4U) != 0) mask(pages);
    for (auto page = pages.begin(); page != pages.end();) {
      const bool is_zero = page->second.find_first_not_of('\0') == std::string::npos;
      page = is_zero ? pages.erase(page) : std::next(page);
    }
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
    if (u64(bytes, 296) == 0) return apply_extents(bytes, 512, delta, delta_hashes, pages);
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

  using Pages = std::map<std::size_t, std::string>;

  // Applies a manifest's full heap record if it has one, else that of its delta.
  void apply_heap(const std::string& bytes, Pages& pages) const {
    const std::size_t delta = u64(bytes, 288);
    const std::size_t full = u64(bytes, 296);
    const std::size_t at = full != 0 ? bytes.size() - full : bytes.size() - delta;
    const std::string record = bytes.substr(at);
    EXPECT_EQ(record.substr(0, 8), "PGTDHEAR");
    EXPECT_EQ(u32(record, 8), full != 0 ? 2U : 1U);
    EXPECT_EQ(u64(record, 16), record.size());
    EXPECT_EQ(XXH3_64bits(record.data(), record.size() - 8), u64(record, record.size() - 8));
    const std::string superblock = record.substr(40, 168);
    put(0, superblock, pages);
    const std::uint64_t roots = u64(superblock, 64);
    const std::uint64_t spans = u64(superblock, 72);
    const std::uint64_t bitmaps = u64(superblock, 80);
    const std::uint64_t group_bytes = u64(superblock, 88);
    std::size_t next = 208;
    std::uint64_t number = 0;
    for (std::uint64_t i = 0; i < u32(record, 12); ++i, next += 64, ++number) {
      number += gap(record, next);
      put(roots + number * 64, record.substr(next, 64), pages);
    }
    number = 0;
    for (std::uint64_t i = 0; i < u64(record, 24); ++i, next += 8, ++number) {
      number += gap(record, next);
      put(spans + number * 8, record.substr(next, 8), pages);
    }
    number = 0;
    for (std::uint64_t i = 0; i < u64(record, 32); ++i, ++number) {
      number += gap(record, next);
      const auto mask = static_cast<unsigned char>(record[next++]);
      for (std::size_t word = 0; word < 8; ++word) {
        if ((mask >> word & 1U) == 0) continue;
        put(bitmaps + number % 8 * group_bytes + number / 8 * 64 + word * 8, record.substr(next, 8),
            pages);
        next += 8;
      }
    }
    EXPECT_EQ(next, record.size() - 8);
  }

  static std::uint64_t gap(const std::string& record, std::size_t& next) {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(record.at(next++));
      value |= std::uint64_t{byte & 0x7fU} << shift;
      if (byte < 0x80) return value;
    }
  }

  void put(std::uint64_t offset, const std::string& bytes, Pages& pages) const {
    for (std::size_t i = 0; i < bytes.size(); ++i, ++offset) {
      std::string& page = pages[offset / page_size()];
      page.resize(page_size());
      page[offset % page_size()] = bytes[i];
    }
  }
  std::string get(std::uint64_t offset, std::size_t size, const Pages& pages) const {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) {
      const auto page = pages.find((offset + i) / page_size());
      if (page != pages.end()) bytes[i] = page->second[(offset + i) % page_size()];
    }
    return bytes;
  }

  // Slow and plain: span by span, slot by slot.
  void mask(Pages& pages) const {
    constexpr std::size_t kSpan = 65536;
    constexpr std::array<std::size_t, 40> kSlots = {
        16,   32,   48,   64,   80,    96,    112,   128,   160,   192,   224,   256,  320,  384,
        448,  512,  640,  768,  896,   1024,  1280,  1536,  1792,  2048,  2560,  3072, 3584, 4096,
        5120, 6144, 7168, 8192, 10240, 12288, 14336, 16384, 20480, 24576, 28672, 32768};
    const std::string superblock = get(0, 168, pages);
    const std::uint64_t spans = u64(superblock, 48);
    const std::uint64_t data = u64(superblock, 96);
    std::uint64_t taken_end = 0;
    for (std::uint64_t span = 0; span < spans; ++span) {
      const std::string entry = get(u64(superblock, 72) + span * 8, 8, pages);
      const std::size_t slot_bytes =
          entry[0] == 1 ? kSlots.at(static_cast<std::size_t>(entry[1])) : kSpan;
      if (entry[0] == 2) taken_end = span + u32(entry, 4);
      for (std::size_t slot = 0; slot * slot_bytes < kSpan; ++slot) {
        const bool is_tail = (slot + 1) * slot_bytes > kSpan;
        const std::string word = get(u64(superblock, 80) + slot / 512 * u64(superblock, 88) +
                                         span * 64 + slot % 512 / 64 * 8,
                                     8, pages);
        bool is_free = is_tail || (u64(word, 0) >> slot % 64 & 1U) == 0;
        if (entry[0] != 1) is_free = span >= taken_end;
        if (!is_free) continue;
        const std::size_t size = is_tail ? kSpan - slot * slot_bytes : slot_bytes;
        for (std::size_t i = 0; i < size; ++i) {
          const std::uint64_t at = data + span * kSpan + slot * slot_bytes + i;
          const auto page = pages.find(at / page_size());
          if (page != pages.end()) page->second[at % page_size()] = '\0';
        }
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
    Arena arena = must(
        Arena::create({.name = "spec", .reserve_bytes = 64_MiB, .clear = ClearPolicy::on_free}));
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
    full = full || u64(manifest, 296) != 0;
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

// Slots are freed here without a write to their pages, so that old pages hold what is free.
TEST_F(FormatSpec, bit_2_of_the_flags_says_that_free_bytes_are_masked) {
  Store store = must(Store::open(directory_.file("masked")));
  Arena arena = must(
      Arena::create({.name = "spec", .reserve_bytes = 64_MiB, .clear = ClearPolicy::deferred}));
  Snapshotter snapshotter(arena, store);
  RandomMutator mutator(arena, 22);
  mutator.defer_clearing();
  std::map<std::uint64_t, ArenaImage> images;
  for (int i = 0; i < 12; ++i) {
    mutator.steps(60);
    images[must(snapshotter.take()).value] = image_of(arena);
  }
  const SpecReader reader(directory_.file("masked"));
  for (const auto& [id, image] : images) {
    EXPECT_EQ(u32(reader.manifest(id), 80), 4U);
    EXPECT_EQ(difference(image, reader.image(id)), "") << "snapshot " << id;
  }
}

}  // namespace
}  // namespace pagetide
