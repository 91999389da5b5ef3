#pragma once

#include <cstdint>
#include <string_view>

namespace pagetide {

// The type's name as this compiler spells it, without run-time type information.
template <typename T>
constexpr std::string_view type_name() {
  return __PRETTY_FUNCTION__;
}

// FNV-1a of a type's name. It guards against mistakes, not against an adversary.
constexpr std::uint64_t type_name_hash(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

// Stable over builds with the same compiler, which is what a root's type check needs.
template <typename T>
constexpr std::uint64_t type_hash() {
  return type_name_hash(type_name<T>());
}

}  // namespace pagetide
