#pragma once

#include <cstddef>
#include <cstdint>

#include "examples/kvm_guest/guest_memory.h"

namespace kvm_guest {

// What one page directory maps, and so the most RAM that a guest of this program can have.
constexpr std::size_t kMaxMemoryBytes = std::size_t{1} << 30;

// Pages that the tables for a guest of so many pages take.
constexpr std::size_t page_table_pages(std::size_t guest_pages) {
  constexpr std::size_t kUpperTables = 3;  // PML4, page-directory pointers, page directory
  return kUpperTables + (guest_pages + 511) / 512;
}

// Writes four-level page tables in which virtual addresses are guest-physical ones, for all of the
// RAM, writable from every ring, from `root` on. `root` is what CR3 is to hold. Accessed and dirty
// bits are clear, so that the (virtual) processor writes to the tables when it uses them: writes
// that a tracker has to see like any other.
void write_identity_map(GuestMemory& memory, std::uint64_t root);

}  // namespace kvm_guest
