#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "pagetide/base/export.h"

// Ways to clear memory. Each kernel takes any size and any alignment, 0 bytes included, writes
// nothing outside the block, and its stores are never dropped as dead or turned into a call of
// memset (which a malloc that clears must not depend on, and which would make a comparison with
// memset one of memset with itself).
//
// Thread-safe: a kernel has no state. All may be used in signal handlers, before main and while
// other threads are stopped. A fault on a write-protected page restarts cleanly in all of them.

namespace pagetide {

enum class ClearKernel : std::uint8_t {
  automatic,    // by CPU and size
  original,     // a loop of 8-byte stores, as Linux had for CPUs with nothing better
  rep_stosq,    // x86-64
  rep_stosb,    // x86-64
  sse2,         // x86-64
  avx2,         // x86-64 with AVX2
  avx512,       // x86-64 with AVX-512F and BW
  nontemporal,  // x86-64: stores that pass the caches by
  clzero,       // AMD and Hygon: a line an instruction, passing the caches by
  memset,       // of the C library
};

// All but automatic, in the order above.
PAGETIDE_API std::span<const ClearKernel> all_clear_kernels();

// "auto", "original", "rep_stosq", ...: as above.
PAGETIDE_API std::string_view clear_kernel_name(ClearKernel kernel);

using ClearKernelFunction = void (*)(void* block, std::size_t bytes) noexcept;

// nullptr for automatic and for kernels this build does not have. A function that is not nullptr
// may still need a CPU feature: check_clear_kernel() in clear.h. Who only wants to clear memory
// calls clear_memory().
PAGETIDE_API ClearKernelFunction clear_kernel_function(ClearKernel kernel);

// Tells the compiler that the block is read by someone it does not see, so that stores to it
// happen even if the block is about to be freed.
inline void keep_stores(void* block) noexcept {
  asm volatile("" : : "r"(block) : "memory");
}

inline constexpr std::size_t kSmallClearBytes = 128;

// Up to kSmallClearBytes, with a few branches and overlapping stores; for inlining.
inline void clear_small(void* block, std::size_t bytes) noexcept {
  auto* const first = static_cast<std::byte*>(block);
  std::byte* const end = first + bytes;
  // With these constant sizes __builtin_memset is one or two store instructions.
  if (bytes >= 16) {
    __builtin_memset(first, 0, 16);
    if (bytes > 32) {
      __builtin_memset(first + 16, 0, 16);
      if (bytes > 64) {
        __builtin_memset(first + 32, 0, 32);
        __builtin_memset(end - 64, 0, 32);
      }
      __builtin_memset(end - 32, 0, 16);
    }
    __builtin_memset(end - 16, 0, 16);
  } else if (bytes >= 8) {
    __builtin_memset(first, 0, 8);
    __builtin_memset(end - 8, 0, 8);
  } else if (bytes >= 4) {
    __builtin_memset(first, 0, 4);
    __builtin_memset(end - 4, 0, 4);
  } else if (bytes != 0) {
    first[0] = std::byte{0};
    first[bytes / 2] = std::byte{0};
    end[-1] = std::byte{0};
  }
  keep_stores(block);
}

}  // namespace pagetide
