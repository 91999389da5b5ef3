#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "pagetide/tracker/backends/protected_range.h"
#include "pagetide/tracker/dirty_backend.h"
#include "pagetide/tracker/kernel/populated_pages.h"

namespace pagetide {

struct WriteProtectOptions {
  // How many mappings more than without tracking there may be, in the whole process; 0: 8192, or
  // an eighth of vm.max_map_count where that is less. Near the bound handlers let through blocks
  // of 16 and then 512 pages, and takes leave lone pages unarmed: more pages are reported than
  // were written, none is missed.
  std::size_t max_extra_mappings = 0;
};

struct WriteProtectStats {
  ProtectionCounts counts;             // of all ranges that are watched now
  std::size_t extra_mappings = 0;      // of the whole process, now
  std::size_t max_extra_mappings = 0;  // the bound that is in force
};

// mprotect(): armed pages are read-only, the first write to one raises SIGSEGV in the writing
// thread, and the handler records the page and makes it writable. Works on every kernel and in
// most sandboxes, and needs no privilege. A first write costs 7-13 us.
//
// The caller has to know what it costs otherwise:
//  - System calls that write into an armed page (read(2), recv(2), ...) fail with EFAULT: the
//    kernel raises no signal for its own accesses. Only for memory that is never the target of
//    one. (write(2) and the like, which only read it, are fine.)
//  - Watched memory is readable and writable wherever it is in use, and nobody else changes its
//    protection. Pages of a collected part that are populated, without pagemap all of its pages,
//    are made read-only and writable in turn; so collect only what is in use.
//  - Threads that write must not block SIGSEGV: the kernel would end the process. Stacks, the
//    static data of this library and whatever a SIGSEGV handler writes to cannot be watched.
//  - A handler for SIGSEGV that somebody installs later must pass on what is not its own, as ours
//    does (signal_chain.h).
//  - Each stretch of armed or unarmed pages is a mapping of its own; see WriteProtectOptions.
//    Huge pages are split by it.
//
// Private memory is read from pagemap before it is first armed, so that pages nobody touched are
// neither reported nor armed. Where pagemap cannot be opened, and for shared memory, whose pages
// can be out of this process's page tables although they were written, the first collect reports
// every page of its part. A purged page keeps its protection.
//
// One thread at a time may use a back end (Tracker sees to that), while any number write. In a
// forked child the memory works on as it is, untracked; destroying the back end there makes the
// child's copy writable.
class WriteProtectBackend {
 public:
  // What to tell users of this back end, beside what probe() found.
  static constexpr std::string_view kLimits =
      "system calls that write into tracked memory fail with EFAULT; threads must not block "
      "SIGSEGV";

  static Result<WriteProtectBackend> open(const WriteProtectOptions& options = {});
  // Whether mprotect() here really takes write access away and gives it back, and SIGSEGV can be
  // handled. Tries it on scratch memory, through system calls; installs no handler.
  static Result<void> probe();

  BackendKind kind() const { return BackendKind::write_protect; }
  // Errors: already_exists when a part is watched by another back end of this kind.
  Result<void> watch(ByteRange range);
  void unwatch(ByteRange range);
  Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode, DirtyBitmap& written);
  // zero_page and marker arm what nobody touched: first writes are then exact even for pages that
  // were only read, and cost a fault each. automatic and none leave it alone, which is cheaper
  // over the first writes. Nothing without pagemap.
  Result<void> prefill(ByteRange range, Prefill policy);
  std::size_t count_armed(ByteRange whole, ByteRange part);

  WriteProtectStats stats() const;

 private:
  struct Watch {
    std::unique_ptr<ProtectedRange> protection;
    bool is_private = false;
  };

  WriteProtectBackend(std::size_t max_extra_mappings, std::optional<PopulatedPages> populated)
      : max_extra_mappings_(max_extra_mappings), populated_(std::move(populated)) {}

  bool can_look(const Watch& watch) const { return watch.is_private && populated_.has_value(); }
  Result<void> find_touched(Watch& watch, PageRange pages);
  Result<void> arm_untouched(Watch& watch, PageRange pages);

  std::size_t max_extra_mappings_;
  std::optional<PopulatedPages> populated_;
  std::map<std::uintptr_t, Watch> watches_;  // by start address
};

static_assert(DirtyBackend<WriteProtectBackend>);

}  // namespace pagetide
