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
// Of private memory only populated pages are ever armed (WRITTEN, and PRESENT or SWAPPED):
// untouched address space costs no page tables and no time. A page that was purged is therefore
// not reported; whoever purges says so to the tracker.
//
// In private file mappings pages that were only read come back as written once registered; they
// are told apart by having the file behind them.
//
// Of shared mappings an empty page table entry can stand for a page that was written: the kernel
// drops those when it reclaims the page, which lives on in the page cache (an armed page leaves a
// marker). So empty entries count as written, and are armed by markers: the first take reports
// all of a shared mapping and builds all its page tables, later ones are exact.
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
  std::size_t count_armed(ByteRange whole, ByteRange part);

 private:
  Result<void> map_zero_pages(ByteRange range);
  Result<void> arm(ByteRange range, const ScanQuery& query);
  Result<void> scan(ByteRange part, const ScanQuery& query, CollectMode mode, ByteRange whole,
                    DirtyBitmap& written);

  UffdAsyncBackend(UniqueFd fd, PagemapScanner scanner, MappingQuery mappings)
      : fd_(std::move(fd)), scanner_(std::move(scanner)), mappings_(std::move(mappings)) {}

  UniqueFd fd_;
  PagemapScanner scanner_;
  MappingQuery mappings_;
  // Mappings among what is watched that need another question, by address.
  struct SpecialPart {
    ByteRange range;
    bool is_shared = false;
  };
  std::map<std::uintptr_t, SpecialPart> special_parts_;
};

static_assert(DirtyBackend<UffdAsyncBackend>);

}  // namespace pagetide
