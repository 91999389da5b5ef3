#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"

namespace pagetide {

// An entry of /proc/PID/pagemap.
inline constexpr std::uint64_t kPagemapPresent = std::uint64_t{1} << 63;
inline constexpr std::uint64_t kPagemapSwapped = std::uint64_t{1} << 62;
inline constexpr std::uint64_t kPagemapSoftDirty = std::uint64_t{1} << 55;

// All that the soft-dirty back end asks of the kernel: the seam at which tests put one of their
// own, since few kernels have soft-dirty bits.
class SoftDirtyKernel {
 public:
  SoftDirtyKernel() = default;
  SoftDirtyKernel(const SoftDirtyKernel&) = delete;
  SoftDirtyKernel& operator=(const SoftDirtyKernel&) = delete;
  virtual ~SoftDirtyKernel() = default;

  // The pagemap entries of the range's pages, as many as `entries` has.
  virtual Result<void> read_entries(ByteRange range, std::span<std::uint64_t> entries) = 0;
  // Clears the bit of every page of the process.
  virtual Result<void> clear_all() = 0;
  // Stores to one byte of memory that belongs to the back end.
  virtual void store(std::uintptr_t address) = 0;
  // Whether the range is mapped, and by no mapping that is shared with others.
  virtual bool is_private(ByteRange range) = 0;

  // That of this process: /proc/self/pagemap and "4" to /proc/self/clear_refs. Fails where they
  // cannot be opened, which says nothing yet of whether they work.
  static Result<std::unique_ptr<SoftDirtyKernel>> open();
};

}  // namespace pagetide
