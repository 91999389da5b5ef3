#pragma once

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

struct BackendChoice {
  BackendKind kind = BackendKind::compare;
  std::string reason;  // what was found, or what every better one lacked
};

// Tries a back end by really tracking a few pages of scratch memory: fails, with cause and way
// out, when it cannot be had or gives a wrong answer here. The answer is found once per process
// and per value of PAGETIDE_DISABLE. Thread-safe. Trying soft_dirty clears the soft-dirty bits of
// the process, once.
PAGETIDE_API Result<void> check_backend(BackendKind kind);

// The first that works of: uffd_async; uffd_sigbus (needs never_syscall_target); uffd_sync (needs
// privilege); soft_dirty (needs writers_held_in_takes); mprotect (needs never_syscall_target);
// compare, which always does.
PAGETIDE_API BackendChoice choose_backend(const BackendPromises& promises);

// Opens a back end, never another one instead of it; `automatic` is an error here. Refuses one
// that check_backend() refuses.
PAGETIDE_API Result<AnyBackend> open_backend(BackendKind kind);

}  // namespace pagetide
