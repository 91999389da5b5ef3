#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace package_index {

// What is kept of a package, in plain containers: as it comes out of the parser, and as the
// comparison at the end holds it. The same in the arena is Package (package_graph.h).

enum class DependencyKind : std::uint8_t { pre_depends, depends, recommends };

struct Dependency {
  std::string target;
  std::string constraint;   // ">= 2.34"; empty: any version
  std::uint32_t group = 0;  // "a | b": alternatives share a group; groups count from 0
  DependencyKind kind = DependencyKind::depends;

  friend bool operator==(const Dependency&, const Dependency&) = default;
};

struct PackageRecord {
  std::string name;
  std::string version;
  std::string architecture;
  std::string section;
  std::string summary;
  std::vector<Dependency> dependencies;

  friend bool operator==(const PackageRecord&, const PackageRecord&) = default;
};

// Continues a hash over records; begin with 0. Equal for equal records in equal order.
std::uint64_t hash_record(std::uint64_t hash, const PackageRecord& record);

}  // namespace package_index
