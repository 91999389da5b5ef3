#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "pagetide/allocator/clear/cpu_features.h"
#include "pagetide/allocator/clear/kernels.h"
#include "pagetide/base/error.h"
#include "pagetide/base/export.h"

// Clearing memory by the kernel that suits this CPU and the size of the block.
//
// The choice is made once, at the first call for more than kSmallClearBytes; from then on a call
// costs one load, one comparison and an indirect call. PAGETIDE_CLEAR_KERNEL=auto|stores|
// rep_stosq|rep_stosb|avx2|memset, read at that moment, replaces the choice; a value that is
// unknown or that this CPU cannot follow is ignored, and describe_clear_dispatch() says so.

namespace pagetide {

namespace detail {
PAGETIDE_API void clear_large(void* block, std::size_t bytes) noexcept;
}

// Writes zeros to [block, block + bytes), whatever the alignment; the stores are never dropped,
// even if the block is freed next. Thread-safe; allocates nothing and takes no lock, so it may
// be called before main, in a signal handler and in a malloc that getenv() calls into.
inline void clear_memory(void* block, std::size_t bytes) noexcept {
  if (bytes <= kSmallClearBytes) return clear_small(block, bytes);
  detail::clear_large(block, bytes);
}

// Uses one kernel for all sizes above kSmallClearBytes from now on; ClearKernel::automatic goes
// back to the choice by CPU and size. For tests, benchmarks and comparisons. Thread-safe: calls of
// clear_memory() that run at the same time use the old or the new kernel. Fails with unsupported
// where check_clear_kernel() does, and changes nothing then.
PAGETIDE_API Result<void> force_clear_kernel(ClearKernel kernel);

// Whether a CPU with these features can run the kernel; else unsupported, with the kernels that
// it can run.
PAGETIDE_API Result<void> check_clear_kernel(ClearKernel kernel, const CpuFeatures& features);

struct ClearDispatchRow {
  std::size_t first_bytes;
  std::size_t last_bytes;        // inclusive; SIZE_MAX: no limit
  std::string_view kernel_name;  // "inline" for what clear_memory() does without a kernel
};

struct ClearDispatch {
  ClearKernel kernel = ClearKernel::automatic;  // or the one that is forced
  std::vector<ClearDispatchRow> rows;           // ascending, without gaps, the first from 0
  std::string reason;                           // full sentences: why these kernels
};

// What clear_memory() does in this process.
PAGETIDE_API ClearDispatch describe_clear_dispatch();

// What it would do on a CPU with these features; `environment` is the value of
// PAGETIDE_CLEAR_KERNEL, nullptr if it is not set.
PAGETIDE_API ClearDispatch describe_clear_dispatch(const CpuFeatures& features,
                                                   const char* environment);

}  // namespace pagetide
