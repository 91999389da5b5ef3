#include "pagetide/allocator/heap_change_log.h"

#include <algorithm>
#include <utility>

namespace pagetide {

Result<HeapChangeLog> HeapChangeLog::create(std::size_t span_count) {
  HeapChangeLog log;
  auto noted = VirtualArray<std::uint16_t>::create(span_count);
  if (!noted) return propagate(noted);
  log.noted_ = std::move(*noted);
  const std::size_t words = divide_up(span_count, 64);
  struct Bits {
    VirtualArray<std::uint64_t>& array;
    std::size_t words;
  };
  for (const Bits& bits : {Bits{log.spans_, words}, Bits{log.blocks_, divide_up(words, 64)},
                           Bits{log.roots_, layout::kRootCapacity / 64}}) {
    auto made = VirtualArray<std::uint64_t>::create(bits.words);
    if (!made) return propagate(made);
    bits.array = std::move(*made);
  }
  return log;
}

void HeapChangeLog::clear() {
  for_each_bit(blocks_.span(), [this](std::size_t block) {
    for_each_bit(spans_.span().subspan(block, 1),
                 [&](std::size_t bit) { noted_[block * 64 + bit] = 0; });
    spans_[block] = 0;
  });
  std::ranges::fill(blocks_.span(), 0);
  std::ranges::fill(roots_.span(), 0);
}

}  // namespace pagetide
