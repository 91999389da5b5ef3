#include "pagetide/base/syscalls.h"

#include <sys/mman.h>
#include <unistd.h>

namespace pagetide::sys {

ssize_t read_full(int fd, void* buffer, std::size_t size, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd, static_cast<char*>(buffer) + done, size - done,
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return static_cast<ssize_t>(done);
}

ssize_t write_full(int fd, const void* buffer, std::size_t size, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pwrite(fd, static_cast<const char*>(buffer) + done, size - done,
                               static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) return -ENOSPC;
    done += static_cast<std::size_t>(n);
  }
  return static_cast<ssize_t>(done);
}

int reserve_address_range(ByteRange range) {
  void* p = ::mmap(range.data(), range.size, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (p == MAP_FAILED) return -errno;
  if (p != range.data()) {
    // A kernel older than 4.17 takes MAP_FIXED_NOREPLACE as a hint.
    ::munmap(p, range.size);
    return -EEXIST;
  }
  return 0;
}

int protect_read_write(ByteRange range) {
  return ::mprotect(range.data(), range.size, PROT_READ | PROT_WRITE) == 0 ? 0 : -errno;
}

int release_address_range(ByteRange range) {
  return ::munmap(range.data(), range.size) == 0 ? 0 : -errno;
}

int advise(ByteRange range, int advice) {
  int r = 0;
  do {
    r = ::madvise(range.data(), range.size, advice);
  } while (r < 0 && (errno == EAGAIN || errno == EINTR));
  return r == 0 ? 0 : -errno;
}

}  // namespace pagetide::sys
