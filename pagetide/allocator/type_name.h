#pragma once

#include <cstdint>
#include <string_view>

namespace pagetide {

// The type's name as this compiler spells it, without run-time type information.
template <typename T>
constexpr std::string_view type_name() {
  return __PRETTY_FUNCTION__;
}

// FNV-1a of the name: stable over builds with the same compiler, which is what a root's type
// check needs. It guards against mistakes, not against an adversary.
template <typename T>
constexpr std::uint64_t type_hash() {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : type_name<T>()) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace pagetide
