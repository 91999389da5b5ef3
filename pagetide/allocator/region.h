#pragma once

#include <cstdint>
#include <memory>

#include "pagetide/base/error.h"
#include "pagetide/base/export.h"
#include "pagetide/base/page_range.h"
#include "pagetide/tracker/prefill.h"
#include "pagetide/tracker/tracker.h"

namespace pagetide {

struct RegionOptions {
  std::size_t reserve_bytes = 0;
  std::uintptr_t base = 0;  // 0: chosen by the rule below
  Prefill prefill = Prefill::zero_page;
  BackendKind backend = BackendKind::automatic;
  HotPageOptions hot_pages = {};
  // What lies before is memory like any other: neither tracked nor prefilled. Whole pages, less
  // than the reservation.
  std::size_t tracked_from = 0;
};

// One reservation of address space at a fixed base, committed piece by piece and tracked as a
// whole, or from some page on. Memory inside is never unmapped or mapped over, so that the
// registration holds.
//
// The base: what the caller names, else the first free place from 0x5500_0000_0000 upward for
// reservations that end below 0x5555_0000_0000 (where the kernel puts position-independent
// programs), else from 0x2000_0000_0000. Both areas are free under ASan too, the first also under
// TSan, which keeps the second to itself. The same program creating the same arenas in the same
// order gets the same bases.
//
// Thread-safe, except moving. Not usable in a forked child beyond plain memory access.
class PAGETIDE_API Region {
 public:
  // Errors: address_taken, invalid_argument, unsupported (back end), out_of_memory.
  static Result<Region> reserve(const RegionOptions& options);

  Region(Region&&) noexcept;
  Region& operator=(Region&&) noexcept;
  ~Region();  // unmaps everything

  ByteRange range() const;
  std::byte* base() const { return range().data(); }
  // What watch() stands for: its pages are numbered from here.
  ByteRange tracked_range() const;
  Prefill prefill_policy() const;
  Tracker& tracker() const;
  WatchId watch() const;

  // Makes whole pages readable and writable. They are zero, and count as not written; those that
  // are committed already stay as they are.
  Result<void> commit(ByteRange range);
  // Prepares pages for tracking by the region's policy; pages in use are left alone.
  Result<void> prefill(ByteRange range);
  // Gives pages back to the system; they read as zero from now on. Logged with the tracker.
  Result<void> purge(ByteRange range);

 private:
  struct Impl;
  explicit Region(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pagetide
