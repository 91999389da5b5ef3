#include "pagetide/tracker/backends/fault_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <thread>

#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/kernel/kernel_abi.h"

namespace pagetide {

namespace {

constexpr std::uint32_t kFree = 0;  // what a wiped slot is
constexpr std::uint32_t kClaimed = 1;
constexpr std::uint32_t kLive = 2;

// Everything here is sequentially consistent: a handler costs microseconds, and the reasoning
// stays short.
template <typename T>
std::atomic_ref<T> shared(T& value) {
  static_assert(std::atomic_ref<T>::is_always_lock_free);
  return std::atomic_ref<T>(value);
}

}  // namespace

ConsumedFaults consume_faults(FaultGroup& group, std::uint64_t pages) {
  // Most groups are clean; only reading them leaves their cache lines and pages alone.
  if ((shared(group.dirty).load() & pages) == 0) return {};
  ConsumedFaults found;
  found.pages = shared(group.dirty).fetch_and(~pages) & pages;
  shared(group.takes).fetch_add(1);
  found.may_protect = shared(group.resolving).load() == 0;
  if (!found.may_protect) shared(group.dirty).fetch_or(found.pages);
  return found;
}

Result<FaultTable> FaultTable::create() {
  auto slots = VirtualArray<Slots>::create(1);
  if (!slots) return propagate(slots);
  if (::madvise(slots->span().data(), sizeof(Slots), MADV_WIPEONFORK) != 0) {
    return system_failure("keep a table from forked children (MADV_WIPEONFORK)", errno,
                          "Linux 4.14 or newer is needed.");
  }
  return FaultTable(std::move(*slots));
}

Result<std::size_t> FaultTable::add(ByteRange range, std::span<FaultGroup> groups, int uffd) {
  Slots& table = slots_[0];
  for (std::size_t i = 0; i < kMaxWatches; ++i) {
    Slot& slot = table.slots[i];
    std::uint32_t expected = kFree;
    if (!shared(slot.state).compare_exchange_strong(expected, kClaimed)) continue;
    slot.groups = groups.data();
    slot.uffd = uffd;
    shared(slot.begin).store(range.begin);
    shared(slot.size).store(range.size);
    std::size_t used = shared(table.used).load();
    while (used <= i && !shared(table.used).compare_exchange_weak(used, i + 1)) {
    }
    shared(slot.state).store(kLive);
    return i;
  }
  return failure(
      ErrorCode::out_of_memory,
      "cannot watch another range: all " + std::to_string(kMaxWatches) +
          " places of the table of watched ranges are taken. Watch fewer, larger ranges, "
          "or use BackendKind::uffd_async, which has no such limit.");
}

void FaultTable::remove(std::size_t index) {
  Slot& slot = slots_[0].slots[index];
  shared(slot.state).store(kClaimed);
  // Whoever counts itself in from here on finds the slot dead.
  while (shared(slot.users).load() != 0) std::this_thread::yield();
  shared(slot.size).store(0);
  shared(slot.state).store(kFree);
}

// Runs in fault handlers: async-signal-safe.
ResolvedFault FaultTable::resolve(std::uintptr_t address) {
  Slots& table = slots_[0];
  const std::size_t used = shared(table.used).load();
  for (std::size_t i = 0; i < used; ++i) {
    Slot& slot = table.slots[i];
    // A slot that is just changing is not the one of a fault that has happened.
    if (address - shared(slot.begin).load() >= shared(slot.size).load()) continue;
    shared(slot.users).fetch_add(1);
    const bool found = shared(slot.state).load() == kLive &&
                       address - shared(slot.begin).load() < shared(slot.size).load();
    const ResolvedFault resolved = found ? let_through(slot, address) : ResolvedFault{};
    shared(slot.users).fetch_sub(1);
    if (found) return resolved;
  }
  return {};
}

// Runs in fault handlers: async-signal-safe.
ResolvedFault FaultTable::let_through(Slot& slot, std::uintptr_t address) {
  const std::size_t page = (address - slot.begin) / page_size();
  FaultGroup& group = slot.groups[page / 64];
  uffdio_writeprotect request{};
  request.range = {round_down(address, page_size()), page_size()};
  // A thread that waits for this page is woken when we are counted out again, or the take after
  // its write would find us at work and report the page twice.
  request.mode = UFFDIO_WRITEPROTECT_MODE_DONTWAKE;
  shared(group.resolving).fetch_add(1);
  const std::uint64_t bit = std::uint64_t{1} << (page % 64);
  ResolvedFault resolved;
  resolved.takes = shared(group.takes).load();
  resolved.was_recorded = (shared(group.dirty).fetch_or(bit) & bit) != 0;
  const int r = sys::ioctl(slot.uffd, UFFDIO_WRITEPROTECT, &request);
  shared(group.resolving).fetch_sub(1);
  resolved.is_ours = r == 0;
  return resolved;
}

// Runs in fault handlers: async-signal-safe.
void FaultTable::wake_all() {
  Slots& table = slots_[0];
  const std::size_t used = shared(table.used).load();
  for (std::size_t i = 0; i < used; ++i) {
    Slot& slot = table.slots[i];
    if (shared(slot.state).load() != kLive) continue;
    shared(slot.users).fetch_add(1);
    if (shared(slot.state).load() == kLive) {
      uffdio_range range{shared(slot.begin).load(), shared(slot.size).load()};
      (void)sys::ioctl(slot.uffd, UFFDIO_WAKE, &range);
    }
    shared(slot.users).fetch_sub(1);
  }
}

}  // namespace pagetide
