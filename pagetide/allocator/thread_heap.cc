#include "pagetide/allocator/thread_heap.h"

#include <algorithm>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/heap_race_points.h"
#include "pagetide/base/fatal.h"

namespace pagetide {

using layout::kSlotBytes;
using layout::kSpanBytes;
using layout::slots_per_span;
using layout::SpanEntry;
using layout::SpanKind;

namespace {

// A class that has so many spans gets its next ones beside each other: what is written together is
// watched together. Smaller classes share.
constexpr std::size_t kSpansOfLargeClass = 16;

constexpr std::size_t words_per_span(std::size_t size_class) {
  return (slots_per_span(size_class) + 63) / 64;
}

// An eighth of a span: so many free slots put it on a list, and so many more move it to the next.
constexpr std::size_t list_step(std::size_t size_class) {
  return std::max<std::size_t>(1, slots_per_span(size_class) / 8);
}

// Slots of these pages of a span are handed out.
void stamp(SpanHead& head, std::uint32_t owner, std::uint32_t epoch, std::uint32_t pages) {
  const std::uint32_t before = epoch_of(head) == epoch ? head.written_pages : 0U;
  set_owner(head, owner, epoch, static_cast<std::uint16_t>(before | pages));
}

std::atomic_ref<SpanLink> link_ref(SpanLink& link) {
  return std::atomic_ref(link);
}

}  // namespace

void ThreadHeap::begin(std::uint32_t number) {
  number_ = number;
  // Epochs are takes + 1.
  owner_and_takes_ = owner_and_epoch(number, 1);
  // Large blocks fill a stack sooner: it is no place to keep memory.
  constexpr std::size_t kMostStackedBytes = std::size_t{256} << 10U;
  for (std::size_t c = 0; c < stacks_.size(); ++c) {
    FreeSlot* const bottom = stacked_[c].data();
    stacks_[c] = {bottom, bottom, bottom + std::min(kStackSlots, kMostStackedBytes / kSlotBytes[c]),
                  kSlotBytes[c], kReciprocals[c]};
  }
}

void ThreadHeap::forget() {
  freed_ = kNoSpan;
  classes_ = {};
  empty_stacks();
}

void ThreadHeap::empty_stacks() {
  for (FreeStack& stack : stacks_) stack.top = stack.bottom;
}

// --- choosing ---------------------------------------------------------------------------------

bool ThreadHeap::refill(HeapTables& tables, std::size_t size_class) {
  enter_epoch(tables, size_class);
  if (stack_from_current(tables, size_class)) return true;
  leave_current(tables, size_class);
  // Only now: until here nobody else is waited for. It may fill the stack.
  drain(tables);
  if (!stacks_[size_class].empty()) return true;
  return choose_span(tables, size_class) && stack_from_current(tables, size_class);
}

// Hands out nothing from the stack of an earlier epoch, and knows no hot spans at first.
void ThreadHeap::enter_epoch(HeapTables& tables, std::size_t size_class) {
  Class& c = classes_[size_class];
  const std::uint32_t epoch = tables.epoch();
  if (c.epoch == epoch) return;
  put_stack_back(tables, size_class);
  c.epoch = epoch;
  for (SpanLink& head : c.hot) {
    while (head != kNoSpan) {
      const std::size_t span = head - 1;
      unlist(tables, span, size_class);
      list(tables, span, size_class);
    }
  }
}

bool ThreadHeap::stack_from_current(HeapTables& tables, std::size_t size_class) {
  const Class& c = classes_[size_class];
  if (c.current == kNoSpan) return false;
  const std::size_t span = c.current - 1;
  if (tables.states[span].free_slots == 0) return false;
  // Spans are aligned to their size, so the first slots of all of them would fill the same sets of
  // the caches: each begins at another word.
  const std::size_t words = words_per_span(size_class);
  std::size_t index = span % words;
  for (std::size_t i = 0; i < words; ++i) {
    if (stack_from_word(tables, size_class, span, index)) return true;
    if (++index == words) index = 0;
  }
  return false;
}

// Stacks the free slots of one page, the lowest on top: what is not handed out before the epoch
// ends need not get dirty. Of a span that is all free it takes the whole word, because there is no
// other block in its pages whose free could be taken for one in a dirty page.
bool ThreadHeap::stack_from_word(HeapTables& tables, std::size_t size_class, std::size_t span,
                                 std::size_t index) {
  const std::size_t slots = slots_per_span(size_class);
  const std::size_t slot_bytes = kSlotBytes[size_class];
  std::uint64_t& taken = tables.taken_word(span, index);
  std::uint64_t free = ~taken & slot_bits(slots, index);
  if (free == 0) return false;
  SpanState& state = tables.states[span];
  const std::size_t lowest = index * 64 + static_cast<std::size_t>(std::countr_zero(free));
  std::size_t last_page = lowest * slot_bytes / kSpanPageBytes;
  if (state.free_slots == slots) {
    const std::size_t highest = index * 64 + 63 - static_cast<std::size_t>(std::countl_zero(free));
    last_page = highest * slot_bytes / kSpanPageBytes;
  } else {
    // The first slot that begins behind the page.
    const std::size_t end = divide_up((last_page + 1) * kSpanPageBytes, slot_bytes) - index * 64;
    if (end < 64) free &= (std::uint64_t{1} << end) - 1;
  }
  Class& c = classes_[size_class];
  const std::size_t first_page = lowest * slot_bytes / kSpanPageBytes;
  stamp(tables.heads[span], number_, c.epoch,
        (std::uint32_t{2} << last_page) - (std::uint32_t{1} << first_page));
  tables.note_word(span, index);
  taken |= free;
  std::uint64_t& zeros = tables.zero_word(span, index);
  const std::uint64_t zero = zeros & free;
  zeros ^= zero;
  const std::size_t count = bit_count(free);
  state.free_slots = static_cast<std::uint16_t>(state.free_slots - count);
  c.free_slots -= count;
  std::byte* const first = tables.span_data(span) + index * 64 * slot_bytes;
  const std::uint64_t first_bit = tables.bit_of_slot(span, index * 64);
  while (free != 0) {
    const auto bit = 63 - static_cast<std::size_t>(std::countl_zero(free));
    free &= ~(std::uint64_t{1} << bit);
    const bool known_zero = (zero >> bit & 1U) != 0;
    stacks_[size_class].push(
        {first + bit * slot_bytes, known_zero == tables.clears, first_bit + bit});
  }
  return true;
}

void ThreadHeap::put_stack_back(HeapTables& tables, std::size_t size_class) {
  FreeStack& stack = stacks_[size_class];
  while (!stack.empty()) {
    const FreeSlot slot = *--stack.top;
    const std::size_t span = tables.span_of(slot.block());
    const auto offset = static_cast<std::size_t>(slot.block() - tables.span_data(span));
    put_back(tables, span, size_class, slot_of(offset, size_class),
             slot.ordinary() == tables.clears);
  }
}

// Spans that are dirty anyway come first, and among equals the emptiest: the more slots one span
// gives, the fewer spans get dirty. A clean span that yields little is left alone as long as there
// is little to gain by it.
bool ThreadHeap::choose_span(HeapTables& tables, std::size_t size_class) {
  constexpr std::size_t kHalfEmpty = kBuckets / 2;
  Class& c = classes_[size_class];
  if (use_listed(tables, size_class, true, 0)) return true;
  if (c.empty != kNoSpan) {
    c.current = std::exchange(c.empty, kNoSpan);
    return true;
  }
  const bool much_is_free = c.free_slots * 100 > c.slots * tables.slack_percent;
  if (use_listed(tables, size_class, false, much_is_free ? 0 : kHalfEmpty)) return true;
  if (use_fresh(tables, size_class)) return true;
  return use_listed(tables, size_class, false, 0) || use_any(tables, size_class);
}

// When nothing else is left: spans of which so little is free that they are on no list.
bool ThreadHeap::use_any(HeapTables& tables, std::size_t size_class) {
  if (classes_[size_class].free_slots == 0) return false;
  for (std::size_t span = 0; span < tables.superblock().spans_used; ++span) {
    SpanHead& head = tables.heads[span];
    if (owner_of(head) != number_ || head.size_class != size_class ||
        tables.states[span].free_slots == 0) {
      continue;
    }
    unlist(tables, span, size_class);
    classes_[size_class].current = static_cast<SpanLink>(span + 1);
    return true;
  }
  return false;
}

bool ThreadHeap::use_listed(HeapTables& tables, std::size_t size_class, bool hot,
                            std::size_t least_bucket) {
  Class& c = classes_[size_class];
  Lists& lists = hot ? c.hot : c.cold;
  for (std::size_t bucket = kBuckets; bucket-- > least_bucket;) {
    if (lists[bucket] == kNoSpan) continue;
    c.current = lists[bucket];
    unlist(tables, c.current - 1, size_class);
    return true;
  }
  return false;
}

bool ThreadHeap::use_fresh(HeapTables& tables, std::size_t size_class) {
  Class& c = classes_[size_class];
  const std::size_t slots = slots_per_span(size_class);
  std::uint64_t& spans_used = tables.superblock().spans_used;
  const bool is_large = c.slots >= kSpansOfLargeClass * slots && c.newest != kNoSpan;
  const auto run = is_large ? tables.supply.allocate_near(c.newest - 1, spans_used)
                            : tables.supply.allocate(1, 1, spans_used);
  if (!run) return false;
  const std::size_t span = run->first;
  c.newest = static_cast<SpanLink>(span + 1);
  tables.changes.note_entry(span);
  for (std::size_t i = 0; i < words_per_span(size_class); ++i) {
    // Zero already, unless the heap's bytes came from a damaged store: a stray bit here would lead
    // beyond the span.
    if (load_shared(tables.word(span, i)) != 0) {
      tables.note_word(span, i);
      store_shared(tables.word(span, i), 0);
    }
    tables.taken_word(span, i) = 0;
    tables.zero_word(span, i) = run->known_zero ? slot_bits(slots, i) : 0;
  }
  tables.entry(span) = {SpanKind::small, static_cast<std::uint8_t>(size_class), 0, 1};
  claim(tables, span, size_class, run->known_zero);
  tables.states[span] = {};
  tables.states[span].free_slots = static_cast<std::uint16_t>(slots);
  tables.states[span].bucket = kUnlisted;
  c.slots += slots;
  c.free_slots += slots;
  c.current = static_cast<SpanLink>(span + 1);
  return true;
}

void ThreadHeap::claim(HeapTables& tables, std::size_t span, std::size_t size_class,
                       bool tail_is_zero) {
  SpanHead& head = tables.heads[span];
  head.size_class = static_cast<std::uint8_t>(size_class);
  head.tail_is_zero = tail_is_zero;
  set_owner(head, number_, 0, 0);
}

void ThreadHeap::leave_current(HeapTables& tables, std::size_t size_class) {
  Class& c = classes_[size_class];
  if (c.current == kNoSpan) return;
  const std::size_t span = std::exchange(c.current, kNoSpan) - 1;
  if (tables.states[span].free_slots == slots_per_span(size_class)) {
    take_empty(tables, span, size_class);
  } else {
    list(tables, span, size_class);
  }
}

// --- freeing ----------------------------------------------------------------------------------

void ThreadHeap::free_local(HeapTables& tables, std::size_t span, std::size_t size_class,
                            std::size_t slot) {
  const std::size_t slot_bytes = kSlotBytes[size_class];
  const std::size_t offset = slot * slot_bytes;
  const bool clears =
      tables.clears_on_free(is_written_in(tables.heads[span], tables.epoch(), offset));
  if (clears) clear_slot(tables.span_data(span) + offset, slot_bytes);
  tables.note_word(span, slot / 64);
  std::uint64_t& bits = tables.word(span, slot / 64);
  store_shared(bits, load_shared(bits) & ~(std::uint64_t{1} << (slot % 64)));
  // The first free of an epoch: what is on the stack is of an earlier one.
  enter_epoch(tables, size_class);
  put_back(tables, span, size_class, slot, clears);
}

// A slot that is free in the bitmap is nobody's any more.
void ThreadHeap::put_back(HeapTables& tables, std::size_t span, std::size_t size_class,
                          std::size_t slot, bool known_zero) {
  const std::uint64_t mask = std::uint64_t{1} << (slot % 64);
  tables.taken_word(span, slot / 64) &= ~mask;
  if (known_zero) tables.zero_word(span, slot / 64) |= mask;
  add_free(tables, span, size_class, 1);
}

// `count` slots of a span became free.
void ThreadHeap::add_free(HeapTables& tables, std::size_t span, std::size_t size_class,
                          std::size_t count) {
  if (count == 0) return;
  Class& c = classes_[size_class];
  SpanState& state = tables.states[span];
  c.free_slots += count;
  state.free_slots = static_cast<std::uint16_t>(state.free_slots + count);
  if (c.current == span + 1) return;
  if (state.free_slots == slots_per_span(size_class)) return take_empty(tables, span, size_class);
  if (state.free_slots < state.relist_at) return;
  unlist(tables, span, size_class);
  list(tables, span, size_class);
}

// Puts a span that is on no list on the one it belongs to; on none if hardly anything is free.
void ThreadHeap::list(HeapTables& tables, std::size_t span, std::size_t size_class) {
  Class& c = classes_[size_class];
  SpanState& state = tables.states[span];
  const std::size_t step = list_step(size_class);
  const std::size_t eighths = state.free_slots / step;
  state.relist_at = static_cast<std::uint16_t>((eighths + 1) * step);
  if (eighths == 0) return;
  state.bucket = static_cast<std::uint8_t>(std::min(eighths, kBuckets) - 1);
  state.is_hot = epoch_of(tables.heads[span]) == c.epoch;
  SpanLink& head = (state.is_hot ? c.hot : c.cold)[state.bucket];
  state.previous = kNoSpan;
  state.next = head;
  if (head != kNoSpan) tables.states[head - 1].previous = static_cast<SpanLink>(span + 1);
  head = static_cast<SpanLink>(span + 1);
}

void ThreadHeap::unlist(HeapTables& tables, std::size_t span, std::size_t size_class) {
  SpanState& state = tables.states[span];
  if (state.bucket == kUnlisted) return;
  Class& c = classes_[size_class];
  if (state.previous != kNoSpan) {
    tables.states[state.previous - 1].next = state.next;
  } else {
    (state.is_hot ? c.hot : c.cold)[state.bucket] = state.next;
  }
  if (state.next != kNoSpan) tables.states[state.next - 1].previous = state.previous;
  state.bucket = kUnlisted;
}

// A span of which all slots are free, and merged: no other thread is at work on it any more.
void ThreadHeap::take_empty(HeapTables& tables, std::size_t span, std::size_t size_class) {
  Class& c = classes_[size_class];
  unlist(tables, span, size_class);
  if (c.empty == kNoSpan) {
    c.empty = static_cast<SpanLink>(span + 1);
    return;
  }
  release(tables, span, size_class);
}

void ThreadHeap::release(HeapTables& tables, std::size_t span, std::size_t size_class) {
  Class& c = classes_[size_class];
  const std::size_t slots = slots_per_span(size_class);
  bool is_zero = slots * kSlotBytes[size_class] == kSpanBytes || tables.heads[span].tail_is_zero;
  for (std::size_t i = 0; i < words_per_span(size_class); ++i) {
    is_zero = is_zero && (~tables.zero_word(span, i) & slot_bits(slots, i)) == 0;
  }
  c.slots -= slots;
  c.free_slots -= slots;
  tables.changes.note_entry(span);
  tables.entry(span) = {};
  set_owner(tables.heads[span], 0, 0, 0);
  tables.supply.release(span, 1, is_zero ? RunContent::zero : RunContent::unknown);
}

bool ThreadHeap::release_empty_spans(HeapTables& tables) {
  bool any = false;
  for (std::size_t size_class = 0; size_class < classes_.size(); ++size_class) {
    Class& c = classes_[size_class];
    put_stack_back(tables, size_class);
    leave_current(tables, size_class);
    // Spans that came with a restored image can be listed and empty.
    for (const Lists* lists : {&c.hot, &c.cold}) {
      for (SpanLink link = lists->back(); link != kNoSpan;) {
        const std::size_t span = link - 1;
        link = tables.states[span].next;
        if (tables.states[span].free_slots != slots_per_span(size_class)) continue;
        unlist(tables, span, size_class);
        release(tables, span, size_class);
        any = true;
      }
    }
    if (c.empty == kNoSpan) continue;
    release(tables, std::exchange(c.empty, kNoSpan) - 1, size_class);
    any = true;
  }
  return any;
}

void ThreadHeap::put_slots_back(HeapTables& tables) {
  for (std::size_t size_class = 0; size_class < classes_.size(); ++size_class) {
    put_stack_back(tables, size_class);
  }
}

// --- frees of other threads -------------------------------------------------------------------

// Step R3 of the protocol.
void ThreadHeap::push_freed(HeapTables& tables, std::size_t span) {
  SpanLink head = link_ref(freed_).load(std::memory_order_relaxed);
  do {
    tables.mail[span].next_freed = head;
    race_point();
  } while (!link_ref(freed_).compare_exchange_weak(
      head, static_cast<SpanLink>(span + 1), std::memory_order_release, std::memory_order_relaxed));
}

// Steps D1 to D4.
void ThreadHeap::drain(HeapTables& tables) {
  if (link_ref(freed_).load(std::memory_order_relaxed) == kNoSpan) return;
  SpanLink link = link_ref(freed_).exchange(kNoSpan, std::memory_order_acquire);
  while (link != kNoSpan) {
    const std::size_t span = link - 1;
    SpanMail& mail = tables.mail[span];
    if (owner_of(tables.heads[span]) != number_) {
      fatal("heap corruption: a freed span has another owner");
    }
    link = mail.next_freed;
    race_point();
    std::uint64_t words = std::atomic_ref(mail.pending).exchange(0, std::memory_order_acq_rel);
    for (; words != 0; words &= words - 1) {
      const auto index = static_cast<std::size_t>(std::countr_zero(words));
      race_point();
      const std::uint64_t freed =
          std::atomic_ref(tables.remote_word(span, index)).exchange(0, std::memory_order_acquire);
      take_in(tables, span, index, freed);
    }
  }
}

namespace {

// Which of the freed slots their threads have left as they were.
std::uint64_t take_uncleared(HeapTables& tables, std::size_t span, std::size_t index,
                             std::uint64_t freed) {
  std::atomic_ref word(tables.uncleared_word(span, index));
  const std::uint64_t uncleared = word.load(std::memory_order_relaxed) & freed;
  if (uncleared != 0) word.fetch_and(~uncleared, std::memory_order_relaxed);
  return uncleared;
}

}  // namespace

// Those in pages that are dirty anyway are the next ones to be used, as if freed by this thread.
void ThreadHeap::take_in(HeapTables& tables, std::size_t span, std::size_t index,
                         std::uint64_t freed) {
  SpanHead& head = tables.heads[span];
  const std::size_t size_class = head.size_class;
  Class& c = classes_[size_class];
  const std::size_t slot_bytes = kSlotBytes[size_class];
  const std::size_t offset = index * 64 * slot_bytes;
  FreeStack& stack = stacks_[size_class];
  const std::uint64_t cleared =
      tables.clears ? freed & ~take_uncleared(tables, span, index, freed) : 0;
  tables.note_word(span, index);
  std::uint64_t& bits = tables.word(span, index);
  if ((freed & ~load_shared(bits)) != 0) {
    fatal_at("heap corruption: double free in the span at ", tables.span_data(span),
             ": by its own thread and by another");
  }
  store_shared(bits, load_shared(bits) & ~freed);
  std::uint64_t put_back = freed;
  if (epoch_of(head) == tables.epoch() && c.epoch == tables.epoch()) {
    for (std::uint64_t rest = freed; rest != 0 && stack.has_room(); rest &= rest - 1) {
      const auto bit = static_cast<std::size_t>(std::countr_zero(rest));
      const std::size_t at = offset + bit * slot_bytes;
      if (!has_written_page(head, at)) continue;
      const bool known_zero = (cleared >> bit & 1U) != 0;
      stack.push({tables.span_data(span) + at, known_zero == tables.clears,
                  tables.bit_of_slot(span, index * 64 + bit)});
      put_back &= ~(rest & (~rest + 1));
    }
  }
  tables.taken_word(span, index) &= ~put_back;
  tables.zero_word(span, index) |= put_back & cleared;
  add_free(tables, span, size_class, bit_count(put_back));
}

void ThreadHeap::forget_span(HeapTables& tables, std::size_t span) {
  const std::size_t size_class = tables.heads[span].size_class;
  Class& c = classes_[size_class];
  unlist(tables, span, size_class);
  for (SpanLink* place : {&c.current, &c.empty}) {
    if (*place == span + 1) *place = kNoSpan;
  }
  c.slots -= slots_per_span(size_class);
  c.free_slots -= tables.states[span].free_slots;
  set_owner(tables.heads[span], 0, 0, 0);
}

void ThreadHeap::adopt(HeapTables& tables, std::size_t span) {
  const std::size_t size_class = tables.entry(span).size_class;
  const std::size_t slots = slots_per_span(size_class);
  std::size_t used = 0;
  for (std::size_t i = 0; i < words_per_span(size_class); ++i) {
    const std::uint64_t bits = load_shared(tables.word(span, i));
    tables.taken_word(span, i) = bits;
    used += bit_count(bits);
  }
  claim(tables, span, size_class, false);
  tables.states[span] = {};
  tables.states[span].bucket = kUnlisted;
  Class& c = classes_[size_class];
  c.slots += slots;
  // An empty one is listed too: it becomes current, or is released, when its turn comes.
  c.free_slots += slots - used;
  c.newest = static_cast<SpanLink>(span + 1);
  tables.states[span].free_slots = static_cast<std::uint16_t>(slots - used);
  list(tables, span, size_class);
}

}  // namespace pagetide
