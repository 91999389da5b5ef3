#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide {

// What is known of the faults on 64 neighbouring pages; page p is bit p % 64 of its group p / 64.
// Lives in a VirtualArray and is touched by atomic operations only.
//
// Handler and take work on a page at the same time without a lock:
//
//   handler:  resolving + 1;  set dirty;  make the page writable;  resolving - 1
//   take:     clear dirty;    look at resolving;  protect;  (its caller copies)
//
// A handler sets the bit before the page becomes writable, so no write is ever ahead of its bit.
// What is left is a take that runs whole between "set dirty" and "make writable": the page would
// end up writable with a clear bit, and its later writes unseen. For this a handler counts itself
// in first. A take that cleared a bit sees the count of the handler that set it, unless that
// handler has already made the page writable; where the count is not zero it puts the bits back
// (consume_faults), and the pages count as written once more in the next epoch. No one waits, so
// a writer may be stopped anywhere.
struct FaultGroup {
  std::uint64_t dirty;
  std::uint32_t resolving;
  std::uint32_t takes;  // that cleared bits
};

// Faults of one group that a take has found.
struct ConsumedFaults {
  std::uint64_t pages = 0;  // to be reported
  bool may_protect = true;  // false: a handler is at work, the bits stayed
};

// Clears and returns those of `pages`; see above. Only one thread at a time consumes a group.
ConsumedFaults consume_faults(FaultGroup& group, std::uint64_t pages);

// What a handler found out about a fault.
struct ResolvedFault {
  bool is_ours = false;       // in watched memory; the page is writable now
  bool was_recorded = false;  // another thread was first, or the fault is about something else
  std::uint32_t takes = 0;    // of its group: when this has changed, the page may be armed again
};

// Which ranges are watched by which userfaultfd, for fault handlers: a fixed number of slots that
// are read without a lock. What a handler calls never allocates, locks or touches the watched
// memory. Slots are added and removed from any thread.
//
// The slots are wiped in a forked child: its memory is not registered, and an inherited
// descriptor would change its parent's. (A vfork child shares the memory and keeps them.)
class FaultTable {
 public:
  static constexpr std::size_t kMaxWatches = 1024;

  static Result<FaultTable> create();

  // --- for those who watch ---

  // `groups` and `uffd` stay valid until remove(). Comes before the range is registered, so that
  // every fault finds its slot. Fails with out_of_memory when all slots are taken.
  Result<std::size_t> add(ByteRange range, std::span<FaultGroup> groups, int uffd);
  // Waits for handlers that are just using the slot: a few microseconds.
  void remove(std::size_t slot);

  // --- for fault handlers: async-signal-safe ---

  // Records a write to a watched page and makes the page writable; wakes nobody. Not ours when
  // the address is not watched or its memory is not registered any more.
  ResolvedFault resolve(std::uintptr_t address);
  // Wakes every thread that waits for a fault in watched memory; they try again.
  void wake_all();

 private:
  struct Slot {
    std::uintptr_t begin;
    std::size_t size;
    FaultGroup* groups;
    int uffd;
    std::uint32_t state;
    std::uint32_t users;  // handlers that use the slot now
  };
  struct Slots {
    std::size_t used;  // slots from here on were never taken
    Slot slots[kMaxWatches];
  };

  explicit FaultTable(VirtualArray<Slots> slots) : slots_(std::move(slots)) {}
  static ResolvedFault let_through(Slot& slot, std::uintptr_t address);

  VirtualArray<Slots> slots_;
};

}  // namespace pagetide
