#pragma once

#include <array>
#include <cstddef>
#include <limits>
#include <string_view>

#include "pagetide/allocator/clear/cpu_features.h"
#include "pagetide/allocator/clear/kernels.h"

// The decision table: which kernel clears blocks of which size on which CPU. Pure functions.

namespace pagetide {

struct ClearBand {
  std::size_t last_bytes;  // inclusive
  ClearKernel kernel;
};

inline constexpr std::size_t kNoClearLimit = std::numeric_limits<std::size_t>::max();

// For blocks above kSmallClearBytes. Bands ascend, and the last one in use is without limit.
using ClearBands = std::array<ClearBand, 3>;

struct ClearPlan {
  ClearBands cached;        // blocks that are likely in a cache
  ClearBands uncached;      // blocks that are not, and that nobody will want there soon
  std::string_view reason;  // half a sentence
};

// One kernel for everything.
constexpr ClearPlan uniform_clear_plan(ClearKernel kernel, std::string_view reason) {
  const ClearBand band = {kNoClearLimit, kernel};
  return {{band, band, band}, {band, band, band}, reason};
}

// Executes no instruction that the CPU may lack, allocates nothing.
ClearPlan clear_plan_for(const CpuFeatures& cpu);

}  // namespace pagetide
