#include "pagetide/allocator/clear/kernels.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pagetide {

namespace {

std::byte* aligned_up(std::byte* address, std::size_t alignment) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return address + ((alignment - value) & (alignment - 1));
}

std::size_t bytes_between(const std::byte* from, const std::byte* to) {
  return static_cast<std::size_t>(to - from);
}

void store_8(std::byte* unaligned) {
  __builtin_memset(unaligned, 0, 8);
}

#if defined(__x86_64__)

void store_16(std::byte* unaligned) {
  __builtin_memset(unaligned, 0, 16);
}

// Microcode starts slower on an unaligned destination; a small block has no room for the detour.
constexpr std::size_t kAlignBytes = 64;
constexpr std::size_t kAlignFromBytes = 256;

std::byte* clear_up_to_alignment(std::byte* first) {
  for (std::size_t offset = 0; offset < kAlignBytes; offset += 16) store_16(first + offset);
  return aligned_up(first, kAlignBytes);
}

// The ABI guarantees that the direction flag is clear.
void rep_stosq(std::byte* destination, std::size_t words) {
  asm volatile("rep stosq" : "+D"(destination), "+c"(words) : "a"(std::uint64_t{0}) : "memory");
}

void rep_stosb(std::byte* destination, std::size_t bytes) {
  asm volatile("rep stosb" : "+D"(destination), "+c"(bytes) : "a"(0) : "memory");
}

constexpr std::size_t kVectorBytes = 32;

__attribute__((target("avx2"))) inline void store_vector(std::byte* unaligned) {
  _mm256_storeu_si256(static_cast<__m256i*>(static_cast<void*>(unaligned)), _mm256_setzero_si256());
}

__attribute__((target("avx2"))) inline void store_4_vectors(std::byte* unaligned) {
  store_vector(unaligned);
  store_vector(unaligned + kVectorBytes);
  store_vector(unaligned + 2 * kVectorBytes);
  store_vector(unaligned + 3 * kVectorBytes);
}

#endif

}  // namespace

// volatile keeps each store as written: without it the compiler recognises memset, or merges
// the stores into vector ones.
void clear_with_stores(void* block, std::size_t bytes) noexcept {
  using Word = std::uint64_t __attribute__((may_alias));
  constexpr std::size_t kUnroll = 8;
  if (bytes < 2 * sizeof(Word)) return clear_small(block, bytes);
  auto* const first = static_cast<std::byte*>(block);
  std::byte* const end = first + bytes;
  store_8(first);
  store_8(end - sizeof(Word));
  std::byte* const aligned = aligned_up(first + 1, sizeof(Word));
  auto* word = static_cast<volatile Word*>(static_cast<void*>(aligned));
  std::size_t words = bytes_between(aligned, end) / sizeof(Word);
  for (; words >= kUnroll; words -= kUnroll, word += kUnroll) {
    word[0] = 0;
    word[1] = 0;
    word[2] = 0;
    word[3] = 0;
    word[4] = 0;
    word[5] = 0;
    word[6] = 0;
    word[7] = 0;
  }
  for (; words > 0; --words, ++word) *word = 0;
  keep_stores(block);
}

void clear_with_memset(void* block, std::size_t bytes) noexcept {
  if (bytes == 0) return;  // block may be nullptr, which memset does not allow
  std::memset(block, 0, bytes);
  keep_stores(block);
}

#if defined(__x86_64__)

void clear_with_rep_stosq(void* block, std::size_t bytes) noexcept {
  if (bytes < 16) return clear_small(block, bytes);
  auto* const first = static_cast<std::byte*>(block);
  std::byte* const end = first + bytes;
  store_16(end - 16);  // the up to seven bytes behind the last whole word
  std::byte* from = nullptr;
  if (bytes < kAlignFromBytes) {
    store_16(first);
    from = aligned_up(first, 16);
  } else {
    from = clear_up_to_alignment(first);
  }
  rep_stosq(from, bytes_between(from, end) / 8);
}

void clear_with_rep_stosb(void* block, std::size_t bytes) noexcept {
  auto* const first = static_cast<std::byte*>(block);
  std::byte* const from = bytes < kAlignFromBytes ? first : clear_up_to_alignment(first);
  rep_stosb(from, bytes_between(from, first + bytes));
}

__attribute__((target("avx2"))) void clear_with_avx2(void* block, std::size_t bytes) noexcept {
  if (bytes < kVectorBytes) return clear_small(block, bytes);
  auto* const first = static_cast<std::byte*>(block);
  std::byte* const end = first + bytes;
  store_vector(first);
  if (bytes > 4 * kVectorBytes) {
    // The tail covers the last four vectors whatever the alignment, so the loop may stop short
    // of them; its stores never straddle a cache line.
    std::byte* const tail = end - 4 * kVectorBytes;
    for (std::byte* at = aligned_up(first + 1, kVectorBytes); at < tail; at += 4 * kVectorBytes) {
      store_4_vectors(at);
      keep_stores(block);  // or the loop becomes a call of memset
    }
    store_4_vectors(tail);
  } else {
    if (bytes > 2 * kVectorBytes) {
      store_vector(first + kVectorBytes);
      store_vector(end - 2 * kVectorBytes);
    }
    store_vector(end - kVectorBytes);
  }
  keep_stores(block);
  _mm256_zeroupper();
}

#endif

std::string_view clear_kernel_name(ClearKernel kernel) {
  switch (kernel) {
    case ClearKernel::automatic:
      return "auto";
    case ClearKernel::stores:
      return "stores";
    case ClearKernel::rep_stosq:
      return "rep_stosq";
    case ClearKernel::rep_stosb:
      return "rep_stosb";
    case ClearKernel::avx2:
      return "avx2";
    case ClearKernel::memset:
      return "memset";
  }
  return "unknown";
}

ClearKernelFunction clear_kernel_function(ClearKernel kernel) {
  switch (kernel) {
    case ClearKernel::automatic:
      return nullptr;
    case ClearKernel::stores:
      return clear_with_stores;
    case ClearKernel::memset:
      return clear_with_memset;
#if defined(__x86_64__)
    case ClearKernel::rep_stosq:
      return clear_with_rep_stosq;
    case ClearKernel::rep_stosb:
      return clear_with_rep_stosb;
    case ClearKernel::avx2:
      return clear_with_avx2;
#else
    case ClearKernel::rep_stosq:
    case ClearKernel::rep_stosb:
    case ClearKernel::avx2:
      return nullptr;
#endif
  }
  return nullptr;
}

}  // namespace pagetide
