#include "pagetide/allocator/free_mask.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "pagetide/base/bytes.h"
#include "pagetide/base/hash.h"
#include "pagetide/base/page_range.h"

namespace pagetide {

using layout::kSlotBytes;
using layout::kSpanBytes;
using layout::SpanEntry;
using layout::SpanKind;

namespace {

bool is_zero(const SpanEntry& entry) {
  return std::bit_cast<std::uint64_t>(entry) == 0;
}

// Whole words, as all slots are. Long runs of zeros stay unwritten.
bool clear(std::byte* bytes, std::size_t size) {
  constexpr std::size_t kShort = 64;
  if (size >= kShort) {
    if (is_all_zero(bytes, size)) return false;
    std::memset(bytes, 0, size);
    return true;
  }
  std::uint64_t any = 0;
  for (std::size_t at = 0; at < size; at += sizeof(any)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, sizeof(word));
    any |= word;
    std::memset(bytes + at, 0, sizeof(word));
  }
  return any != 0;
}

}  // namespace

std::size_t FreeMask::offset_in_data(std::size_t page) const {
  return page * page_size() - metadata_.geometry().data_offset;
}

bool FreeMask::apply(std::size_t page, std::byte* copy) {
  const std::size_t at = offset_in_data(page);
  const std::size_t span = at / kSpanBytes;
  switch (run_of(span).use) {
    case Use::taken:
      return false;
    case Use::free:
      return clear(copy, page_size());
    case Use::small:
      break;
  }
  return clear_free_slots(span, at % kSpanBytes, copy);
}

bool FreeMask::is_free(std::size_t page) {
  const std::size_t at = offset_in_data(page);
  const std::size_t span = at / kSpanBytes;
  const Use use = run_of(span).use;
  if (use != Use::small) return use == Use::free;
  const std::size_t size_class = metadata_.entry(span).size_class;
  const std::size_t offset = at % kSpanBytes;
  const std::size_t end = std::min(layout::slots_per_span(size_class),
                                   divide_up(offset + page_size(), kSlotBytes[size_class]));
  return find_slot(span, offset / kSlotBytes[size_class], end, false) == end;
}

const FreeMask::Run& FreeMask::run_of(std::size_t span) {
  if (span >= run_.first && span < run_.end) return run_;
  // A run ends where another entry counts, so nothing before it matters for what comes after it.
  run_ = find_run(span, run_.end <= span ? run_.end : 0);
  return run_;
}

// What the span belongs to is told by the last entry at or before it that is not zero.
FreeMask::Run FreeMask::find_run(std::size_t span, std::size_t floor) const {
  const std::size_t used = metadata_.spans_used();
  if (span >= used) return {used, metadata_.geometry().span_count, Use::free};
  std::size_t head = span;
  while (head > floor && is_zero(metadata_.entry(head))) --head;
  const SpanEntry& entry = metadata_.entry(head);
  if (is_zero(entry)) return {head, span + 1, Use::free};
  if (entry.kind == SpanKind::small && entry.size_class < layout::kSizeClasses &&
      entry.run_spans == 1) {
    if (head == span) return {span, span + 1, Use::small};
    return {head + 1, span + 1, Use::free};
  }
  if (entry.kind == SpanKind::large && entry.run_spans >= 1 && entry.run_spans <= used - head) {
    const std::size_t end = head + entry.run_spans;
    if (span < end) return {head, end, Use::taken};
    return {end, span + 1, Use::free};
  }
  std::size_t end = span + 1;
  while (end < used && is_zero(metadata_.entry(end))) ++end;
  return {head, end, Use::taken};
}

// The first slot from `slot` on that is free or is not; `end`: none before it.
std::size_t FreeMask::find_slot(std::size_t span, std::size_t slot, std::size_t end,
                                bool free) const {
  while (slot < end) {
    const std::uint64_t word = metadata_.word(span, slot / 64);
    const std::uint64_t wanted = (free ? ~word : word) >> (slot % 64);
    if (wanted != 0) {
      return std::min(end, slot + static_cast<std::size_t>(std::countr_zero(wanted)));
    }
    slot = round_down(slot, 64) + 64;
  }
  return end;
}

// `copy` is the page that begins `offset` bytes into the span.
bool FreeMask::clear_free_slots(std::size_t span, std::size_t offset, std::byte* copy) const {
  const std::size_t size_class = metadata_.entry(span).size_class;
  const std::size_t slot_bytes = kSlotBytes[size_class];
  const std::size_t slots = layout::slots_per_span(size_class);
  const std::size_t page_end = offset + page_size();
  const auto clear_part = [&](std::size_t begin, std::size_t end) {
    begin = std::max(begin, offset);
    end = std::min(end, page_end);
    return begin < end && clear(copy + (begin - offset), end - begin);
  };
  const std::size_t last = std::min(slots, divide_up(page_end, slot_bytes));
  bool changed = false;
  for (std::size_t slot = find_slot(span, offset / slot_bytes, last, true); slot < last;) {
    const std::size_t end = find_slot(span, slot, last, false);
    changed = clear_part(slot * slot_bytes, end * slot_bytes) || changed;
    slot = find_slot(span, end, last, true);
  }
  return clear_part(slots * slot_bytes, kSpanBytes) || changed;
}

}  // namespace pagetide
