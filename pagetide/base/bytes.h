#pragma once

#include <cstddef>

namespace pagetide::literals {

constexpr std::size_t operator""_KiB(unsigned long long n) {
  return n << 10;
}
constexpr std::size_t operator""_MiB(unsigned long long n) {
  return n << 20;
}
constexpr std::size_t operator""_GiB(unsigned long long n) {
  return n << 30;
}
constexpr std::size_t operator""_TiB(unsigned long long n) {
  return n << 40;
}

}  // namespace pagetide::literals

namespace pagetide {

// `alignment` is a power of two. round_up wraps only where the result does not fit.
constexpr std::size_t round_down(std::size_t value, std::size_t alignment) {
  return value & ~(alignment - 1);
}
constexpr std::size_t round_up(std::size_t value, std::size_t alignment) {
  return round_down(value + alignment - 1, alignment);
}
constexpr bool is_power_of_two(std::size_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}
constexpr std::size_t divide_up(std::size_t value, std::size_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

}  // namespace pagetide
