#include "pagetide/allocator/clear/kernel_functions.h"

#if defined(__x86_64__)

#include <emmintrin.h>

namespace pagetide::clear_kernels {

namespace {

// Clears whole lines by `clear_line` and what is left at both ends by ordinary stores. What passes
// the caches by is weakly ordered: the fence makes it as visible as ordinary stores are before
// anything that follows, such as handing the block to another thread.
template <typename ClearLine>
[[gnu::always_inline]] inline void clear_by_lines(void* block, std::size_t bytes,
                                                  ClearLine clear_line) {
  if (bytes < 2 * kCacheLineBytes) return sse2(block, bytes);
  auto* const first = static_cast<std::byte*>(block);
  std::byte* const end = first + bytes;
  std::byte* const lines_begin = aligned_up(first, kCacheLineBytes);
  std::byte* const lines_end = aligned_up(end - kCacheLineBytes + 1, kCacheLineBytes);
  clear_small(first, bytes_between(first, lines_begin));
  for (std::byte* line = lines_begin; line < lines_end; line += kCacheLineBytes) clear_line(line);
  clear_small(lines_end, bytes_between(lines_end, end));
  _mm_sfence();
}

}  // namespace

void nontemporal(void* block, std::size_t bytes) noexcept {
  clear_by_lines(block, bytes, [](std::byte* line) {
    auto* const vectors = reinterpret_cast<__m128i*>(line);
    _mm_stream_si128(vectors, _mm_setzero_si128());
    _mm_stream_si128(vectors + 1, _mm_setzero_si128());
    _mm_stream_si128(vectors + 2, _mm_setzero_si128());
    _mm_stream_si128(vectors + 3, _mm_setzero_si128());
  });
}

void clzero(void* block, std::size_t bytes) noexcept {
  clear_by_lines(block, bytes, [](std::byte* line) {
    asm volatile("clzero" : : "a"(line) : "memory");
  });
}

}  // namespace pagetide::clear_kernels

#endif
