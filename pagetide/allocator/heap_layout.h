#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "pagetide/base/bytes.h"
#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"

// The layout of a heap in its region: the ground truth that a snapshot stores and a new process
// finds again. Everything else an allocator needs (free lists, counts, locks) is volatile, lives
// outside the region and is rebuilt from this.
//
//   offset 0          Superblock                     one page
//   runtime_offset    run-time page                  one page, never part of a snapshot
//   roots_offset      RootEntry[kRootCapacity]
//   spans_offset      SpanEntry[span_count]          8 bytes a span
//   bitmaps_offset    8 groups of slot bitmaps       512 bytes a span, 32 bytes a 4 KiB page
//   data_offset       span_count spans of 64 KiB     nothing but the application's bytes
//
// No header and no free-list link stands in the data: metadata is out of band, so that free()
// dirties no data page. All integers are little-endian. Offsets are bytes from the region's start.
//
// Slot bitmap of span s: up to 4096 bits, one a slot of its size class, set = allocated, in 64
// words. Words 8g to 8g+7 are group g and stand at bitmaps_offset + g * group_bytes + s * 64: a
// span whose class is 128 bytes or more has its whole bitmap in group 0, and the lines of
// neighbouring spans are adjacent.
//
// The metadata is not tracked by pages; HeapChangeLog knows what of it has changed.

namespace pagetide::layout {

inline constexpr std::array<char, 8> kMagic = {'P', 'G', 'T', 'D', 'H', 'E', 'A', 'P'};
inline constexpr std::uint32_t kVersion = 1;

inline constexpr std::size_t kSpanBytes = std::size_t{64} << 10;
inline constexpr std::size_t kMinSlotBytes = 16;
inline constexpr std::size_t kMaxSlotBytes = std::size_t{32} << 10;
inline constexpr std::size_t kBitmapGroups = 8;
inline constexpr std::size_t kWordsPerGroup = 8;
inline constexpr std::size_t kBytesPerGroupLine = kWordsPerGroup * sizeof(std::uint64_t);
inline constexpr std::size_t kRootCapacity = 256;
inline constexpr std::size_t kRootNameBytes = 40;  // with the terminating zero
inline constexpr std::size_t kArenaNameBytes = 64;

// Superblock::flags
inline constexpr std::uint32_t kHoldsCodeAddresses = 1U << 0;

struct Superblock {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t page_size;
  std::uint32_t span_bytes;
  std::uint32_t flags;
  std::uint64_t base;           // address of the region; raw pointers inside depend on it
  std::uint64_t reserve_bytes;  // size of the region
  std::uint64_t span_count;
  std::uint64_t spans_used;  // spans 0 .. spans_used-1 were handed out at some time
  std::uint64_t runtime_offset;
  std::uint64_t roots_offset;
  std::uint64_t spans_offset;
  std::uint64_t bitmaps_offset;
  std::uint64_t group_bytes;
  std::uint64_t data_offset;
  std::array<char, kArenaNameBytes> name;  // zero-terminated
};
static_assert(sizeof(Superblock) == 168);

// An entry without a name is free. The table is not sorted.
struct RootEntry {
  std::array<char, kRootNameBytes> name;
  std::uint64_t address;
  std::uint64_t type_hash;  // hash of the type's name as the compiler spells it
  std::uint64_t size_bytes;
};
static_assert(sizeof(RootEntry) == 64);

enum class SpanKind : std::uint8_t {
  free = 0,   // not in use: all zero, its bitmap too
  small = 1,  // slots of one size class
  large = 2,  // first span of an allocation of whole spans; the others' entries are all zero
};

struct SpanEntry {
  SpanKind kind;
  std::uint8_t size_class;  // small: index into kSlotBytes
  std::uint16_t reserved;   // 0
  std::uint32_t run_spans;  // small: 1; large: number of spans
};
static_assert(sizeof(SpanEntry) == 8);

// Size classes: multiples of 16 to 128, then four per doubling to 32 KiB.
inline constexpr std::size_t kSizeClasses = 40;
inline constexpr std::array<std::uint32_t, kSizeClasses> kSlotBytes = [] {
  std::array<std::uint32_t, kSizeClasses> sizes{};
  std::size_t n = 0;
  for (std::uint32_t size = 16; size <= 128; size += 16) sizes[n++] = size;
  for (std::uint32_t low = 128; low < kMaxSlotBytes; low *= 2) {
    for (std::uint32_t step = 1; step <= 4; ++step) sizes[n++] = low + low / 4 * step;
  }
  return sizes;
}();
static_assert(kSlotBytes.back() == kMaxSlotBytes);

// The smallest class of at least `bytes`, for bytes <= kMaxSlotBytes.
constexpr std::size_t computed_size_class_of(std::size_t bytes) {
  if (bytes <= 128) return bytes == 0 ? 0 : (bytes - 1) / 16;
  const auto top = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 1;
  return 8 + (top - 7) * 4 + ((bytes - 1) >> (top - 2)) - 4;
}

// The same for bytes <= kTabledBytes. Of small sizes a mixture is common: looking up has no branch
// that could be guessed wrong.
inline constexpr std::size_t kTabledBytes = 1024;
inline constexpr auto kTabledClasses = [] {
  std::array<std::uint8_t, kTabledBytes / 16 + 1> classes{};
  for (std::size_t i = 0; i < classes.size(); ++i) {
    classes[i] = static_cast<std::uint8_t>(computed_size_class_of(i * 16));
  }
  return classes;
}();

constexpr std::size_t tabled_size_class_of(std::size_t bytes) {
  return kTabledClasses[(bytes + 15) / 16];
}

// The smallest class of at least `bytes`, for bytes <= kMaxSlotBytes. Constant time.
constexpr std::size_t size_class_of(std::size_t bytes) {
  return bytes <= kTabledBytes ? tabled_size_class_of(bytes) : computed_size_class_of(bytes);
}

constexpr std::size_t slots_per_span(std::size_t size_class) {
  return kSpanBytes / kSlotBytes[size_class];
}

// The groups of a span's bitmap that its slots need; none for what is no span of slots.
constexpr std::size_t bitmap_groups(const SpanEntry& entry) {
  if (entry.kind != SpanKind::small || entry.size_class >= kSizeClasses) return 0;
  constexpr std::size_t kSlotsPerGroup = kWordsPerGroup * 64;
  return (slots_per_span(entry.size_class) + kSlotsPerGroup - 1) / kSlotsPerGroup;
}

// Where everything is for a region of a given size.
struct Geometry {
  std::size_t runtime_offset = 0;
  std::size_t roots_offset = 0;
  std::size_t spans_offset = 0;
  std::size_t bitmaps_offset = 0;
  std::size_t group_bytes = 0;
  std::size_t data_offset = 0;
  std::size_t span_count = 0;

  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// Fails where the reservation is too small for a single span.
Result<Geometry> geometry_for(std::size_t reserve_bytes);

// Whether this is a superblock this version can work with, of a region at `where`. A pure check
// of bytes that may come from a damaged store.
Result<void> check_superblock(const Superblock& superblock, ByteRange where);

}  // namespace pagetide::layout
