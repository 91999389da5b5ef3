#pragma once

#include <cstdint>

#include "pagetide/allocator/region.h"
#include "pagetide/base/page_range.h"
#include "pagetide/tracker/dirty_backend.h"

namespace pagetide {

enum class ZeroedBy : std::uint8_t {
  stores,  // the pages stay in memory, and count as written
  purge,   // the pages went back to the system
};

// Which is the cheaper way to make `pages` pages zero, of which a store would fault on `armed`.
// A pure function; the costs behind it were measured by bench_clear (clear_tracked).
ZeroedBy cheaper_zeroing(std::size_t pages, std::size_t armed, BackendKind backend);

// Makes whole pages of a region zero, by the cheaper way; where the pages shall go back to the
// system anyway, by a purge. Never fails: what cannot be purged (locked memory) is cleared by
// stores. Takes no lock of the heap; thread-safe for ranges that do not overlap.
ZeroedBy zero_run(Region& region, ByteRange range) noexcept;
ZeroedBy zero_run_and_give_back(Region& region, ByteRange range) noexcept;

}  // namespace pagetide
