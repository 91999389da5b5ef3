#include "bench/heap/process_facts.h"

#include <dlfcn.h>

#include <fstream>
#include <string_view>

#include "bench/heap/own_table.h"

namespace pagetide::bench {

namespace {

// "VmHWM:     1234 kB"
std::size_t kib_of(std::string_view field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(field)) continue;
    const std::size_t all = std::stoull(line.substr(field.size()));
    return all - std::min(all, own_table_bytes() / 1024);
  }
  return 0;
}

}  // namespace

std::size_t resident_kib() {
  return kib_of("VmRSS:");
}

std::size_t peak_resident_kib() {
  return kib_of("VmHWM:");
}

std::string malloc_library() {
  Dl_info facts{};
  const void* address = ::dlsym(RTLD_DEFAULT, "malloc");
  if (address == nullptr || ::dladdr(address, &facts) == 0) return {};
  return facts.dli_fname;
}

}  // namespace pagetide::bench
