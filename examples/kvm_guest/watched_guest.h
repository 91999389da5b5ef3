#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "examples/kvm_guest/guest_memory.h"
#include "examples/kvm_guest/round.h"
#include "examples/kvm_guest/virtual_machine.h"
#include "pagetide/base/error.h"
#include "pagetide/tracker/tracker.h"

namespace kvm_guest {

struct GuestOptions {
  std::size_t memory_bytes = std::size_t{64} << 20;  // whole pages, up to kMaxMemoryBytes
  Ring ring = Ring::user;
  std::string device = kKvmDevice;
};

// A guest whose RAM is watched by a tracker of Pagetide and by KVM's dirty log.
//
// A userfaultfd of the kind that stops the writer would break KVM_RUN, whose writes come from the
// kernel; asynchronous write protection does not, so the tracker is always of that kind.
class WatchedGuest {
 public:
  static pagetide::Result<WatchedGuest> create(const GuestOptions& options);

  GuestMemory& memory() { return memory_; }
  // Pages that hold neither the program nor what it needs.
  pagetide::PageRange data_pages() const;
  // `count` different ones of them, in no order. Errors: invalid_argument when there are not so
  // many, or more than fit on a work list.
  pagetide::Result<std::vector<std::uint32_t>> choose_pages(std::size_t count,
                                                            std::mt19937_64& random) const;

  // Has the guest store `mark` into these pages.
  pagetide::Result<void> work(std::span<const std::uint32_t> pages, std::uint32_t mark);
  // What the tracker found since the last call. May run while another thread is in work().
  pagetide::Result<pagetide::DirtyBitmap> take_written();

  // The guest writes to some pages and this process, in the role of a device, to others; then both
  // sides are asked. The first round also covers the set-up of the guest.
  pagetide::Result<Round> run_round(std::span<const std::uint32_t> guest_pages,
                                    std::span<const std::uint32_t> device_pages);

 private:
  WatchedGuest(GuestMemory memory, pagetide::Tracker tracker, pagetide::WatchId watch,
               VirtualMachine machine);

  // In this order: the others use the memory.
  GuestMemory memory_;
  pagetide::Tracker tracker_;
  pagetide::WatchId watch_;
  VirtualMachine machine_;
  std::uint32_t rounds_ = 0;
};

}  // namespace kvm_guest
