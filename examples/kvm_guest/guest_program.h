#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "examples/kvm_guest/guest_memory.h"

// What the guest runs: it reads a work list, stores a mark into each page that the list names,
// tells by a write to a port that it is done, and when it is run again reads the list anew.

namespace kvm_guest {

// Guest-physical addresses. Page 0 stays unused.
constexpr std::uint64_t kWorkListAddress = 1 * kGuestPageBytes;
constexpr std::uint64_t kProgramAddress = 2 * kGuestPageBytes;
constexpr std::uint64_t kPageTableAddress = 3 * kGuestPageBytes;

constexpr std::uint16_t kDonePort = 0x10;

// The work list is one page: how many pages, the mark, the page numbers; all 32 bits wide.
constexpr std::size_t kMaxWork = kGuestPageBytes / sizeof(std::uint32_t) - 2;

void load_program(GuestMemory& memory);

// At most kMaxWork pages.
void write_work_list(GuestMemory& memory, std::span<const std::uint32_t> pages, std::uint32_t mark);

// What the guest stored last into a page.
std::uint32_t mark_of(const GuestMemory& memory, std::uint32_t page);

}  // namespace kvm_guest
