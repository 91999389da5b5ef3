#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pagetide/allocator/heap_layout.h"

// The part of a manifest that holds a heap's metadata: the superblock, and root entries, span
// entries and bitmap lines with their numbers. docs/format.md describes it to the byte.

namespace pagetide::format {

inline constexpr std::array<char, 8> kHeapRecordMagic = {'P', 'G', 'T', 'D', 'H', 'E', 'A', 'R'};

enum class HeapRecordKind : std::uint32_t {
  delta = 1,  // what differs from the parent; without a parent, from zero
  full = 2,   // what differs from zero
};

struct HeapRecordHeader {
  std::array<char, 8> magic;
  HeapRecordKind kind;
  std::uint32_t roots;    // how many follow
  std::uint64_t bytes;    // of the record, this header and the checksum included
  std::uint64_t entries;  // how many follow
  std::uint64_t lines;    // how many follow
  layout::Superblock superblock;
};
static_assert(sizeof(HeapRecordHeader) == 208);

// The words of one span and group. Lines are numbered: span * kBitmapGroups + group.
using BitmapLine = std::array<std::uint64_t, layout::kWordsPerGroup>;

// Puts a record together. Roots, entries and lines each in ascending order.
class HeapRecordWriter {
 public:
  HeapRecordWriter(HeapRecordKind kind, const layout::Superblock& superblock);

  void add_root(std::size_t root, const layout::RootEntry& entry);
  void add_entry(std::size_t span, const layout::SpanEntry& entry);
  // Stores the words that differ; nothing when none does.
  void add_line(std::size_t line, const BitmapLine& words, const BitmapLine& parent);
  std::vector<std::byte> finish();

 private:
  // Numbers are stored as the gap to the one before.
  struct Section {
    std::vector<std::byte> bytes;
    std::uint64_t next = 0;
    std::uint64_t count = 0;
    void add_number(std::uint64_t number);
    void add_bytes(const void* data, std::size_t size);
  };

  HeapRecordHeader header_;
  Section roots_;
  Section entries_;
  Section lines_;
};

// What is told of a record's content, in its order.
class HeapRecordSink {
 public:
  virtual ~HeapRecordSink() = default;
  virtual void superblock(const layout::Superblock& superblock) = 0;
  virtual void root(std::size_t root, const layout::RootEntry& entry) = 0;
  virtual void entry(std::size_t span, const layout::SpanEntry& entry) = 0;
  // Bit i of the mask: word i is words[i]; the others are as they were.
  virtual void line(std::size_t line, std::uint8_t mask, const BitmapLine& words) = 0;
};

enum class HeapRecordFault : std::uint8_t { none, not_one, checksum, content };

// Checks every bound; the bytes may be anything. The sink, which may be nullptr, is told of what
// comes before a fault.
HeapRecordFault read_heap_record(std::span<const std::byte> bytes, HeapRecordKind kind,
                                 std::size_t span_count, HeapRecordSink* sink);

}  // namespace pagetide::format
