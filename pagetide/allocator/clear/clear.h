#pragma once

#include <array>
#include <atomic>
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
// costs a comparison and an indirect call. PAGETIDE_CLEAR_KERNEL=auto|NAME, read at that moment,
// replaces the choice by one kernel for all these sizes; a value that is unknown or that this CPU
// cannot follow is ignored, a line on standard error says why, and so does
// describe_clear_dispatch(). Programs that run with more privilege than their user ignore it.

namespace pagetide {

// Where a block is when it is cleared. What is fastest differs by far: stores that pass the caches
// by are twice as fast on memory that is in none, and seven times slower on memory that is.
enum class InCache : std::uint8_t {
  likely,    // it was just used, or will be at once
  unlikely,  // nobody has touched it for long, and nobody will soon
};

namespace detail {

// The kernels in use. A block goes to the first one whose limit it does not exceed, the last one
// has none. Any mixture of old and new values is right too, since every kernel takes any size: so
// the values are changed one by one while other threads clear.
struct ClearTable {
  std::array<std::atomic<std::size_t>, 2> last_bytes;
  std::array<std::atomic<ClearKernelFunction>, 3> functions;
};
extern PAGETIDE_API ClearTable cached_clear_table;
extern PAGETIDE_API ClearTable uncached_clear_table;

// What clear_slot() does, and whether that is AVX2's: who can inline it saves the call.
extern PAGETIDE_API std::atomic<ClearKernelFunction> clear_slot_function;
extern PAGETIDE_API std::atomic<bool> clear_slots_by_avx2;

// For what exceeds the first limit.
PAGETIDE_API void clear_large(const ClearTable& table, void* block, std::size_t bytes) noexcept;

inline void clear_by_table(const ClearTable& table, void* block, std::size_t bytes) noexcept {
  if (bytes > table.last_bytes[0].load(std::memory_order_relaxed)) [[unlikely]] {
    return clear_large(table, block, bytes);
  }
  table.functions[0].load(std::memory_order_relaxed)(block, bytes);
}

}  // namespace detail

// Writes zeros to [block, block + bytes), whatever the alignment; the stores are never dropped,
// even if the block is freed next. Thread-safe; allocates nothing, takes no lock and keeps errno,
// so it may be called before main, in a signal handler and in a malloc that getenv() calls into.
inline void clear_memory(void* block, std::size_t bytes) noexcept {
  if (bytes <= kSmallClearBytes) return clear_small(block, bytes);
  detail::clear_by_table(detail::cached_clear_table, block, bytes);
}

inline void clear_memory(void* block, std::size_t bytes, InCache in_cache) noexcept {
  if (in_cache == InCache::likely || bytes <= kSmallClearBytes) return clear_memory(block, bytes);
  detail::clear_by_table(detail::uncached_clear_table, block, bytes);
}

// The same for a multiple of 16 bytes, not 0, that changes from call to call as the slots of a heap
// do. In clear_memory() the branches that tell small sizes apart are guessed wrong then; here none
// depends on the size up to 256 bytes if the CPU has AVX2 (and no other kernel is forced). Where
// all calls are of one small size, clear_memory() is the faster one.
inline void clear_slot(void* block, std::size_t bytes) noexcept {
  detail::clear_slot_function.load(std::memory_order_relaxed)(block, bytes);
}

// Uses one kernel for all sizes above kSmallClearBytes from now on; ClearKernel::automatic goes
// back to the choice by CPU and size. For tests, benchmarks and comparisons. Thread-safe: calls of
// clear_memory() that run at the same time use the old or the new kernel. Fails with unsupported
// where check_clear_kernel() does, and changes nothing then.
PAGETIDE_API Result<void> force_clear_kernel(ClearKernel kernel);

// Whether a CPU with these features can run the kernel; else unsupported, with the feature it
// lacks and the kernels that it can run.
PAGETIDE_API Result<void> check_clear_kernel(ClearKernel kernel, const CpuFeatures& features);

struct ClearDispatchRow {
  std::size_t first_bytes;
  std::size_t last_bytes;        // inclusive; SIZE_MAX: no limit
  std::string_view kernel_name;  // "inline" for what clear_memory() does without a kernel
};

struct ClearDispatch {
  ClearKernel kernel = ClearKernel::automatic;  // or the one that is forced
  // Ascending, without gaps, the first from 0.
  std::vector<ClearDispatchRow> cached_rows;    // InCache::likely
  std::vector<ClearDispatchRow> uncached_rows;  // InCache::unlikely
  std::string reason;                           // full sentences: why these kernels
};

// What clear_memory() does in this process.
PAGETIDE_API ClearDispatch describe_clear_dispatch();

// What it would do on a CPU with these features; `environment` is the value of
// PAGETIDE_CLEAR_KERNEL, nullptr if it is not set.
PAGETIDE_API ClearDispatch describe_clear_dispatch(const CpuFeatures& features,
                                                   const char* environment);

}  // namespace pagetide
