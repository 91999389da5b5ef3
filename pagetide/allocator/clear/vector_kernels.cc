#include "pagetide/allocator/clear/kernel_functions.h"

#if defined(__x86_64__)

namespace pagetide::clear_kernels {

namespace {

// One body for registers of all sizes. It has to be inlined: which instructions a store becomes is
// decided by the function it ends up in.
template <std::size_t vector_bytes>
[[gnu::always_inline]] inline void clear_with_vectors(void* block, std::size_t bytes) {
  constexpr std::size_t kStep = 4 * vector_bytes;
  const auto store = [](std::byte* at) { store_zeros<vector_bytes>(at); };
  const auto store_4 = [&store](std::byte* at) {
    store(at);
    store(at + vector_bytes);
    store(at + 2 * vector_bytes);
    store(at + 3 * vector_bytes);
  };
  if (bytes < vector_bytes) return clear_small(block, bytes);
  auto* const first = static_cast<std::byte*>(block);
  std::byte* const end = first + bytes;
  store(first);
  if (bytes > kStep) {
    // The tail covers the last four vectors whatever the alignment, so the loop may stop short of
    // them; its stores never straddle a cache line.
    std::byte* const tail = end - kStep;
    for (std::byte* at = aligned_up(first + 1, vector_bytes); at < tail; at += kStep) {
      store_4(at);
      keep_stores(block);  // or the loop becomes a call of memset
    }
    store_4(tail);
  } else {
    if (bytes > 2 * vector_bytes) {
      store(first + vector_bytes);
      store(end - 2 * vector_bytes);
    }
    store(end - vector_bytes);
  }
  keep_stores(block);
}

}  // namespace

void sse2(void* block, std::size_t bytes) noexcept {
  clear_with_vectors<16>(block, bytes);
}

// The compilers end functions with these targets by vzeroupper where they used wide registers.
__attribute__((target("avx2"))) void avx2(void* block, std::size_t bytes) noexcept {
  clear_with_vectors<32>(block, bytes);
}

__attribute__((target("avx512f,avx512bw"))) void avx512(void* block, std::size_t bytes) noexcept {
  clear_with_vectors<64>(block, bytes);
}

}  // namespace pagetide::clear_kernels

#endif
