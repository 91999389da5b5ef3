#include "examples/package_index/package_record.h"

#include <string_view>

namespace package_index {

namespace {

// FNV-1a.
std::uint64_t hash_byte(std::uint64_t hash, unsigned char byte) {
  return (hash ^ byte) * 0x100000001b3ULL;
}

std::uint64_t hash_text(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = hash_byte(hash, static_cast<unsigned char>(c));
  // An end that no text contains, so that "ab","c" and "a","bc" differ.
  return hash_byte(hash, 0);
}

}  // namespace

std::uint64_t hash_record(std::uint64_t hash, const PackageRecord& record) {
  if (hash == 0) hash = 0xcbf29ce484222325ULL;
  hash = hash_text(hash, record.name);
  hash = hash_text(hash, record.version);
  hash = hash_text(hash, record.architecture);
  hash = hash_text(hash, record.section);
  hash = hash_text(hash, record.summary);
  for (const Dependency& dependency : record.dependencies) {
    hash = hash_text(hash, dependency.target);
    hash = hash_text(hash, dependency.constraint);
    hash = hash_text(hash, std::to_string(dependency.group));
    hash = hash_byte(hash, static_cast<unsigned char>(dependency.kind));
  }
  return hash_byte(hash, '\n');
}

}  // namespace package_index
