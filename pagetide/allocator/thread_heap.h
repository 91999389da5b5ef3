#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "pagetide/allocator/heap_layout.h"
#include "pagetide/allocator/heap_tables.h"

namespace pagetide {

// A free slot of a thread, with the bit by which it is marked, so that handing it out computes
// nothing.
class FreeSlot {
 public:
  FreeSlot() = default;
  // Ordinary is a slot that needs no second look when it is handed out: under `never` one of which
  // nothing is known, under the other policies one that is known to be zero.
  FreeSlot(std::byte* block, bool ordinary, std::uint64_t bit)
      : block_and_flag_(reinterpret_cast<std::uintptr_t>(block) |
                        static_cast<std::uintptr_t>(!ordinary)),
        bit_(bit) {}
  bool ordinary() const { return (block_and_flag_ & 1U) == 0; }
  std::byte* block() const {
    return reinterpret_cast<std::byte*>(block_and_flag_ & ~std::uintptr_t{1});
  }
  // block() of an ordinary one.
  std::byte* ordinary_block() const { return reinterpret_cast<std::byte*>(block_and_flag_); }
  void mark_allocated() const {
    std::uint64_t& word = bit_word(bit_);
    store_shared(word, load_shared(word) | bit_mask(bit_));
  }

 private:
  std::uintptr_t block_and_flag_;  // blocks are aligned to 16 bytes
  std::uint64_t bit_;
};

// The free slots of one size class that a thread hands out next, the one freed last on top; with
// what else the fast paths want to know of the class, in one place.
struct FreeStack {
  FreeSlot* top;  // the next free place
  FreeSlot* bottom;
  FreeSlot* limit;
  std::uint32_t slot_bytes;
  std::uint32_t reciprocal;  // see kReciprocals

  bool empty() const { return top == bottom; }
  bool has_room() const { return top < limit; }
  void push(const FreeSlot& slot) { *top++ = slot; }
};

// What one thread allocates small blocks from: spans of its own, and of each size class a stack of
// free slots, the one freed last on top. The protocol by which other threads free into its spans,
// and how spans and slots are chosen, are in docs/heap.md.
//
// The bitmaps in the region are the truth at every moment: a slot is marked when it is handed out,
// not when it gets onto a stack. So nothing here need be saved, and a thread that is stopped, or
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

  FreeStack& stack(std::size_t size_class) { return stacks_[size_class]; }
  // Puts slots on the empty stack; false: there are none.
  bool refill(HeapTables& tables, std::size_t size_class);

  // Whether a block of a span can be put on the stack: the span is of this heap, and the page is
  // dirty anyway. `offset` is that of the block in its span, or in all data.
  bool is_hot(HeapTables& tables, SpanHead& head, std::size_t offset) const {
    return load_shared(head.owner_and_epoch) == owner_and_takes_ + tables.takes() &&
           has_written_page(head, offset);
  }
  // Any other block of a span of this heap. A free into a clean page writes nothing there unless
  // the policy is on_free.
  void free_local(HeapTables& tables, std::size_t span, std::size_t size_class, std::size_t slot);

  // Another thread has freed into a span of this heap, which is on no list of freed spans.
  void push_freed(HeapTables& tables, std::size_t span);

  // Takes in what others have freed.
  void drain(HeapTables& tables);
  // Puts back the slots of all stacks.
  void put_slots_back(HeapTables& tables);
  // Gives the empty spans that it kept to the supply; whether there was one.
  bool release_empty_spans(HeapTables& tables);

  // Of all spans of a class; what is on the stack is not counted as free.
  struct Totals {
    std::uint64_t slots = 0;
    std::uint64_t free_slots = 0;
    friend bool operator==(const Totals&, const Totals&) = default;
  };
  Totals totals(std::size_t size_class) const {
    return {classes_[size_class].slots, classes_[size_class].free_slots};
  }

  // Forgets all spans. After the region's bytes were replaced.
  void forget();
  // Takes over a span of the heap as it is in the region.
  void adopt(HeapTables& tables, std::size_t span);
  // Knows a span of its own no more. All stacks are empty.
  void forget_span(HeapTables& tables, std::size_t span);

 private:
  static constexpr std::size_t kBuckets = 8;
  using Lists = std::array<SpanLink, kBuckets>;

  struct Class {
    std::uint32_t epoch;       // of all that is on the stack and on the hot lists
    SpanLink current;          // the span that is used until it is full
    SpanLink newest;           // the one that it got last, if it has any
    SpanLink empty;            // kept, so that a single block that comes and goes costs no release
    std::uint64_t slots;       // of all its spans
    std::uint64_t free_slots;  // of these; without those on the stack
    Lists hot;   // spans from which slots were handed out in this epoch, by how empty they are
    Lists cold;  // the others
  };

  void empty_stacks();

  bool stack_from_current(HeapTables& tables, std::size_t size_class);
  bool stack_from_word(HeapTables& tables, std::size_t size_class, std::size_t span,
                       std::size_t index);
  bool choose_span(HeapTables& tables, std::size_t size_class);
  bool use_listed(HeapTables& tables, std::size_t size_class, bool hot, std::size_t least_bucket);
  bool use_fresh(HeapTables& tables, std::size_t size_class);
  bool use_any(HeapTables& tables, std::size_t size_class);
  void leave_current(HeapTables& tables, std::size_t size_class);
  void put_stack_back(HeapTables& tables, std::size_t size_class);
  void enter_epoch(HeapTables& tables, std::size_t size_class);

  void put_back(HeapTables& tables, std::size_t span, std::size_t size_class, std::size_t slot,
                bool known_zero);
  void take_in(HeapTables& tables, std::size_t span, std::size_t index, std::uint64_t freed);
  void add_free(HeapTables& tables, std::size_t span, std::size_t size_class, std::size_t count);
  void claim(HeapTables& tables, std::size_t span, std::size_t size_class, bool tail_is_zero);
  void list(HeapTables& tables, std::size_t span, std::size_t size_class);
  void unlist(HeapTables& tables, std::size_t span, std::size_t size_class);
  void take_empty(HeapTables& tables, std::size_t span, std::size_t size_class);
  void release(HeapTables& tables, std::size_t span, std::size_t size_class);

  std::uint32_t number_ = 0;
  std::uint64_t owner_and_takes_ = 0;  // and the tracker's takes: what the head of a hot span says
  // Apart from what they hold: these are used all the time.
  alignas(sizeof(FreeStack)) std::array<FreeStack, layout::kSizeClasses> stacks_{};
  // Spans with remote frees, most recent first. The one thing here that others write to.
  alignas(64) SpanLink freed_ = kNoSpan;
  alignas(64) std::array<Class, layout::kSizeClasses> classes_{};
  static constexpr std::size_t kStackSlots = 127;
  std::array<std::array<FreeSlot, kStackSlots>, layout::kSizeClasses> stacked_{};
};

}  // namespace pagetide
