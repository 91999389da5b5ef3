#include "pagetide/base/fatal.h"

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace pagetide {

namespace {

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n <= 0) return;  // nothing better to do on the way to abort
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace

void fatal(std::string_view message) {
  write_all("pagetide: ");
  write_all(message);
  write_all("\n");
  std::abort();
}

void fatal_at(std::string_view before, const void* address, std::string_view after) {
  char digits[2 * sizeof(std::uintptr_t)];
  std::size_t used = 0;
  auto value = reinterpret_cast<std::uintptr_t>(address);
  do {
    digits[sizeof(digits) - ++used] = "0123456789abcdef"[value & 15U];
    value >>= 4U;
  } while (value != 0);
  write_all("pagetide: ");
  write_all(before);
  write_all("0x");
  write_all({digits + sizeof(digits) - used, used});
  write_all(after);
  write_all("\n");
  std::abort();
}

}  // namespace pagetide
