#include "examples/kvm_guest/guest_program.h"

#include <array>

namespace kvm_guest {

namespace {

static_assert(kWorkListAddress == 0x1000 && kGuestPageBytes == 1 << 12 && kDonePort == 0x10,
              "the program below has these numbers in it");

// 64-bit code. All addresses lie below 4 GiB, and an operation on a 32-bit register clears the
// upper half of the 64-bit one, so that no instruction needs a prefix.
constexpr std::array<std::uint8_t, 35> kProgram = {
    0xBE, 0x00, 0x10, 0x00, 0x00,  // start: mov  esi, 0x1000     the work list
    0x8B, 0x0E,                    //        mov  ecx, [rsi]      how many pages
    0x8B, 0x46, 0x04,              //        mov  eax, [rsi + 4]  the mark
    0x83, 0xC6, 0x08,              //        add  esi, 8          the first page number
    0x85, 0xC9,                    // next:  test ecx, ecx
    0x74, 0x0E,                    //        jz   done
    0x8B, 0x3E,                    //        mov  edi, [rsi]      a page number
    0xC1, 0xE7, 0x0C,              //        shl  edi, 12         its address
    0x89, 0x07,                    //        mov  [rdi], eax
    0x83, 0xC6, 0x04,              //        add  esi, 4
    0xFF, 0xC9,                    //        dec  ecx
    0xEB, 0xEE,                    //        jmp  next
    0xE6, 0x10,                    // done:  out  0x10, al
    0xEB, 0xDD,                    //        jmp  start
};

}  // namespace

void load_program(GuestMemory& memory) {
  memory.write(kProgramAddress, std::as_bytes(std::span(kProgram)));
}

void write_work_list(GuestMemory& memory, std::span<const std::uint32_t> pages,
                     std::uint32_t mark) {
  memory.store(kWorkListAddress, static_cast<std::uint32_t>(pages.size()));
  memory.store(kWorkListAddress + 4, mark);
  memory.write(kWorkListAddress + 8, std::as_bytes(pages));
}

std::uint32_t mark_of(const GuestMemory& memory, std::uint32_t page) {
  return memory.load<std::uint32_t>(page * std::uint64_t{kGuestPageBytes});
}

}  // namespace kvm_guest
