#include "pagetide/snapshot/heap_record.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "pagetide/base/hash.h"
#include "tests/support/random_source.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using format::BitmapLine;
using format::HeapRecordFault;
using format::HeapRecordKind;
using format::HeapRecordWriter;
using format::read_heap_record;

constexpr std::size_t kSpans = 100'000;
constexpr std::size_t kLines = kSpans * layout::kBitmapGroups;

// What a record says, as a plain value.
struct Content : format::HeapRecordSink {
  void superblock(const layout::Superblock& value) override { name = value.name.data(); }
  void root(std::size_t index, const layout::RootEntry& entry) override {
    roots[index] = entry.address;
  }
  void entry(std::size_t span, const layout::SpanEntry& entry) override {
    entries[span] = entry.run_spans;
  }
  void line(std::size_t number, std::uint8_t mask, const BitmapLine& words) override {
    for (std::size_t i = 0; i < words.size(); ++i) {
      if ((unsigned{mask} >> i & 1U) != 0) lines[number * words.size() + i] = words.at(i);
    }
  }

  bool operator==(const Content& other) const {
    return name == other.name && roots == other.roots && entries == other.entries &&
           lines == other.lines;
  }

  std::string name;
  std::map<std::size_t, std::uint64_t> roots;
  std::map<std::size_t, std::uint32_t> entries;
  std::map<std::size_t, std::uint64_t> lines;  // by word
};

layout::Superblock superblock_named(const char* name) {
  layout::Superblock superblock{};
  std::strncpy(superblock.name.data(), name, superblock.name.size() - 1);
  return superblock;
}

struct Record {
  std::vector<std::byte> bytes;
  Content content;
};

// Numbers close together and far apart.
std::size_t next_number(RandomSource& random, std::size_t from) {
  return from + (random.one_in(2) ? 0 : random.below(random.one_in(3) ? 9000 : 3));
}

Record random_record(RandomSource& random) {
  Record record;
  record.content.name = "random";
  HeapRecordWriter writer(HeapRecordKind::delta, superblock_named("random"));
  for (std::size_t root = random.below(3); root < layout::kRootCapacity && !random.one_in(20);
       root = next_number(random, root + 1)) {
    layout::RootEntry entry{};
    entry.address = record.content.roots[root] = random.next();
    writer.add_root(root, entry);
  }
  for (std::size_t span = random.below(300); span < kSpans && !random.one_in(50);
       span = next_number(random, span + 1)) {
    const auto spans = static_cast<std::uint32_t>(random.next());
    record.content.entries[span] = spans;
    writer.add_entry(span, {layout::SpanKind::large, 0, 0, spans});
  }
  for (std::size_t line = random.below(300); line < kLines && !random.one_in(50);
       line = next_number(random, line + 1)) {
    BitmapLine parent{};
    BitmapLine words{};
    for (std::size_t i = 0; i < words.size(); ++i) {
      parent.at(i) = random.next();
      words.at(i) = random.one_in(2) ? parent.at(i) : random.next();
      if (words.at(i) != parent.at(i)) {
        record.content.lines[line * words.size() + i] = words.at(i);
      }
    }
    writer.add_line(line, words, parent);
  }
  record.bytes = writer.finish();
  return record;
}

HeapRecordFault check(std::span<const std::byte> bytes) {
  return read_heap_record(bytes, HeapRecordKind::delta, kSpans, nullptr);
}

// Makes the checksum right, as whoever forges a record would.
void seal(std::vector<std::byte>& bytes) {
  const std::size_t covered = bytes.size() - 8;
  const std::uint64_t checksum = hash64(bytes.data(), covered);
  std::memcpy(bytes.data() + covered, &checksum, 8);
}

TEST(HeapRecordTest, random_content_comes_back) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(200); ++round) {
    const Record record = random_record(random);
    Content read;
    ASSERT_EQ(read_heap_record(record.bytes, HeapRecordKind::delta, kSpans, &read),
              HeapRecordFault::none);
    ASSERT_EQ(read, record.content) << "seed " << random.seed();
  }
}

TEST(HeapRecordTest, one_without_changes_has_216_bytes) {
  const auto bytes = HeapRecordWriter(HeapRecordKind::delta, superblock_named("none")).finish();
  EXPECT_EQ(bytes.size(), 216U);
  EXPECT_EQ(check(bytes), HeapRecordFault::none);
}

