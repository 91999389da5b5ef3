#include "pagetide/allocator/clear/kernel_functions.h"

#if defined(__x86_64__)

namespace pagetide::clear_kernels {

namespace {

// Microcode starts slower on an unaligned destination; a small block has no room for the detour.
constexpr std::size_t kAlignFromBytes = 256;

std::byte* clear_up_to_line(std::byte* first) {
  for (std::size_t offset = 0; offset < kCacheLineBytes; offset += 16) {
    store_zeros<16>(first + offset);
  }
  return aligned_up(first, kCacheLineBytes);
}

}  // namespace

// The ABI guarantees that the direction flag is clear.
void rep_stosq(void* block, std::size_t bytes) noexcept {
  if (bytes < 16) return clear_small(block, bytes);
  auto* const first = static_cast<std::byte*>(block);
  std::byte* const end = first + bytes;
  store_zeros<16>(end - 16);  // the up to seven bytes behind the last whole word
  std::byte* from = nullptr;
  if (bytes < kAlignFromBytes) {
    store_zeros<16>(first);
    from = aligned_up(first, 16);
  } else {
    from = clear_up_to_line(first);
  }
  std::size_t words = bytes_between(from, end) / 8;
  asm volatile("rep stosq" : "+D"(from), "+c"(words) : "a"(std::uint64_t{0}) : "memory");
}

void rep_stosb(void* block, std::size_t bytes) noexcept {
  auto* const first = static_cast<std::byte*>(block);
  std::byte* from = bytes < kAlignFromBytes ? first : clear_up_to_line(first);
  std::size_t left = bytes_between(from, first + bytes);
  asm volatile("rep stosb" : "+D"(from), "+c"(left) : "a"(0) : "memory");
}

}  // namespace pagetide::clear_kernels

#endif
