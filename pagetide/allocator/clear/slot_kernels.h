#pragma once

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/clear/kernel_functions.h"

#if defined(__x86_64__)

namespace pagetide::clear_kernels {

inline constexpr std::size_t kSlotStoreBytes = 32;
inline constexpr std::size_t kMostStoredBytes = 8 * kSlotStoreBytes;

// How far eight stores are apart that cover a block of kSlotStoreBytes + `rest` bytes: the first
// seven at multiples of it, the last one at the end.
constexpr std::size_t stride_for(std::size_t rest) {
  return rest * 37 / 256;
}

constexpr bool strides_cover_all_blocks() {
  for (std::size_t rest = 0; rest <= kMostStoredBytes - kSlotStoreBytes; rest += 16) {
    const std::size_t stride = stride_for(rest);
    const bool without_gap = stride <= kSlotStoreBytes && 6 * stride + kSlotStoreBytes >= rest;
    if (!without_gap || 6 * stride > rest) return false;
  }
  return true;
}
static_assert(strides_cover_all_blocks());

// For a multiple of 16 bytes, not 0, in functions that may use AVX2. Eight stores, however many of
// them are needed: a branch that is guessed wrong costs more than all of them. The stores of a
// small block overlap.
[[gnu::always_inline]] inline void store_zeros_in_slot(void* block, std::size_t bytes) noexcept {
  constexpr std::size_t kStep = kSlotStoreBytes;
  auto* const first = static_cast<std::byte*>(block);
  if (bytes > kMostStoredBytes) [[unlikely]]
    return clear_memory(block, bytes);
  if (bytes < kStep) [[unlikely]] {
    store_zeros<16>(first);
  } else {
    const std::size_t rest = bytes - kStep;
    const std::size_t stride = stride_for(rest);
    std::byte* const second = first + stride;
    std::byte* const third = second + stride;
    store_zeros<kStep>(first);
    store_zeros<kStep>(second);
    store_zeros<kStep>(third);
    store_zeros<kStep>(second + 2 * stride);
    store_zeros<kStep>(first + 4 * stride);
    store_zeros<kStep>(second + 4 * stride);
    store_zeros<kStep>(third + 4 * stride);
    store_zeros<kStep>(first + rest);
  }
  keep_stores(block);
}

}  // namespace pagetide::clear_kernels

#endif
