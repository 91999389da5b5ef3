#include "pagetide/tracker/kernel/kernel_release.h"

#include <sys/utsname.h>

#include <charconv>

namespace pagetide {

KernelVersion parse_kernel_release(std::string_view release) {
  KernelVersion version;
  const char* at = release.data();
  const char* const end = release.data() + release.size();
  for (int* part : {&version.major, &version.minor, &version.patch}) {
    const auto [next, error] = std::from_chars(at, end, *part);
    if (error != std::errc{}) break;
    at = next;
    if (at == end || *at != '.') break;
    ++at;
  }
  return version;
}

std::string running_kernel_release() {
  utsname name{};
  return ::uname(&name) == 0 ? std::string(name.release) : std::string();
}

}  // namespace pagetide
