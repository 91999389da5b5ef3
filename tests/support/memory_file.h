#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include "pagetide/base/page_range.h"
#include "pagetide/base/unique_fd.h"

namespace pagetide {

// A memfd of so many pages of zeros.
inline UniqueFd memory_file(std::size_t pages) {
  UniqueFd fd(::memfd_create("pagetide-test", MFD_CLOEXEC));
  if (::ftruncate(fd.get(), static_cast<off_t>(pages * page_size())) != 0) fd.reset();
  return fd;
}

}  // namespace pagetide
