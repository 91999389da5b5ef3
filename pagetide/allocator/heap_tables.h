#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "pagetide/allocator/clear_policy.h"
#include "pagetide/allocator/heap_change_log.h"
#include "pagetide/allocator/heap_layout.h"
#include "pagetide/allocator/region.h"
#include "pagetide/allocator/slack.h"
#include "pagetide/allocator/span_supply.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide {

struct Allocated {
  std::byte* block = nullptr;
  bool known_zero = false;
};

// A word that one thread writes and others look at.
inline std::uint64_t load_shared(std::uint64_t& word) {
  return std::atomic_ref(word).load(std::memory_order_relaxed);
}
inline void store_shared(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_relaxed);
}

// A bit in memory is named by one number, 64 x (the address of its word / 8) + its place in there:
// one register holds it, and shifts by the whole number are shifts by the place.
inline std::uint64_t& bit_word(std::uint64_t bit) {
  return *reinterpret_cast<std::uint64_t*>((bit >> 6U) << 3U);
}
constexpr std::uint64_t bit_mask(std::uint64_t bit) {
  return std::uint64_t{1} << (bit & 63U);
}

// Lists of spans, and references to one, hold its index + 1.
using SpanLink = std::uint32_t;
inline constexpr SpanLink kNoSpan = 0;

// What is looked up by whoever frees a block, in 16 bytes: the heads of 16 MiB of spans fit into 4
// KiB. Written by the owner alone, and not often.
struct alignas(16) SpanHead {
  // In the upper half the number of a ThreadHeap, 0: none; in the lower one an epoch: in that one
  // slots of `written_pages` were handed out, so these pages are dirty, or will be.
  std::uint64_t owner_and_epoch;
  // Bit p, and bit 16 + p: the p-th sixteenth of the span, which is a page. Twice, so that who
  // shifts by the page of an address in the arena need not take the span away from it.
  std::uint32_t written_pages;
  std::uint8_t size_class;
  bool tail_is_zero;  // the bytes behind the last slot are known to be zero
};

constexpr std::uint64_t owner_and_epoch(std::uint32_t owner, std::uint32_t epoch) {
  return std::uint64_t{owner} << 32U | epoch;
}

// Where others than the owner leave what they freed; see docs/heap.md.
struct SpanMail {
  std::uint64_t pending;  // bit w: word w of the remote masks may have bits
  SpanLink next_freed;    // in the owner's list of spans with remote frees
};

// Who asks does not know whether the span is his, or anybody's, any more.
inline std::uint32_t owner_of(SpanHead& span) {
  return static_cast<std::uint32_t>(load_shared(span.owner_and_epoch) >> 32U);
}
inline std::uint32_t epoch_of(SpanHead& span) {
  return static_cast<std::uint32_t>(load_shared(span.owner_and_epoch));
}
// `pages`: the lower half of written_pages.
inline void set_owner(SpanHead& span, std::uint32_t owner, std::uint32_t epoch,
                      std::uint16_t pages) {
  std::atomic_ref(span.written_pages)
      .store(pages | std::uint32_t{pages} << 16U, std::memory_order_relaxed);
  store_shared(span.owner_and_epoch, owner_and_epoch(owner, epoch));
}

inline constexpr std::uint8_t kUnlisted = 0xff;

// What only the owner of a span looks at.
struct SpanState {
  SpanLink previous;
  SpanLink next;
  std::uint16_t free_slots;  // not counting those on the owner's stack
  std::uint16_t relist_at;   // the span moves between lists when it has so many free slots
  std::uint8_t bucket;       // of its list, or kUnlisted
  bool is_hot;               // which of the two sets of lists
};

// The smallest page there is. On systems with larger ones a bit says less than it could.
inline constexpr std::size_t kSpanPageBytes = layout::kSpanBytes / 16;

// Of the span itself, or of all data: only where in a span it is counts.
inline bool has_written_page(SpanHead& head, std::size_t offset) {
  const std::uint32_t pages = std::atomic_ref(head.written_pages).load(std::memory_order_relaxed);
  return (pages >> (offset / kSpanPageBytes % 32) & 1U) != 0;
}

// Whether slots of the page at `offset` of the span were handed out in this epoch, so that it is
// dirty. Others than the owner may get an old answer.
inline bool is_written_in(SpanHead& head, std::uint32_t epoch, std::size_t offset) {
  return epoch_of(head) == epoch && has_written_page(head, offset);
}

// By which offset / slot_bytes, for offsets inside a span, is a multiplication.
inline constexpr std::array<std::uint32_t, layout::kSizeClasses> kReciprocals = [] {
  std::array<std::uint32_t, layout::kSizeClasses> reciprocals{};
  for (std::size_t c = 0; c < layout::kSizeClasses; ++c) {
    reciprocals[c] =
        static_cast<std::uint32_t>((std::uint64_t{1} << 32) / layout::kSlotBytes[c] + 1);
  }
  return reciprocals;
}();

// A slot and a fraction of it, in units of 2^-32: where an offset inside a span is.
constexpr std::uint64_t slot_and_fraction(std::size_t offset, std::uint32_t reciprocal) {
  return offset * std::uint64_t{reciprocal};
}
// Whether an offset is that of a slot, and not of a byte inside one: the reciprocal is a little too
// large, by which the fraction of a slot's first byte is less than that of one byte.
constexpr bool is_slot_start(std::uint64_t slot_and_fraction, std::uint32_t reciprocal) {
  return static_cast<std::uint32_t>(slot_and_fraction) < reciprocal;
}
constexpr std::size_t slot_of(std::size_t offset, std::size_t size_class) {
  return slot_and_fraction(offset, kReciprocals[size_class]) >> 32U;
}

