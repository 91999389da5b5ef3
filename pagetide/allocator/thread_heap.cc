#include "pagetide/allocator/thread_heap.h"

#include <algorithm>

#include "pagetide/allocator/heap_race_points.h"
#include "pagetide/base/fatal.h"

namespace pagetide {

using layout::kSlotBytes;
using layout::kSpanBytes;
using layout::slots_per_span;
using layout::SpanEntry;
using layout::SpanKind;

namespace {

constexpr std::size_t words_per_span(std::size_t size_class) {
  return (slots_per_span(size_class) + 63) / 64;
}

// An eighth of a span: so many free slots put it on a list, and so many more move it to the next.
constexpr std::size_t list_step(std::size_t size_class) {
  return std::max<std::size_t>(1, slots_per_span(size_class) / 8);
}

std::atomic_ref<SpanLink> link_ref(SpanLink& link) {
  return std::atomic_ref(link);
}

}  // namespace

void ThreadHeap::begin(std::uint32_t number) {
  number_ = number;
}

void ThreadHeap::forget() {
  freed_ = kNoSpan;
  classes_ = {};
}

// --- choosing ---------------------------------------------------------------------------------

Allocated ThreadHeap::allocate_slowly(HeapTables& tables, std::size_t size_class) {
  enter_epoch(tables, size_class);
  if (!find_word(tables, size_class)) return {};
  return take_slot(classes_[size_class].word, size_class);
}

// Hands out nothing from words of an earlier epoch, and knows no hot spans at first.
void ThreadHeap::enter_epoch(HeapTables& tables, std::size_t size_class) {
  Class& c = classes_[size_class];
  const std::uint32_t epoch = tables.epoch();
  if (c.epoch == epoch) return;
  c.epoch = epoch;
  c.reuse_count = 0;
  for (SpanLink& head : c.hot) {
    while (head != kNoSpan) {
      const std::size_t span = head - 1;
      unlist(tables, span, size_class);
      list(tables, span, size_class);
    }
  }
}

// A word with free slots: the latest one into which slots were freed in this epoch, whose pages are
// dirty most likely; else the next one of the current span; else one of another span.
bool ThreadHeap::find_word(HeapTables& tables, std::size_t size_class) {
  put_word_back(tables, size_class);
  if (take_reuse_word(tables, size_class)) return true;
  if (take_word_of_current(tables, size_class)) return true;
  leave_current(tables, size_class);
  // Only now: until here nobody else is waited for.
  drain(tables);
  return choose_span(tables, size_class) && take_word_of_current(tables, size_class);
}

bool ThreadHeap::take_reuse_word(HeapTables& tables, std::size_t size_class) {
  Class& c = classes_[size_class];
  while (c.reuse_count > 0) {
    const std::uint32_t entry = c.reuse[--c.reuse_count];
    const std::size_t span = entry >> 6U;
    const std::size_t index = entry & 63U;
    // The span may have been released since, and come back to this class or not.
    SpanShared& shared = tables.shared[span];
    SpanState& state = tables.states[span];
    const std::uint64_t mask = std::uint64_t{1} << index;
    if (owner_of(shared) != number_ || shared.size_class != size_class || state.epoch != c.epoch ||
        (state.reuse_words & mask) == 0) {
      continue;
    }
    state.reuse_words &= ~mask;
    if (take_word(tables, size_class, span, index)) return true;
  }
  return false;
}

bool ThreadHeap::take_word_of_current(HeapTables& tables, std::size_t size_class) {
  const Class& c = classes_[size_class];
  if (c.current == kNoSpan) return false;
  const std::size_t span = c.current - 1;
  if (tables.states[span].free_slots == 0) return false;
  // Spans are aligned to their size, so the first slots of all of them would fill the same sets of
  // the caches: each begins at another word.
  const std::size_t words = words_per_span(size_class);
  for (std::size_t i = 0; i < words; ++i) {
    if (take_word(tables, size_class, span, (span + i) % words)) return true;
  }
  return false;
}

bool ThreadHeap::take_word(HeapTables& tables, std::size_t size_class, std::size_t span,
                           std::size_t index) {
  std::uint64_t& bits = tables.word(span, index);
  const std::uint64_t free = ~load_shared(bits) & slot_bits(slots_per_span(size_class), index);
  if (free == 0) return false;
  // For all slots that will be handed out from it: the word is put back before a snapshot.
  tables.changes.note_line(span, index / layout::kWordsPerGroup);
  Class& c = classes_[size_class];
  SpanState& state = tables.states[span];
  if (state.epoch != c.epoch) {
    state.epoch = c.epoch;
    state.reuse_words = 0;
  }
  std::uint64_t& zeros = tables.zero_word(span, index);
  c.word = {.free = free,
            .zero = zeros & free,
            .bits = &bits,
            .slots = tables.span_data(span) + index * 64 * kSlotBytes[size_class],
            .span = static_cast<SpanLink>(span + 1),
            .index = static_cast<std::uint32_t>(index)};
  zeros &= ~free;
  const std::size_t count = bit_count(free);
  state.free_slots = static_cast<std::uint16_t>(state.free_slots - count);
  c.free_slots -= count;
  return true;
}

void ThreadHeap::put_word_back(HeapTables& tables, std::size_t size_class) {
  Class& c = classes_[size_class];
  if (c.word.span == kNoSpan) return;
  const Word word = std::exchange(c.word, Word{});
  const std::size_t span = word.span - 1;
  tables.zero_word(span, word.index) |= word.zero & word.free;
  add_free(tables, span, size_class, bit_count(word.free));
}

// Spans that are dirty anyway come first, and among equals the emptiest: the more slots one span
// gives, the fewer spans get dirty. A clean span that yields little is left alone as long as there
// is little to gain by it.
bool ThreadHeap::choose_span(HeapTables& tables, std::size_t size_class) {
  constexpr std::size_t kHalfEmpty = kBuckets / 2;
  constexpr std::size_t kSlackPart = 8;
  Class& c = classes_[size_class];
  if (use_listed(tables, size_class, true, 0)) return true;
  if (c.empty != kNoSpan) {
    make_current(tables, size_class, std::exchange(c.empty, kNoSpan) - 1);
    return true;
  }
  const bool much_is_free = c.free_slots * kSlackPart > c.slots;
  if (use_listed(tables, size_class, false, much_is_free ? 0 : kHalfEmpty)) return true;
  if (use_fresh(tables, size_class)) return true;
  return use_listed(tables, size_class, false, 0) || use_any(tables, size_class);
}

// When nothing else is left: spans of which so little is free that they are on no list.
bool ThreadHeap::use_any(HeapTables& tables, std::size_t size_class) {
  if (classes_[size_class].free_slots == 0) return false;
  for (std::size_t span = 0; span < tables.superblock().spans_used; ++span) {
    if (owner_of(tables.shared[span]) != number_ || tables.shared[span].size_class != size_class ||
        tables.states[span].free_slots == 0) {
      continue;
    }
    unlist(tables, span, size_class);
    make_current(tables, size_class, span);
    return true;
  }
  return false;
}

bool ThreadHeap::use_listed(HeapTables& tables, std::size_t size_class, bool hot,
                            std::size_t least_bucket) {
  Class& c = classes_[size_class];
  Lists& lists = hot ? c.hot : c.cold;
  for (std::size_t bucket = kBuckets; bucket-- > least_bucket;) {
    while (lists[bucket] != kNoSpan) {
      const std::size_t span = lists[bucket] - 1;
      unlist(tables, span, size_class);
      // Its words may have been used up as ones of latest frees.
      if (tables.states[span].free_slots == 0) continue;
      make_current(tables, size_class, span);
      return true;
    }
  }
  return false;
}

bool ThreadHeap::use_fresh(HeapTables& tables, std::size_t size_class) {
  const auto run = tables.supply.allocate(1, 1, tables.superblock().spans_used);
  if (!run) return false;
  const std::size_t span = run->first;
  const std::size_t slots = slots_per_span(size_class);
  // Zero already, unless the heap's bytes came from a damaged store: a stray bit here would lead
  // beyond the span.
  for (std::size_t i = 0; i < words_per_span(size_class); ++i) {
    if (load_shared(tables.word(span, i)) != 0) {
      tables.changes.note_line(span, i / layout::kWordsPerGroup);
      store_shared(tables.word(span, i), 0);
    }
    tables.zero_word(span, i) = run->known_zero ? ~std::uint64_t{0} : 0;
  }
  tables.changes.note_entry(span);
  tables.entry(span) = {SpanKind::small, static_cast<std::uint8_t>(size_class), 0, 1};
  claim(tables, span, size_class, run->known_zero);
  tables.states[span] = {};
  tables.states[span].free_slots = static_cast<std::uint16_t>(slots);
  tables.states[span].bucket = kUnlisted;
  Class& c = classes_[size_class];
  c.slots += slots;
  c.free_slots += slots;
  make_current(tables, size_class, span);
  return true;
}

void ThreadHeap::claim(HeapTables& tables, std::size_t span, std::size_t size_class,
                       bool tail_is_zero) {
  SpanShared& shared = tables.shared[span];
  shared.size_class = static_cast<std::uint8_t>(size_class);
  shared.tail_is_zero = tail_is_zero;
  set_owner(shared, number_);
}

void ThreadHeap::make_current(HeapTables&, std::size_t size_class, std::size_t span) {
  classes_[size_class].current = static_cast<SpanLink>(span + 1);
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
  const std::size_t index = slot / 64;
  const std::uint64_t mask = std::uint64_t{1} << (slot % 64);
  std::uint64_t& bits = tables.word(span, index);
  tables.changes.note_line(span, index / layout::kWordsPerGroup);
  store_shared(bits, load_shared(bits) & ~mask);
  const bool cleared = tables.clear != ClearPolicy::never;
  Word& word = classes_[size_class].word;
  if (word.bits == &bits) {
    word.free |= mask;
    word.zero = cleared ? word.zero | mask : word.zero & ~mask;
    return;
  }
  std::uint64_t& zeros = tables.zero_word(span, index);
  zeros = cleared ? zeros | mask : zeros & ~mask;
  note_reuse(tables, span, size_class, index);
  add_free(tables, span, size_class, 1);
}

// In a span that is dirty anyway the slot is used again at once.
void ThreadHeap::note_reuse(HeapTables& tables, std::size_t span, std::size_t size_class,
                            std::size_t index) {
  constexpr std::size_t kMaxSpan = std::size_t{1} << 26U;
  Class& c = classes_[size_class];
  SpanState& state = tables.states[span];
  if (state.epoch != tables.epoch() || c.epoch != state.epoch) return;
  const std::uint64_t mask = std::uint64_t{1} << index;
  if ((state.reuse_words & mask) != 0 || c.reuse_count == kReuseWords || span >= kMaxSpan) return;
  state.reuse_words |= mask;
  c.reuse[c.reuse_count++] = static_cast<std::uint32_t>(span << 6U | index);
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
  state.is_hot = state.epoch == c.epoch;
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
  // What stands on the stack of it is void: nobody may use a span that is about to go.
  tables.states[span].reuse_words = 0;
  if (c.empty == kNoSpan) {
    c.empty = static_cast<SpanLink>(span + 1);
    return;
  }
  release(tables, span, size_class);
}

void ThreadHeap::release(HeapTables& tables, std::size_t span, std::size_t size_class) {
  Class& c = classes_[size_class];
  const std::size_t slots = slots_per_span(size_class);
  bool is_zero = slots * kSlotBytes[size_class] == kSpanBytes || tables.shared[span].tail_is_zero;
  for (std::size_t i = 0; i < words_per_span(size_class); ++i) {
    is_zero = is_zero && (~tables.zero_word(span, i) & slot_bits(slots, i)) == 0;
  }
  c.slots -= slots;
  c.free_slots -= slots;
  tables.changes.note_entry(span);
  tables.entry(span) = {};
  set_owner(tables.shared[span], 0);
  tables.supply.release(span, 1, is_zero ? RunContent::zero : RunContent::unknown);
}

bool ThreadHeap::release_empty_spans(HeapTables& tables) {
  bool any = false;
  for (std::size_t size_class = 0; size_class < classes_.size(); ++size_class) {
    Class& c = classes_[size_class];
    put_word_back(tables, size_class);
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

void ThreadHeap::put_words_back(HeapTables& tables) {
  for (std::size_t size_class = 0; size_class < classes_.size(); ++size_class) {
    put_word_back(tables, size_class);
  }
}

// --- frees of other threads -------------------------------------------------------------------

// Step R3 of the protocol.
void ThreadHeap::push_freed(HeapTables& tables, std::size_t span) {
  SpanLink head = link_ref(freed_).load(std::memory_order_relaxed);
  do {
    tables.shared[span].next_freed = head;
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
    SpanShared& shared = tables.shared[span];
    if (owner_of(shared) != number_) fatal("heap corruption: a freed span has another owner");
    link = shared.next_freed;
    race_point();
    std::uint64_t words = std::atomic_ref(shared.pending).exchange(0, std::memory_order_acq_rel);
    const std::size_t size_class = shared.size_class;
    std::size_t count = 0;
    for (; words != 0; words &= words - 1) {
      const auto index = static_cast<std::size_t>(std::countr_zero(words));
      race_point();
      const std::uint64_t freed =
          std::atomic_ref(tables.remote_word(span, index)).exchange(0, std::memory_order_acquire);
      std::uint64_t& bits = tables.word(span, index);
      if ((freed & ~load_shared(bits)) != 0) {
        fatal_at("heap corruption: double free in the span at ", tables.span_data(span),
                 ": by its own thread and by another");
      }
      tables.changes.note_line(span, index / layout::kWordsPerGroup);
      store_shared(bits, load_shared(bits) & ~freed);
      const std::uint64_t zero = tables.clear != ClearPolicy::never ? freed : 0;
      Word& word = classes_[size_class].word;
      if (word.bits == &bits) {
        word.free |= freed;
        word.zero = (word.zero & ~freed) | zero;
        continue;
      }
      std::uint64_t& zeros = tables.zero_word(span, index);
      zeros = (zeros & ~freed) | zero;
      note_reuse(tables, span, size_class, index);
      count += bit_count(freed);
    }
    add_free(tables, span, size_class, count);
  }
}

void ThreadHeap::adopt(HeapTables& tables, std::size_t span) {
  const std::size_t size_class = tables.entry(span).size_class;
  const std::size_t slots = slots_per_span(size_class);
  std::size_t used = 0;
  for (std::size_t i = 0; i < words_per_span(size_class); ++i) {
    used += bit_count(load_shared(tables.word(span, i)));
  }
  claim(tables, span, size_class, false);
  tables.states[span] = {};
  tables.states[span].bucket = kUnlisted;
  Class& c = classes_[size_class];
  c.slots += slots;
  // An empty one is listed too: it becomes current, or is released, when its turn comes.
  c.free_slots += slots - used;
  tables.states[span].free_slots = static_cast<std::uint16_t>(slots - used);
  list(tables, span, size_class);
}

}  // namespace pagetide
