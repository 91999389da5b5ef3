#pragma once

#include <memory>

#include "pagetide/tracker/dirty_backend.h"

namespace pagetide {

// userfaultfd write protection whose faults are SIGBUS signals in the writing thread: a handler
// of ours (signal_chain.h) records the page, makes it writable and lets the thread try again.
// Needs no privilege and no other thread. A first write to an armed page costs four times that of
// uffd_async; in return the written pages are known without a scan (where all is armed:
// Prefill::zero_page), so a stop is short whatever the size of the memory.
//
// Only for memory that is never the target of a system call: read(2) and the like into an armed
// page fail with EFAULT and store nothing. Stacks, alternate signal stacks and thread-local
// storage in watched memory kill the process. Threads that write must not block SIGBUS.
// What else is forbidden in watched memory is in fault_recorder.h.
//
// Any number of objects at a time; all share the one handler and FaultWatch::kMaxWatches ranges.
class UffdSigbusBackend {
 public:
  // Also installs the handler, the first time. Fails with unsupported, permission_denied or busy.
  static Result<UffdSigbusBackend> open();
  // Writes, takes and writes again on scratch memory: whether this kernel does what it says.
  static Result<void> probe();

  UffdSigbusBackend(UffdSigbusBackend&&) noexcept;
  UffdSigbusBackend& operator=(UffdSigbusBackend&&) noexcept;
  ~UffdSigbusBackend();

  BackendKind kind() const { return BackendKind::uffd_sigbus; }
  Result<void> watch(ByteRange range);
  void unwatch(ByteRange range);
  Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode, DirtyBitmap& written);
  Result<void> prefill(ByteRange range, Prefill policy);
  void purged(ByteRange range);
  std::size_t count_armed(ByteRange whole, ByteRange part);

 private:
  struct Parts;
  explicit UffdSigbusBackend(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

static_assert(DirtyBackend<UffdSigbusBackend>);

}  // namespace pagetide
