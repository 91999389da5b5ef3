#include "pagetide/allocator/run_zeroing.h"

#include "pagetide/allocator/clear/clear.h"

namespace pagetide {

namespace {

// Nanoseconds, measured by bench_clear on a Zen 5 under nested virtualisation; what counts are
// their ratios. A purge pays for the system call, and for each page it frees; a store for a page
// that faults, and next to nothing for one that does not. What a purge costs later, when the page
// is used again (1 700 ns), is not counted: nobody knows whether it will be.
constexpr std::size_t kPurgeCallNs = 1300;
constexpr std::size_t kPurgePageNs = 250;
constexpr std::size_t kStorePageNs = 40;

// A first write to an armed page, from bench_tracker (first_write).
constexpr std::size_t fault_ns(BackendKind backend) {
  switch (backend) {
    case BackendKind::uffd_sigbus:
      return 4300;
    case BackendKind::uffd_sync:
      return 48'000;
    case BackendKind::write_protect:
      return 7400;
    case BackendKind::automatic:
    case BackendKind::uffd_async:
    case BackendKind::soft_dirty:
    case BackendKind::compare:
      break;
  }
  return 900;
}

constexpr std::size_t purge_ns(std::size_t pages) {
  return kPurgeCallNs + pages * kPurgePageNs;
}

constexpr std::size_t stores_ns(std::size_t pages, std::size_t armed, BackendKind backend) {
  return pages * kStorePageNs + armed * fault_ns(backend);
}

}  // namespace

ZeroedBy cheaper_zeroing(std::size_t pages, std::size_t armed, BackendKind backend) {
  return stores_ns(pages, armed, backend) <= purge_ns(pages) ? ZeroedBy::stores : ZeroedBy::purge;
}

ZeroedBy zero_run(Region& region, ByteRange range) noexcept {
  const Tracker& tracker = region.tracker();
  const BackendKind backend = tracker.backend();
  const std::size_t pages = range.size / page_size();
  // Where even the worst case is decided, nobody needs to be asked.
  const bool decided = cheaper_zeroing(pages, pages, backend) == ZeroedBy::stores;
  const std::size_t armed = decided ? 0 : tracker.count_armed(range);
  if (cheaper_zeroing(pages, armed, backend) == ZeroedBy::purge) {
    return zero_run_and_give_back(region, range);
  }
  clear_memory(range.data(), range.size);
  return ZeroedBy::stores;
}

ZeroedBy zero_run_and_give_back(Region& region, ByteRange range) noexcept {
  if (region.purge(range)) return ZeroedBy::purge;
  clear_memory(range.data(), range.size);
  return ZeroedBy::stores;
}

}  // namespace pagetide
