#pragma once

#include <map>
#include <memory>
#include <string_view>

#include "pagetide/tracker/backends/soft_dirty_process.h"
#include "pagetide/tracker/dirty_backend.h"

namespace pagetide {

// The kernel's soft-dirty bits (Linux 3.11, CONFIG_MEM_SOFT_DIRTY): bit 55 of a pagemap entry, set
// by the first write to a page after "4" was written to clear_refs. Needs no privilege; writes by
// system calls are seen.
//
// The caller has to know what it costs otherwise:
//  - No other thread may write to watched memory during a take (needs_stopped_writers): reading
//    the bits and clearing them are two steps, and a write in between is lost. Hold the writers
//    for every take, not only for the last one.
//  - Clearing is for the whole process: every page of it, watched or not, takes a fault at its
//    next write, and whoever else uses the bits (CRIU, a second library) loses his. Back ends of
//    this kind in one process share theirs. That somebody else cleared them is noticed at the
//    next collect, which then reports everything that is populated.
//  - A take reads the entries of all pages that were ever collected, about 130 ns each.
//  - Private memory only.
//
// Splitting and merging of mappings sets bits: more pages are reported than were written.
//
// Tested against a model of the kernel only (tests/tracker/soft_dirty_test.cc): the kernels that
// this was developed on have no soft-dirty bits. The probe was seen to say so there.
//
// Thread-safe. In a forked child, open a new one.
class SoftDirtyBackend {
 public:
  static constexpr bool kNeedsStoppedWriters = true;
  // What to tell users of this back end, beside what probe() found.
  static constexpr std::string_view kLimits =
      "needs_stopped_writers: no thread may write to tracked memory during a take";

  // The first in a process tries the bits, which clears them once. Errors: unsupported,
  // permission_denied.
  static Result<SoftDirtyBackend> open();
  // Over bits of the caller's; for tests.
  static SoftDirtyBackend over(std::shared_ptr<SoftDirtyProcess> process);
  // Whether a real round trip of write, clear and write works; the same trial as that of open().
  static Result<void> probe();

  SoftDirtyBackend(SoftDirtyBackend&&) = default;
  SoftDirtyBackend& operator=(SoftDirtyBackend&& other) noexcept;
  SoftDirtyBackend(const SoftDirtyBackend&) = delete;
  SoftDirtyBackend& operator=(const SoftDirtyBackend&) = delete;
  ~SoftDirtyBackend() { unwatch_all(); }

  BackendKind kind() const { return BackendKind::soft_dirty; }
  Result<void> watch(ByteRange range);
  void unwatch(ByteRange range);
  Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode, DirtyBitmap& written);
  // There is nothing to arm: a page that was only read has no bit.
  Result<void> prefill(ByteRange, Prefill) { return {}; }

 private:
  explicit SoftDirtyBackend(std::shared_ptr<SoftDirtyProcess> process)
      : process_(std::move(process)) {}
  void unwatch_all();

  std::shared_ptr<SoftDirtyProcess> process_;
  std::map<std::uintptr_t, SoftDirtyProcess::Watch*> watches_;  // by start address
};

static_assert(DirtyBackend<SoftDirtyBackend>);

}  // namespace pagetide
