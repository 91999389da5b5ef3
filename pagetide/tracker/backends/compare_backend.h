#pragma once

#include <map>

#include "pagetide/base/hash.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/dirty_backend.h"

namespace pagetide {

// Finds written pages by comparing a 128-bit hash of each page with the one of the last take.
// Needs nothing of the kernel, sees writes by every way there is (also through aliases and DMA),
// and reports only pages whose content changed. Costs a pass over the memory of each collect,
// about 0.4 us a page, and 16 bytes a page. It is the oracle of the tests.
//
// The first collect reports every page that is not all zero. Pages that cannot be read at the
// moment (PROT_NONE, guard pages, beyond the end of a file) are passed over and compared by the
// first collect that can read them.
class CompareBackend {
 public:
  static Result<CompareBackend> open();

  BackendKind kind() const { return BackendKind::compare; }
  Result<void> watch(ByteRange range);
  void unwatch(ByteRange range);
  Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode, DirtyBitmap& written);
  Result<void> prefill(ByteRange, Prefill) { return {}; }
  // Their content is zero by now; whoever logged the purge knows.
  void purged(ByteRange range);

 private:
  // By start address. A zero hash stands for a page of zeros, so that untouched pages match.
  std::map<std::uintptr_t, VirtualArray<Hash128>> hashes_;
  VirtualArray<std::byte> copy_;  // of one page
};

static_assert(DirtyBackend<CompareBackend>);

}  // namespace pagetide
