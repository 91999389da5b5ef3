#pragma once

#include <sys/ioctl.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"

namespace pagetide::sys {

// Each returns 0 (or a count) or a negative errno, so that no caller depends on errno itself.

// ioctl, repeated while a signal interrupts it.
template <typename Argument>
int ioctl(int fd, unsigned long request, Argument* argument) {
  int r = 0;
  do {
    r = ::ioctl(fd, request, argument);
  } while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : r;
}

// pread/pwrite of everything: short transfers are continued. read_full returns the bytes read,
// fewer than asked for only at the end of the file.
ssize_t read_full(int fd, void* buffer, std::size_t size, std::uint64_t offset);
ssize_t write_full(int fd, const void* buffer, std::size_t size, std::uint64_t offset);

// PROT_NONE reservation at exactly `base`; nothing is replaced: -EEXIST when something is there.
int reserve_address_range(ByteRange range);
int protect_read_write(ByteRange range);
int release_address_range(ByteRange range);
int advise(ByteRange range, int advice);

}  // namespace pagetide::sys
