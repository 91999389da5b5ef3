#pragma once

// Enumerators of the C API: what each number stands for. For the library's own *_c.cc files.

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "pagetide/base/error.h"

namespace pagetide::c_api {

template <typename T>
struct Meaning {
  int number;
  T value;
};

// C passes any number as an enumerator.
template <typename T, std::size_t count>
Result<T> meaning_of(int number, const std::array<Meaning<T>, count>& table,
                     std::string_view type) {
  for (const Meaning<T>& meaning : table) {
    if (meaning.number == number) return meaning.value;
  }
  return failure(ErrorCode::invalid_argument,
                 std::to_string(number).append(" is not a ").append(type).append("."));
}

template <typename T, std::size_t count>
int number_of(T value, const std::array<Meaning<T>, count>& table) {
  return std::find_if(table.begin(), table.end(),
                      [&](const Meaning<T>& meaning) { return meaning.value == value; })
      ->number;
}

// The names that to_string() gives are literals, so they end with a zero byte.
template <typename T, std::size_t count>
const char* name_of(int number, const std::array<Meaning<T>, count>& table) {
  for (const Meaning<T>& meaning : table) {
    if (meaning.number == number) return to_string(meaning.value).data();
  }
  return "unknown";
}

}  // namespace pagetide::c_api
