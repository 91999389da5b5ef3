#include "pagetide/base/page_range.h"

#include <unistd.h>

namespace pagetide {

std::size_t page_size() {
  static const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace pagetide
