#pragma once

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "pagetide/base/page_range.h"

namespace pagetide {

// A line of /proc/self/status in kB, such as "VmPTE"; 0 when there is none.
inline std::size_t status_kib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoul(line.substr(field.size() + 1));
  }
  return 0;
}

// Whether no page of the range is mapped.
inline bool is_unmapped(ByteRange range) {
  std::vector<unsigned char> resident(1);
  for (std::uintptr_t at = range.begin; at < range.end(); at += page_size()) {
    const int r = ::mincore(reinterpret_cast<void*>(at), page_size(), resident.data());  // NOLINT
    if (r == 0 || errno != ENOMEM) return false;
  }
  return true;
}

// Pages of the range that are in memory.
inline std::size_t resident_pages(ByteRange range) {
  std::vector<unsigned char> resident(range.size / page_size());
  if (::mincore(range.data(), range.size, resident.data()) != 0) return 0;
  std::size_t count = 0;
  for (const unsigned char page : resident) count += page & 1U;
  return count;
}

// Locks the range into memory. The sanitizers turn the C library's function into nothing.
inline bool lock_memory(ByteRange range) {
  return ::syscall(SYS_mlock, range.data(), range.size) == 0;
}

// While it lives, the process can make no more than 1 MiB of further memory writable.
class NoMoreMemory {
 public:
  NoMoreMemory() {
    ::getrlimit(RLIMIT_DATA, &before_);
    rlimit less = before_;
    less.rlim_cur = (status_kib("VmData") << 10U) + (std::size_t{1} << 20U);
    ::setrlimit(RLIMIT_DATA, &less);
  }
  NoMoreMemory(const NoMoreMemory&) = delete;
  NoMoreMemory& operator=(const NoMoreMemory&) = delete;
  ~NoMoreMemory() { ::setrlimit(RLIMIT_DATA, &before_); }

 private:
  rlimit before_{};
};

// The VmFlags of the mapping that holds an address, as in /proc/PID/smaps: " rd wr mr ".
inline std::string mapping_flags(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream fields(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    if (fields >> std::hex >> begin >> dash >> end && dash == '-') {
      inside = ByteRange{begin, end - begin}.contains(reinterpret_cast<std::uintptr_t>(address));
    } else if (inside && line.rfind("VmFlags:", 0) == 0) {
      return line.substr(8) + " ";
    }
  }
  return {};
}

}  // namespace pagetide
