#pragma once

// Structs of the C API whose first member, `size`, says how much of them the program knows. For
// the library's own *_c.cc files.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "pagetide/base/error.h"

namespace pagetide::c_api {

// What the caller may know of such a struct.
Result<std::size_t> checked_size(std::size_t size, std::string_view type);

// Fails where options set what only a newer library knows: where a byte behind those known here is
// not zero. `whose` options they are is for the message.
Result<void> check_unknown(const void* given, std::size_t given_bytes, std::size_t known_bytes,
                           std::string_view whose);

// Sets the first `size` bytes of *options to the defaults, and to zero what is not known here.
template <typename Options>
Result<void> set_defaults(Options* options, std::size_t size, Options defaults,
                          std::string_view type) {
  static_assert(std::is_trivially_copyable_v<Options>);
  auto checked = checked_size(size, type);
  if (!checked) return propagate(checked);
  defaults.size = size;
  std::memset(static_cast<void*>(options), 0, size);
  std::memcpy(static_cast<void*>(options), &defaults, std::min(size, sizeof defaults));
  return {};
}

// The part of `given` that this library knows, over the defaults.
template <typename Options>
Result<Options> known_options(const Options& given, Options defaults, std::string_view type,
                              std::string_view whose) {
  static_assert(std::is_trivially_copyable_v<Options>);
  auto size = checked_size(given.size, type);
  if (!size) return propagate(size);
  std::memcpy(&defaults, &given, std::min(*size, sizeof defaults));
  if (auto r = check_unknown(&given, *size, sizeof defaults, whose); !r) return propagate(r);
  return defaults;
}

// Fills *answer, whose `size` its caller has set. What the library does not know is set to 0, and
// left out of the `size` that it stores.
template <typename Answer>
Result<void> fill(Answer* answer, Answer known, std::string_view type) {
  static_assert(std::is_trivially_copyable_v<Answer>);
  auto size = checked_size(answer->size, type);
  if (!size) return propagate(size);
  known.size = std::min(*size, sizeof known);
  std::memset(static_cast<void*>(answer), 0, *size);
  std::memcpy(static_cast<void*>(answer), &known, known.size);
  return {};
}

}  // namespace pagetide::c_api
