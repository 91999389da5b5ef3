#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/tracker/dirty_bitmap.h"
#include "pagetide/tracker/prefill.h"

namespace pagetide {

enum class BackendKind : std::uint8_t {
  automatic,      // the best that a real round trip finds working
  uffd_async,     // userfaultfd write-protect, asynchronous, with PAGEMAP_SCAN (Linux 6.7)
  uffd_sigbus,    // userfaultfd write-protect, faults as SIGBUS in the writing thread (5.7)
  uffd_sync,      // userfaultfd write-protect, faults resolved by handler threads (5.7)
  soft_dirty,     // the kernel's soft-dirty bit and clear_refs (3.11)
  write_protect,  // mprotect and SIGSEGV in the writing thread: everywhere
  compare,        // hashes of every page: works everywhere, costs a pass over the memory
};

PAGETIDE_API std::string_view to_string(BackendKind kind);

// Whether a take finds every page that was written since the one before, while writers run: what
// was copied after a take and is not found by the next one has not changed in between. compare does
// not see a page that was changed and changed back, and soft_dirty loses writes during a take.
constexpr bool sees_every_write(BackendKind kind) {
  return kind != BackendKind::compare && kind != BackendKind::soft_dirty;
}

// Back ends know take and peek alone.
enum class CollectMode : std::uint8_t {
  take,  // report and begin a new epoch
  peek,  // report only
  // A take soon after another one, for a consumer that reads the pages of both as one: what the
  // adaptive arming has learnt stays as it is.
  take_again,
  // As take_again, but what is found stays unarmed: the next take reports it once more. Cheaper,
  // for a moment in which nobody shall wait.
  take_unarmed,
};

// How a Tracker finds written pages. A back end knows nothing of epochs, purge logs or
// consumers; it answers "written since the last take?" for ranges that were handed to watch().
//
//  watch(whole)        begin to track; page-aligned. Whether pages that are already populated are
//                      reported by the first collect is up to the back end; reporting is right.
//  unwatch(whole)      stop; a no-op for memory that is gone.
//  collect(whole, part, mode, written)
//                      adds the pages of `part`, numbered from the start of `whole`. An error
//                      means that nothing is known: the tracker takes all of `part` as written.
//  prefill(part, policy)
//                      prepares untouched pages as the policy says and arms them, where that is
//                      this back end's way; else does nothing. Pages in use stay as they are.
//  purged(part)        optional: these pages were given back to the system and lost their
//                      protection with it.
//  count_armed(whole, part)
//                      optional: how many pages of `part` a store would fault on because they are
//                      armed; untouched ones may be counted too. An estimate, for deciding what
//                      is cheaper. Back ends without it protect nothing.
template <typename B>
concept DirtyBackend = std::movable<B> &&
    requires(B& backend, ByteRange range, CollectMode mode, DirtyBitmap& written, Prefill policy) {
  { backend.kind() } -> std::same_as<BackendKind>;
  { backend.watch(range) } -> std::same_as<Result<void>>;
  { backend.unwatch(range) } -> std::same_as<void>;
  { backend.collect(range, range, mode, written) } -> std::same_as<Result<void>>;
  { backend.prefill(range, policy) } -> std::same_as<Result<void>>;
};

}  // namespace pagetide
