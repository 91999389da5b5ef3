#include "pagetide/base/fatal.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "pagetide/base/standard_error.h"

namespace pagetide {

void fatal(std::string_view message) {
  write_standard_error({message});
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
  write_standard_error({before, "0x", {digits + sizeof(digits) - used, used}, after});
  std::abort();
}

}  // namespace pagetide
