#pragma once

#include <cstddef>
#include <cstdint>

#include "pagetide/allocator/heap_metadata.h"

namespace pagetide {

// Makes zero, in copies of a heap's data pages, all bytes that belong to nobody by its metadata:
// free slots, free spans, and what is left of a span behind its last slot. What of the metadata
// contradicts itself is taken for used.
//
// Allocates nothing. The metadata must not change meanwhile. Not thread-safe. Pages may come in any
// order; ascending costs least, because it remembers where in the span table it was.
class FreeMask {
 public:
  explicit FreeMask(const HeapMetadata& metadata) : metadata_(metadata) {}

  // `page` is numbered from the region's start and lies in the data. Whether a byte has changed.
  bool apply(std::size_t page, std::byte* copy);
  // Whether no byte of the page belongs to anybody.
  bool is_free(std::size_t page);

 private:
  enum class Use : std::uint8_t { free, small, taken };
  // Neighbouring spans of one use; small: one span.
  struct Run {
    std::size_t first = 0;
    std::size_t end = 0;
    Use use = Use::taken;
  };

  std::size_t offset_in_data(std::size_t page) const;
  const Run& run_of(std::size_t span);
  Run find_run(std::size_t span, std::size_t floor) const;
  bool clear_free_slots(std::size_t span, std::size_t offset, std::byte* copy) const;
  std::size_t find_slot(std::size_t span, std::size_t slot, std::size_t end, bool free) const;

  HeapMetadata metadata_;
  Run run_;
};

}  // namespace pagetide
