#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "pagetide/tracker/dirty_backend.h"

namespace pagetide {

struct UffdSyncOptions {
  // Threads that resolve faults; at least 1. One resolves some tens of thousands of faults a
  // second.
  std::size_t handler_threads = 1;
  // How often, while something is watched, all threads that wait for a fault are woken to try
  // again. Linux before 6.18.42 can park a thread on a fault that is resolved already, and nobody
  // would wake it. 0 for never.
  std::chrono::milliseconds watchdog{100};
};

// userfaultfd write protection whose faults are resolved by threads of ours, while the writer
// sleeps. The slowest of the userfaultfd back ends (a first write costs ten times that of
// uffd_async); like uffd_sigbus it knows the written pages without a scan, and unlike it, it sees
// writes of the kernel: read(2) into tracked memory just works. The exception is /proc/PID/mem and
// with it ptrace(PTRACE_POKEDATA), the way of debuggers: into an armed page they fail with EIO.
//
// That takes a descriptor that may handle faults of the kernel: access to /dev/userfaultfd, or
// CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd=1. Without, open() fails, because every system
// call into an armed page would.
//
// The handler threads (their name is "pagetide-uffd") have stacks of their own, block all
// signals, allocate nothing and take no lock. Whoever stops every thread of the process must
// leave them running: a writer may be waiting for them. They touch no tracked memory, provided
// that the C library's own blocks for a thread, which malloc makes, are not in it.
class UffdSyncBackend {
 public:
  // Fails with unsupported, permission_denied or invalid_argument.
  static Result<UffdSyncBackend> open(const UffdSyncOptions& options = {});
  // Writes, takes and writes again on scratch memory, also by read(2): whether this kernel does
  // what it says.
  static Result<void> probe();

  UffdSyncBackend(UffdSyncBackend&&) noexcept;
  UffdSyncBackend& operator=(UffdSyncBackend&&) noexcept;
  ~UffdSyncBackend();

  BackendKind kind() const { return BackendKind::uffd_sync; }
  Result<void> watch(ByteRange range);
  void unwatch(ByteRange range);
  Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode, DirtyBitmap& written);
  Result<void> prefill(ByteRange range, Prefill policy);
  void purged(ByteRange range);
  std::size_t count_armed(ByteRange whole, ByteRange part);

 private:
  class Handlers;
  explicit UffdSyncBackend(std::unique_ptr<Handlers> handlers);
  std::unique_ptr<Handlers> handlers_;
};

static_assert(DirtyBackend<UffdSyncBackend>);

}  // namespace pagetide
