#pragma once

#include <cstddef>
#include <string>

#include "pagetide/base/error.h"
#include "pagetide/base/export.h"
#include "pagetide/tracker/any_backend.h"

namespace pagetide {

// What the owner of the memory can promise. A back end that needs more is not chosen.
struct BackendPromises {
  // No system call ever writes to the watched memory.
  bool never_syscall_target = false;
  // No thread writes to watched memory while a take runs.
  bool writers_held_in_takes = false;
};

// What single back ends can be told.
struct BackendSettings {
  // uffd_sync: threads that resolve faults, at least 1. One resolves some tens of thousands a
  // second.
  std::size_t handler_threads = 1;
  // mprotect: mappings that splitting by protection may add, over all ranges of the process. 0 for
  // an eighth of vm.max_map_count, at most 8192. Past it, neighbours count as written too.
  std::size_t max_extra_mappings = 0;
};

struct BackendChoice {
  BackendKind kind = BackendKind::compare;
  std::string reason;  // what was found, or what every better one lacked
};

// Tries a back end by really tracking a few pages of scratch memory: fails, with cause and way
// out, when it cannot be had or gives a wrong answer here. An answer that cannot change (it works;
// the kernel lacks it) is found once per process and per value of PAGETIDE_DISABLE. Thread-safe.
// Trying soft_dirty clears the soft-dirty bits of the process, once.
PAGETIDE_API Result<void> check_backend(BackendKind kind);

// The first that works of: uffd_async; uffd_sigbus (needs never_syscall_target); uffd_sync (needs
// privilege); soft_dirty (needs writers_held_in_takes); mprotect (needs never_syscall_target);
// compare, which always does.
PAGETIDE_API BackendChoice choose_backend(const BackendPromises& promises);

// Opens a back end, never another one instead of it; `automatic` is an error here. Refuses one
// that check_backend() refuses.
PAGETIDE_API Result<AnyBackend> open_backend(BackendKind kind,
                                             const BackendSettings& settings = {});

}  // namespace pagetide
