#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

#include "pagetide/allocator/heap.h"
#include "pagetide/allocator/heap_change_log.h"
#include "pagetide/allocator/heap_layout.h"
#include "pagetide/allocator/region.h"
#include "pagetide/allocator/span_supply.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide {

// Lists of spans, and references to one, hold its index + 1.
using SpanLink = std::uint32_t;
inline constexpr SpanLink kNoSpan = 0;

// What threads other than the owner of a span look at, and where they leave what they freed; see
// docs/heap.md. On a line of its own, so that the owner's work does not disturb them.
struct alignas(32) SpanShared {
  std::uint32_t owner;  // number of a ThreadHeap; 0: none. By owner_of() and set_owner()
  std::uint8_t size_class;
  bool tail_is_zero;      // the bytes behind the last slot are known to be zero
  SpanLink next_freed;    // in the owner's list of spans with remote frees
  std::uint64_t pending;  // bit w: word w of the remote masks may have bits
};

// Who asks does not know whether the span is his, or anybody's, any more.
inline std::uint32_t owner_of(SpanShared& span) {
  return std::atomic_ref(span.owner).load(std::memory_order_relaxed);
}
inline void set_owner(SpanShared& span, std::uint32_t owner) {
  std::atomic_ref(span.owner).store(owner, std::memory_order_relaxed);
}

inline constexpr std::uint8_t kUnlisted = 0xff;

// What only the owner of a span looks at.
struct SpanState {
  SpanLink previous;
  SpanLink next;
  // Not counting those of a word that its owner allocates from.
  std::uint16_t free_slots;
  std::uint16_t relist_at;    // the span moves between lists when it has so many free slots
  std::uint32_t epoch;        // in which slots of it were handed out last
  std::uint64_t reuse_words;  // in that epoch: these words are on the owner's stack
  std::uint8_t bucket;        // of its list, or kUnlisted
  bool is_hot;                // which of the two sets of lists
};

// offset / size for offsets inside a span, by multiplication.
inline constexpr std::array<std::uint32_t, layout::kSizeClasses> kReciprocal = [] {
  std::array<std::uint32_t, layout::kSizeClasses> values{};
  for (std::size_t c = 0; c < layout::kSizeClasses; ++c) {
    values[c] = static_cast<std::uint32_t>((std::uint64_t{1} << 32) / layout::kSlotBytes[c] + 1);
  }
  return values;
}();

constexpr std::size_t slot_of(std::size_t offset, std::size_t size_class) {
  return static_cast<std::size_t>(offset * std::uint64_t{kReciprocal[size_class]} >> 32);
}

constexpr bool reciprocals_are_exact() {
  for (std::size_t c = 0; c < layout::kSizeClasses; ++c) {
    const std::size_t size = layout::kSlotBytes[c];
    for (std::size_t slot = 0; slot < layout::slots_per_span(c); ++slot) {
      if (slot_of(slot * size, c) != slot || slot_of(slot * size + size - 1, c) != slot)
        return false;
    }
  }
  return true;
}
static_assert(reciprocals_are_exact());

// The bits of word `index` of a bitmap that stand for slots.
constexpr std::uint64_t slot_bits(std::size_t slots, std::size_t index) {
  const std::size_t first = index * 64;
  if (slots >= first + 64) return ~std::uint64_t{0};
  return slots > first ? (std::uint64_t{1} << (slots - first)) - 1 : 0;
}

inline std::size_t bit_count(std::uint64_t bits) {
  return static_cast<std::size_t>(std::popcount(bits));
}

// A word that one thread writes and others look at.
inline std::uint64_t load_shared(std::uint64_t& word) {
  return std::atomic_ref(word).load(std::memory_order_relaxed);
}
inline void store_shared(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_relaxed);
}

// The tables of a heap: those in its region, and the volatile ones beside it.
class HeapTables {
 public:
  // Fails where the reservation is too small, or memory for the tables cannot be had.
  static Result<HeapTables> create(Region& region, ClearPolicy clear);

  Region& region;
  const layout::Geometry geometry;
  SpanSupply supply;
  HeapChangeLog changes;  // of what lies in the region; noted before it is written
  VirtualArray<SpanShared> shared;
  VirtualArray<SpanState> states;
  // A bit a slot each, in the order of the slot bitmaps. `zero`: free, and known to be zero because
  // it was cleared, or because its span was zero when it was taken; the owner's. `remote`: freed by
  // others than the owner, and not yet free in the bitmap.
  VirtualArray<std::uint64_t> zero;
  VirtualArray<std::uint64_t> remote;
  const ClearPolicy clear;

  layout::Superblock& superblock() const { return *reinterpret_cast<layout::Superblock*>(base_); }
  layout::SpanEntry& entry(std::size_t span) const { return entries_[span]; }
  std::uint64_t& word(std::size_t span, std::size_t index) const {
    std::byte* const line = bitmaps_ + index / layout::kWordsPerGroup * geometry.group_bytes +
                            span * layout::kBytesPerGroupLine;
    return reinterpret_cast<std::uint64_t*>(line)[index % layout::kWordsPerGroup];
  }
  std::uint64_t& zero_word(std::size_t span, std::size_t index) {
    return zero[volatile_index(span, index)];
  }
  std::uint64_t& remote_word(std::size_t span, std::size_t index) {
    return remote[volatile_index(span, index)];
  }
  std::byte* span_data(std::size_t span) const { return data_ + span * layout::kSpanBytes; }
  bool owns(const void* address) const {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(data_) <
           data_bytes_;
  }
  // The address is one that is owned.
  std::size_t span_of(const void* address) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(address) - data_) /
           layout::kSpanBytes;
  }
  // The take that is to come, so that 0 stands for none.
  std::uint32_t epoch() const { return takes_->load(std::memory_order_relaxed) + 1; }

 private:
  HeapTables(Region& r, const layout::Geometry& g, SpanSupply s, ClearPolicy c);

  std::size_t volatile_index(std::size_t span, std::size_t index) const {
    const std::size_t group = index / layout::kWordsPerGroup;
    return (group * geometry.span_count + span) * layout::kWordsPerGroup +
           index % layout::kWordsPerGroup;
  }

  // Every allocation asks for them.
  std::byte* const base_;
  layout::SpanEntry* const entries_;
  std::byte* const bitmaps_;
  std::byte* const data_;
  const std::size_t data_bytes_;
  const std::atomic<std::uint32_t>* const takes_;  // of the tracker
};

}  // namespace pagetide
