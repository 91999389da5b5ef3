#include "pagetide/base/c_structs.h"

#include <string>

namespace pagetide::c_api {

Result<std::size_t> checked_size(std::size_t size, std::string_view type) {
  // Far above what any version will have; more is a member that was never set.
  constexpr std::size_t kMostBytes = 1024;
  if (size >= sizeof(size) && size <= kMostBytes) return size;
  const std::string name(type);
  return failure(ErrorCode::invalid_argument, "the size of a " + name + " cannot be " +
                                                  std::to_string(size) + "; set it to sizeof(" +
                                                  name + ").");
}

Result<void> check_unknown(const void* given, std::size_t given_bytes, std::size_t known_bytes,
                           std::string_view whose) {
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (std::size_t at = known_bytes; at < given_bytes; ++at) {
    if (bytes[at] == 0) continue;
    return failure(ErrorCode::unsupported,
                   "the " + std::string(whose) +
                       "'s options set something that this version of Pagetide does not have; "
                       "the program was compiled for a newer one.");
  }
  return {};
}

}  // namespace pagetide::c_api
