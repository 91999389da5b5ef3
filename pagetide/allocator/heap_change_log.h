#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "pagetide/allocator/heap_layout.h"
#include "pagetide/base/error.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide {

// What of a heap's metadata may have changed since the last snapshot, so that a snapshot copies
// that and looks at nothing else: entries of the span table, lines of slot bitmaps (the words of
// one span and group) and entries of the root table. The superblock is not in it: it is in every
// snapshot.
//
// Whoever changes metadata notes it first, with any thread and at any time: lock-free, and one load
// where it is noted already. Volatile, outside the region; allocates nothing after create().
class HeapChangeLog {
 public:
  HeapChangeLog() = default;
  static Result<HeapChangeLog> create(std::size_t span_count);

  void note_line(std::size_t span, std::size_t group) {
    note(span, static_cast<std::uint16_t>(1U << group));
  }
  void note_entry(std::size_t span) { note(span, kEntry); }
  void note_root(std::size_t root) { set_bit(roots_[root / 64], root % 64); }

  // --- only while no other thread is inside the heap ---
  // Calls visit(span, line_mask, entry_changed), spans ascending; bit g of the mask stands for
  // group g. Cost: what is noted, and one word for each 256 MiB of the reservation.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for_each_bit(blocks_.span(), [&](std::size_t block) {
      for_each_bit(spans_.span().subspan(block, 1), [&](std::size_t bit) {
        const std::size_t span = block * 64 + bit;
        const std::uint16_t noted = noted_[span];
        if (noted == 0) return;
        visit(span, static_cast<std::uint8_t>(noted & kLines), (noted & kEntry) != 0);
      });
    });
  }
  // Calls visit(index of the root), ascending.
  template <typename Visit>
  void for_each_root(Visit&& visit) const {
    for_each_bit(roots_.span(), visit);
  }
  // Forgets everything. Cost: what is noted.
  void clear();

 private:
  static constexpr std::uint16_t kLines = (1U << layout::kBitmapGroups) - 1;
  static constexpr std::uint16_t kEntry = 1U << layout::kBitmapGroups;

  void note(std::size_t span, std::uint16_t what) {
    if ((std::atomic_ref(noted_[span]).load(std::memory_order_relaxed) & what) != 0) return;
    note_first(span, what);
  }
  // The summaries first: who finds something noted relies on them.
  void note_first(std::size_t span, std::uint16_t what) {
    set_bit(blocks_[span / 64 / 64], span / 64 % 64);
    set_bit(spans_[span / 64], span % 64);
    std::atomic_ref(noted_[span]).fetch_or(what, std::memory_order_relaxed);
  }
  static void set_bit(std::uint64_t& word, std::size_t bit) {
    const std::atomic_ref shared(word);
    const std::uint64_t mask = std::uint64_t{1} << bit;
    if ((shared.load(std::memory_order_relaxed) & mask) == 0) {
      shared.fetch_or(mask, std::memory_order_relaxed);
    }
  }
  template <typename Visit>
  static void for_each_bit(std::span<const std::uint64_t> words, Visit&& visit) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      for (std::uint64_t rest = words[i]; rest != 0; rest &= rest - 1) {
        visit(i * 64 + static_cast<std::size_t>(std::countr_zero(rest)));
      }
    }
  }

  VirtualArray<std::uint16_t> noted_;   // a span: bit g: its line of group g; kEntry: its entry
  VirtualArray<std::uint64_t> spans_;   // bit a span: something is noted
  VirtualArray<std::uint64_t> blocks_;  // bit a word of these: it is not zero
  VirtualArray<std::uint64_t> roots_;   // bit a root
};

}  // namespace pagetide
