#pragma once

#include <map>

#include "pagetide/base/unique_fd.h"
#include "pagetide/tracker/dirty_backend.h"
#include "pagetide/tracker/kernel/mapping_query.h"
#include "pagetide/tracker/kernel/pagemap_scan.h"

namespace pagetide {

// Asynchronous userfaultfd write protection: the kernel resolves a write to an armed page by
// itself and remembers it; PAGEMAP_SCAN reads and re-arms. Unprivileged (UFFD_USER_MODE_ONLY),
// and the only mode in which system calls into tracked memory just work and are seen.
//
// Only populated pages are ever armed (WRITTEN, and PRESENT or SWAPPED): untouched address space
// costs no page tables and no time. A page that was purged is therefore not reported; whoever
// purges says so to the tracker.
class UffdAsyncBackend {
 public:
  // Opens the descriptors. Fails with unsupported or permission_denied; whether the kernel also
  // does what it says is for probe_capabilities().
  static Result<UffdAsyncBackend> open();

  BackendKind kind() const { return BackendKind::uffd_async; }
  Result<void> watch(ByteRange range);
  void unwatch(ByteRange range);
  Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode, DirtyBitmap& written);
  Result<void> prefill(ByteRange range, Prefill policy);

 private:
  Result<void> map_zero_pages(ByteRange range);
  Result<void> arm(ByteRange range, const ScanQuery& query);
  Result<void> scan(ByteRange part, bool private_file, CollectMode mode, ByteRange whole,
                    DirtyBitmap& written);

  UffdAsyncBackend(UniqueFd fd, PagemapScanner scanner, MappingQuery mappings)
      : fd_(std::move(fd)), scanner_(std::move(scanner)), mappings_(std::move(mappings)) {}

  UniqueFd fd_;
  PagemapScanner scanner_;
  MappingQuery mappings_;
  // Private file mappings among what is watched, by address: their pages that were only read
  // come back as written once registered, and are told apart by having the file behind them.
  std::map<std::uintptr_t, ByteRange> private_files_;
};

static_assert(DirtyBackend<UffdAsyncBackend>);

}  // namespace pagetide
