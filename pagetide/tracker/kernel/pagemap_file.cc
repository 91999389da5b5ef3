#include "pagetide/tracker/kernel/pagemap_file.h"

#include <fcntl.h>

#include <cerrno>

#include "pagetide/tracker/disabled_features.h"

namespace pagetide {

Result<UniqueFd> open_own_pagemap() {
  if (is_disabled("pagemap")) {
    return failure(ErrorCode::unsupported,
                   "cannot open /proc/self/pagemap: switched off by PAGETIDE_DISABLE.");
  }
  UniqueFd fd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (fd.valid()) return fd;
  return system_failure(
      "open /proc/self/pagemap", errno,
      "A process that changed its user id without exec is not dumpable: open the "
      "tracker before, or call prctl(PR_SET_DUMPABLE, 1); /proc must be mounted.");
}

}  // namespace pagetide
