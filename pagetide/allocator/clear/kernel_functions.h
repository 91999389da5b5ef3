#pragma once

#include <cstddef>
#include <cstdint>

#include "pagetide/allocator/clear/kernels.h"

// The kernels themselves, for the tables of this folder.

namespace pagetide::clear_kernels {

void original(void* block, std::size_t bytes) noexcept;
void memset(void* block, std::size_t bytes) noexcept;

#if defined(__x86_64__)

// string_kernels.cc
void rep_stosq(void* block, std::size_t bytes) noexcept;
void rep_stosb(void* block, std::size_t bytes) noexcept;

// vector_kernels.cc
void sse2(void* block, std::size_t bytes) noexcept;
void avx2(void* block, std::size_t bytes) noexcept;
void avx512(void* block, std::size_t bytes) noexcept;

// slot_kernels.cc. Multiples of 16 bytes, not 0.
void avx2_slot(void* block, std::size_t bytes) noexcept;

// uncached_kernels.cc
void nontemporal(void* block, std::size_t bytes) noexcept;
void clzero(void* block, std::size_t bytes) noexcept;

#endif

// The first multiple of `alignment`, a power of two, from `address` on.
inline std::byte* aligned_up(std::byte* address, std::size_t alignment) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return address + ((alignment - value) & (alignment - 1));
}

inline std::size_t bytes_between(const std::byte* from, const std::byte* to) {
  return static_cast<std::size_t>(to - from);
}

// A register of so many bytes. Typedefs of a class: on a dependent type in a function g++ drops the
// attributes.
template <std::size_t size_bytes>
struct VectorOf {
  typedef std::uint64_t Type __attribute__((vector_size(size_bytes)));
  typedef Type Unaligned __attribute__((aligned(1), may_alias));
  static_assert(sizeof(Unaligned) == size_bytes && alignof(Unaligned) == 1);
};

// Stores `size_bytes` zeros at any address, in one instruction where the function it is inlined
// into may use registers of that size.
template <std::size_t size_bytes>
[[gnu::always_inline]] inline void store_zeros(std::byte* unaligned) {
  using Vector = VectorOf<size_bytes>;
  *reinterpret_cast<typename Vector::Unaligned*>(unaligned) = typename Vector::Type{};
}

inline constexpr std::size_t kCacheLineBytes = 64;

}  // namespace pagetide::clear_kernels