TEST(HeapRecordTest, a_line_that_equals_its_parent_is_left_out) {
  HeapRecordWriter writer(HeapRecordKind::delta, superblock_named("same"));
  const BitmapLine words = {1, 2, 3, 4, 5, 6, 7, 8};
  writer.add_line(5, words, words);
  EXPECT_EQ(writer.finish().size(), 216U);
}

TEST(HeapRecordTest, one_changed_word_costs_its_number_its_mask_and_itself) {
  HeapRecordWriter writer(HeapRecordKind::delta, superblock_named("word"));
  BitmapLine words{};
  words[3] = 1;
  writer.add_line(100, words, {});
  EXPECT_EQ(writer.finish().size(), 216U + 1 + 1 + 8);
}

TEST(HeapRecordTest, the_largest_numbers_are_allowed_and_none_beyond) {
  for (const std::size_t beyond : {0U, 1U}) {
    HeapRecordWriter roots(HeapRecordKind::delta, superblock_named("roots"));
    roots.add_root(layout::kRootCapacity - 1 + beyond, {});
    HeapRecordWriter entries(HeapRecordKind::delta, superblock_named("entries"));
    entries.add_entry(kSpans - 1 + beyond, {});
    HeapRecordWriter lines(HeapRecordKind::delta, superblock_named("lines"));
    lines.add_line(kLines - 1 + beyond, {1}, {});
    const HeapRecordFault expected = beyond == 0 ? HeapRecordFault::none : HeapRecordFault::content;
    EXPECT_EQ(check(roots.finish()), expected);
    EXPECT_EQ(check(entries.finish()), expected);
    EXPECT_EQ(check(lines.finish()), expected);
  }
}

TEST(HeapRecordTest, the_other_kind_is_refused) {
  const auto bytes = HeapRecordWriter(HeapRecordKind::full, superblock_named("full")).finish();
  EXPECT_EQ(check(bytes), HeapRecordFault::content);
}

TEST(HeapRecordTest, every_flipped_bit_is_found) {
  RandomSource random;
  const Record record = random_record(random);
  for (std::size_t at = 0; at < record.bytes.size(); ++at) {
    auto bytes = record.bytes;
    bytes[at] ^= static_cast<std::byte>(1U << random.below(8));
    ASSERT_NE(check(bytes), HeapRecordFault::none) << "byte " << at;
  }
}

TEST(HeapRecordTest, every_length_but_its_own_is_refused) {
  RandomSource random;
  Record record = random_record(random);
  for (std::size_t size = 0; size < record.bytes.size(); ++size) {
    ASSERT_NE(check(std::span(record.bytes).first(size)), HeapRecordFault::none) << size;
  }
  record.bytes.push_back(std::byte{0});
  EXPECT_NE(check(record.bytes), HeapRecordFault::none);
}

// With a right checksum: what is accepted stays within its bounds.
TEST(HeapRecordTest, forged_records_are_refused_or_stay_in_their_bounds) {
  struct Bounds : Content {
    void root(std::size_t index, const layout::RootEntry&) override {
      sound = sound && index < layout::kRootCapacity;
    }
    void entry(std::size_t span, const layout::SpanEntry&) override {
      sound = sound && span < kSpans;
    }
    void line(std::size_t number, std::uint8_t, const BitmapLine&) override {
      sound = sound && number < kLines;
    }
    bool sound = true;
  };
  RandomSource random;
  std::size_t refused = 0;
  for (std::size_t round = 0; round < scaled(3000); ++round) {
    Record record = random_record(random);
    auto& bytes = record.bytes;
    if (random.one_in(3)) bytes.resize(random.between(216, bytes.size()));
    for (std::size_t i = random.between(1, 6); i > 0; --i) {
      const std::size_t at =
          random.one_in(3) ? random.between(12, 39) : random.between(208, bytes.size() - 1);
      bytes[at] = static_cast<std::byte>(random.one_in(3) ? 0xff : random.next());
    }
    if (random.one_in(2)) {
      const std::uint64_t size = bytes.size();
      std::memcpy(bytes.data() + 16, &size, 8);
    }
    seal(bytes);
    Bounds bounds;
    const auto fault = read_heap_record(bytes, HeapRecordKind::delta, kSpans, &bounds);
    ASSERT_TRUE(bounds.sound) << "seed " << random.seed();
    refused += fault == HeapRecordFault::none ? 0 : 1;
  }
  EXPECT_GT(refused, 0U);
}

}  // namespace
}  // namespace pagetide
