#include "bench/heap/stop_worker.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace pagetide::bench {

void stop_worker(const char* why) {
  std::array<char, 2> line_end = {'\n', '\0'};
  const std::array<iovec, 2> parts = {
      {{const_cast<char*>(why), std::strlen(why)}, {line_end.data(), 1}}};
  // Nobody is left to tell of a failing write.
  [[maybe_unused]] const ssize_t n = ::writev(STDERR_FILENO, parts.data(), parts.size());
  ::_exit(1);
}

}  // namespace pagetide::bench
