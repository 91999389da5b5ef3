#include "pagetide/allocator/clear/kernels.h"

#include <array>
#include <cstring>

#include "pagetide/allocator/clear/kernel_functions.h"

namespace pagetide {

namespace {

struct Kernel {
  ClearKernel kernel;
  std::string_view name;
  ClearKernelFunction function;
};

#if defined(__x86_64__)
#define PAGETIDE_X86_KERNEL(name) clear_kernels::name
#else
#define PAGETIDE_X86_KERNEL(name) nullptr
#endif

constexpr std::array kKernels = {
    Kernel{ClearKernel::automatic, "auto", nullptr},
    Kernel{ClearKernel::original, "original", clear_kernels::original},
    Kernel{ClearKernel::rep_stosq, "rep_stosq", PAGETIDE_X86_KERNEL(rep_stosq)},
    Kernel{ClearKernel::rep_stosb, "rep_stosb", PAGETIDE_X86_KERNEL(rep_stosb)},
    Kernel{ClearKernel::sse2, "sse2", PAGETIDE_X86_KERNEL(sse2)},
    Kernel{ClearKernel::avx2, "avx2", PAGETIDE_X86_KERNEL(avx2)},
    Kernel{ClearKernel::avx512, "avx512", PAGETIDE_X86_KERNEL(avx512)},
    Kernel{ClearKernel::nontemporal, "nontemporal", PAGETIDE_X86_KERNEL(nontemporal)},
    Kernel{ClearKernel::clzero, "clzero", PAGETIDE_X86_KERNEL(clzero)},
    Kernel{ClearKernel::memset, "memset", clear_kernels::memset},
};

#undef PAGETIDE_X86_KERNEL

constexpr std::array kAllKernels = [] {
  std::array<ClearKernel, kKernels.size() - 1> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = kKernels[i + 1].kernel;
  return all;
}();

constexpr bool rows_stand_at_their_value() {
  for (std::size_t i = 0; i < kKernels.size(); ++i) {
    if (static_cast<std::size_t>(kKernels[i].kernel) != i) return false;
  }
  return true;
}
static_assert(rows_stand_at_their_value());

}  // namespace

namespace clear_kernels {

// volatile keeps each store as written: without it the compiler recognises memset, or merges
// the stores into vector ones.
void original(void* block, std::size_t bytes) noexcept {
  using Word = std::uint64_t __attribute__((may_alias));
  constexpr std::size_t kUnroll = 8;
  if (bytes < 2 * sizeof(Word)) return clear_small(block, bytes);
  auto* const first = static_cast<std::byte*>(block);
  std::byte* const end = first + bytes;
  store_zeros<sizeof(Word)>(first);
  store_zeros<sizeof(Word)>(end - sizeof(Word));
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

void memset(void* block, std::size_t bytes) noexcept {
  if (bytes == 0) return;  // block may be nullptr, which memset does not allow
  std::memset(block, 0, bytes);
  keep_stores(block);
}

}  // namespace clear_kernels

std::span<const ClearKernel> all_clear_kernels() {
  return kAllKernels;
}

std::string_view clear_kernel_name(ClearKernel kernel) {
  const auto row = static_cast<std::size_t>(kernel);
  return row < kKernels.size() ? kKernels[row].name : "unknown";
}

ClearKernelFunction clear_kernel_function(ClearKernel kernel) {
  const auto row = static_cast<std::size_t>(kernel);
  return row < kKernels.size() ? kKernels[row].function : nullptr;
}

}  // namespace pagetide
