#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "pagetide/allocator/heap_layout.h"
#include "pagetide/allocator/heap_tables.h"

namespace pagetide {

struct Allocated {
  std::byte* block = nullptr;
  bool known_zero = false;
};

// What one thread allocates small blocks from: spans of its own, and of each size class the word of
// a bitmap whose free slots it hands out. The protocol by which other threads free into its spans,
// and how spans and words are chosen, are in docs/heap.md.
//
// The bitmaps in the region are the truth at every moment: a slot is marked when it is handed out,
// not when a thread takes its word. So nothing here need be saved, and a thread that is stopped, or
// gone, holds nothing but slots that are free for everybody else to see.
//
// A value of its own mapping (VirtualArray), never moved. Not thread-safe but for push_freed().
class ThreadHeap {
 public:
  // The number of this heap, from 1; constant.
  void begin(std::uint32_t number);
  std::uint32_t number() const { return number_; }

  // The thread that it belongs to; 0: none. Under the lock of ThreadHeaps.
  std::uint64_t thread = 0;

  Allocated allocate(HeapTables& tables, std::size_t size_class) {
    Word& word = classes_[size_class].word;
    if (word.free == 0) [[unlikely]]
      return allocate_slowly(tables, size_class);
    return take_slot(word, size_class);
  }
  // A slot of a span of this heap, whose content is clear if the policy wants it. Its bit is set.
  void free_local(HeapTables& tables, std::size_t span, std::size_t size_class, std::size_t slot);

  // Another thread has freed into a span of this heap, which is on no list of freed spans.
  void push_freed(HeapTables& tables, std::size_t span);

  // Takes in what others have freed.
  void drain(HeapTables& tables);
  // Puts back the slots of all words that it allocates from.
  void put_words_back(HeapTables& tables);
  // Gives the empty spans that it kept to the supply; whether there was one.
  bool release_empty_spans(HeapTables& tables);

  // Forgets all spans. After the region's bytes were replaced.
  void forget();
  // Takes over a span of the heap as it is in the region.
  void adopt(HeapTables& tables, std::size_t span);

 private:
  // A word of a bitmap that slots are handed out from.
  struct Word {
    std::uint64_t free;   // free slots, this thread's to hand out
    std::uint64_t zero;   // of these, known to be zero
    std::uint64_t* bits;  // the word
    std::byte* slots;     // the slot of bit 0
    SpanLink span;
    std::uint32_t index;
  };
  static constexpr std::size_t kBuckets = 8;
  static constexpr std::size_t kReuseWords = 30;
  using Lists = std::array<SpanLink, kBuckets>;

  struct Class {
    Word word;
    SpanLink current;  // the span that is used until it is full
    SpanLink empty;    // kept, so that a single block that comes and goes costs no release
    Lists hot;   // spans from which slots were handed out in this epoch, by how empty they are
    Lists cold;  // the others
    std::uint64_t slots;       // of all its spans
    std::uint64_t free_slots;  // of these; without those of the word
    std::uint32_t epoch;
    std::uint32_t reuse_count;
    // Words of hot spans into which slots were freed: span << 6 | word.
    std::array<std::uint32_t, kReuseWords> reuse;
  };

  static Allocated take_slot(Word& word, std::size_t size_class) {
    const auto bit = static_cast<std::size_t>(std::countr_zero(word.free));
    const std::uint64_t mask = word.free & (~word.free + 1);
    word.free ^= mask;
    store_shared(*word.bits, load_shared(*word.bits) | mask);
    return {word.slots + bit * layout::kSlotBytes[size_class], (word.zero & mask) != 0};
  }

  Allocated allocate_slowly(HeapTables& tables, std::size_t size_class);
  bool find_word(HeapTables& tables, std::size_t size_class);
  bool take_reuse_word(HeapTables& tables, std::size_t size_class);
  bool take_word_of_current(HeapTables& tables, std::size_t size_class);
  bool take_word(HeapTables& tables, std::size_t size_class, std::size_t span, std::size_t index);
  bool choose_span(HeapTables& tables, std::size_t size_class);
  bool use_listed(HeapTables& tables, std::size_t size_class, bool hot, std::size_t least_bucket);
  bool use_fresh(HeapTables& tables, std::size_t size_class);
  bool use_any(HeapTables& tables, std::size_t size_class);
  void claim(HeapTables& tables, std::size_t span, std::size_t size_class, bool tail_is_zero);
  void make_current(HeapTables& tables, std::size_t size_class, std::size_t span);
  void leave_current(HeapTables& tables, std::size_t size_class);
  void put_word_back(HeapTables& tables, std::size_t size_class);
  void enter_epoch(HeapTables& tables, std::size_t size_class);

  void add_free(HeapTables& tables, std::size_t span, std::size_t size_class, std::size_t count);
  void note_reuse(HeapTables& tables, std::size_t span, std::size_t size_class, std::size_t index);
  void list(HeapTables& tables, std::size_t span, std::size_t size_class);
  void unlist(HeapTables& tables, std::size_t span, std::size_t size_class);
  void take_empty(HeapTables& tables, std::size_t span, std::size_t size_class);
  void release(HeapTables& tables, std::size_t span, std::size_t size_class);

  std::uint32_t number_ = 0;
  SpanLink freed_ = kNoSpan;  // spans with remote frees, most recent first; shared
  std::array<Class, layout::kSizeClasses> classes_{};
};

}  // namespace pagetide