constexpr bool reciprocals_are_exact(std::size_t size_class) {
  const std::uint32_t reciprocal = kReciprocals[size_class];
  const std::size_t slot_bytes = layout::kSlotBytes[size_class];
  for (std::size_t slot = 0; slot < layout::slots_per_span(size_class); ++slot) {
    const std::size_t first = slot * slot_bytes;
    const std::size_t last = first + slot_bytes - 1;
    if (slot_of(first, size_class) != slot || slot_of(last, size_class) != slot) return false;
    if (!is_slot_start(slot_and_fraction(first, reciprocal), reciprocal)) return false;
    // The smallest fraction of the others, and the largest.
    if (is_slot_start(slot_and_fraction(first + 1, reciprocal), reciprocal)) return false;
    if (is_slot_start(slot_and_fraction(last, reciprocal), reciprocal)) return false;
  }
  return true;
}
constexpr bool reciprocals_are_exact() {
  for (std::size_t c = 0; c < layout::kSizeClasses; ++c) {
    if (!reciprocals_are_exact(c)) return false;
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

// The tables of a heap: those in its region, and the volatile ones beside it.
class HeapTables {
 public:
  // Fails where the reservation is too small, or memory for the tables cannot be had.
  static Result<HeapTables> create(Region& region, ClearPolicy clear);

  Region& region;
  const layout::Geometry geometry;
  SpanSupply supply;
  HeapChangeLog changes;  // of what lies in the region; noted before it is written
  VirtualArray<SpanHead> heads;
  VirtualArray<SpanMail> mail;
  VirtualArray<SpanState> states;
  // A bit a slot each, in the order of the slot bitmaps. `taken`: allocated, or on the stack of the
  // owner; the owner's. `zero`: not taken, and known to be zero because it was cleared, or because
  // its span was zero when it was taken; the owner's. `remote`: freed by others than the owner, and
  // not yet free in the bitmap.
  VirtualArray<std::uint64_t> taken;
  VirtualArray<std::uint64_t> zero;
  VirtualArray<std::uint64_t> remote;
  VirtualArray<std::uint64_t> uncleared;  // of `remote`: not cleared though the policy clears
  const ClearPolicy clear;
  const bool clears;  // at some time or other
  unsigned slack_percent = kDefaultSlackPercent;

  layout::Superblock& superblock() const { return *reinterpret_cast<layout::Superblock*>(base_); }
  layout::SpanEntry& entry(std::size_t span) const { return entries_[span]; }
  std::uint64_t& word(std::size_t span, std::size_t index) const {
    std::byte* const line = bitmaps_ + index / layout::kWordsPerGroup * geometry.group_bytes +
                            span * layout::kBytesPerGroupLine;
    return reinterpret_cast<std::uint64_t*>(line)[index % layout::kWordsPerGroup];
  }
  // The same, as the number of a bit in the address space; see bit_word().
  std::uint64_t bit_of_slot(std::size_t span, std::size_t slot) const {
    constexpr std::size_t kGroupSlots = layout::kBytesPerGroupLine * 8;
    return first_bit_ + slot / kGroupSlots * group_bits_ + span * kGroupSlots + slot % kGroupSlots;
  }
  std::uint64_t& taken_word(std::size_t span, std::size_t index) {
    return taken[volatile_index(span, index)];
  }
  std::uint64_t& zero_word(std::size_t span, std::size_t index) {
    return zero[volatile_index(span, index)];
  }
  std::uint64_t& remote_word(std::size_t span, std::size_t index) {
    return remote[volatile_index(span, index)];
  }
  std::uint64_t& uncleared_word(std::size_t span, std::size_t index) {
    return uncleared[volatile_index(span, index)];
  }
  // Whether a slot that is freed is cleared now; else before it is used again, or never.
  bool clears_on_free(bool page_is_dirty) const {
    return clear == ClearPolicy::on_free || (clear == ClearPolicy::deferred && page_is_dirty);
  }
  // Whether what is not known to be zero is cleared before it is handed out.
  bool clears_late() const { return clear == ClearPolicy::deferred; }
  // A word of a slot bitmap is about to change.
  void note_word(std::size_t span, std::size_t index) {
    changes.note_line(span, index / layout::kWordsPerGroup);
  }
  std::byte* span_data(std::size_t span) const { return data_ + span * layout::kSpanBytes; }
  // At least data_bytes() for an address that is not owned.
  std::size_t data_offset_of(const void* address) const {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(data_);
  }
  std::size_t data_bytes() const { return data_bytes_; }
  bool owns(const void* address) const { return data_offset_of(address) < data_bytes_; }
  // The address is one that is owned.
  std::size_t span_of(const void* address) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(address) - data_) /
           layout::kSpanBytes;
  }
  std::uint32_t takes() const { return takes_->load(std::memory_order_relaxed); }
  // Drops what is rebuilt from the tables in the region: who owns which span, and what of it.
  void forget_volatile();
  // The take that is to come, so that 0 stands for none.
  std::uint32_t epoch() const { return takes() + 1; }

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
  const std::uint64_t first_bit_;   // of the bitmaps
  const std::uint64_t group_bits_;  // from a group of the bitmaps to the next
  std::byte* const data_;
  const std::size_t data_bytes_;
  const std::atomic<std::uint32_t>* const takes_;  // of the tracker
};

}  // namespace pagetide
