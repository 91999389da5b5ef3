#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/clear/kernel_functions.h"

#if defined(__x86_64__)

namespace pagetide::clear_kernels {

namespace {

constexpr std::size_t kStoreBytes = 32;
constexpr std::size_t kMostBytes = 8 * kStoreBytes;

// How far eight stores are apart that cover a block of kStoreBytes + `rest` bytes: the first seven
// at multiples of it, the last one at the end.
constexpr std::size_t stride_for(std::size_t rest) {
  return rest * 37 / 256;
}

constexpr bool strides_cover_all_blocks() {
  for (std::size_t rest = 0; rest <= kMostBytes - kStoreBytes; rest += 16) {
    const std::size_t stride = stride_for(rest);
    const bool without_gap = stride <= kStoreBytes && 6 * stride + kStoreBytes >= rest;
    if (!without_gap || 6 * stride > rest) return false;
  }
  return true;
}
static_assert(strides_cover_all_blocks());

}  // namespace

// Eight stores, however many of them are needed: a branch that is guessed wrong costs more than all
// of them. The stores of a small block overlap.
__attribute__((target("avx2"))) void avx2_slot(void* block, std::size_t bytes) noexcept {
  const auto store = [](std::byte* at) { store_zeros<kStoreBytes>(at); };
  auto* const first = static_cast<std::byte*>(block);
  if (bytes > kMostBytes) [[unlikely]]
    return clear_memory(block, bytes);
  if (bytes < kStoreBytes) [[unlikely]] {
    store_zeros<16>(first);
  } else {
    const std::size_t rest = bytes - kStoreBytes;
    const std::size_t stride = stride_for(rest);
    std::byte* const second = first + stride;
    std::byte* const third = second + stride;
    store(first);
    store(second);
    store(third);
    store(second + 2 * stride);
    store(first + 4 * stride);
    store(second + 4 * stride);
    store(third + 4 * stride);
    store(first + rest);
  }
  keep_stores(block);
}

}  // namespace pagetide::clear_kernels

#endif
