#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <ostream>
#include <string>

#include "tests/support/file_of_text.h"
#include "tests/support/io_ring.h"

namespace pagetide {

inline constexpr std::size_t kKernelWriterBytes = 100;

// Each writes so many bytes of 'k' at the address by some system call; false where it did not.
struct KernelWriter {
  const char* name;
  std::function<bool(char* target)> write;
};

// For messages of GoogleTest.
inline void PrintTo(const KernelWriter& writer, std::ostream* out) {
  *out << writer.name;
}

inline bool through_socket(const std::function<ssize_t(int, char*)>& receive, char* target) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) return false;
  const UniqueFd near_end(ends[0]);
  const UniqueFd far_end(ends[1]);
  const std::string text(kKernelWriterBytes, 'k');
  if (::write(far_end.get(), text.data(), kKernelWriterBytes) != ssize_t{kKernelWriterBytes})
    return false;
  return receive(near_end.get(), target) == ssize_t{kKernelWriterBytes};
}

inline const KernelWriter kKernelWriters[] = {
    {"read",
     [](char* target) {
       return through_socket([](int fd, char* t) { return ::read(fd, t, kKernelWriterBytes); },
                             target);
     }},
    {"recv",
     [](char* target) {
       return through_socket([](int fd, char* t) { return ::recv(fd, t, kKernelWriterBytes, 0); },
                             target);
     }},
    {"readv",
     [](char* target) {
       return through_socket(
           [](int fd, char* t) {
             const iovec parts[] = {{t, 30}, {t + 30, kKernelWriterBytes - 30}};
             return ::readv(fd, parts, 2);
           },
           target);
     }},
    {"pread",
     [](char* target) {
       const FileOfText file;
       return ::pread(file.open(O_RDONLY).get(), target, kKernelWriterBytes, 5) ==
              ssize_t{kKernelWriterBytes};
     }},
    {"io_uring",
     [](char* target) {
       return through_socket(
           [](int fd, char* t) { return IoRing().read(fd, t, kKernelWriterBytes); }, target);
     }},
    {"process_vm_writev",
     [](char* target) {
       std::string text(kKernelWriterBytes, 'k');
       const iovec local{text.data(), kKernelWriterBytes};
       const iovec remote{target, kKernelWriterBytes};
       return ::process_vm_writev(::getpid(), &local, 1, &remote, 1, 0) ==
              ssize_t{kKernelWriterBytes};
     }},
    {"proc_self_mem",
     [](char* target) {
       const std::string text(kKernelWriterBytes, 'k');
       const UniqueFd memory(::open("/proc/self/mem", O_RDWR | O_CLOEXEC));
       return ::pwrite(memory.get(), text.data(), kKernelWriterBytes,
                       static_cast<off_t>(reinterpret_cast<std::uintptr_t>(target))) ==
              ssize_t{kKernelWriterBytes};
     }},
};

}  // namespace pagetide
