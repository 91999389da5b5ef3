#include "examples/package_index/updates.h"

namespace package_index {

namespace {

constexpr std::string_view kMark = "+round";

// FNV-1a, and a finishing step: its low bits alone are too regular for names that differ in one
// character.
std::uint64_t draw(std::string_view name, std::uint64_t round) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ round;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  hash ^= hash >> 32;
  hash *= 0x9e3779b97f4a7c15ULL;
  return hash >> 32;
}

}  // namespace

Fate fate_of(std::string_view name, std::uint64_t round) {
  const std::uint64_t lot = draw(name, round) % 1000;
  if (lot < 6) return Fate::change_version;
  if (lot < 8) return Fate::remove_and_add_again;
  if (lot < 10) return Fate::remove;
  return Fate::keep;
}

std::string later_version(std::string_view version, std::uint64_t round) {
  std::string later(version.substr(0, version.rfind(kMark)));
  later += kMark;
  later += std::to_string(round);
  return later;
}

}  // namespace package_index
