#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "examples/package_index/package_graph.h"

namespace package_index {

// Questions to the graph, answered from the arena's memory alone.

// Packages of which each needs the next one (depends or pre-depends, any alternative). Packages
// that need each other in a circle count as one: the first of them that was met stands for all.
using Chain = std::vector<std::string>;
Chain longest_chain(const PackageGraph& graph);

struct Answers {
  std::size_t packages = 0;
  std::size_t edges = 0;
  std::size_t only_named = 0;         // names that have no record
  std::string most_needed;            // the package with the most dependents
  std::size_t most_needed_count = 0;  // how many
  std::size_t libc6_dependents = 0;
  Chain longest_chain;

  friend bool operator==(const Answers&, const Answers&) = default;
};
Answers answer(const PackageGraph& graph);

struct PackageAnswer {
  std::string version;
  std::string section;
  std::string summary;
  std::vector<std::string> dependencies;  // what it names, once each, sorted
  std::size_t needed = 0;                 // packages reached over dependencies, itself not counted
  std::vector<std::string> dependents;    // once each, sorted
};
// Nothing when the index has no such package.
std::optional<PackageAnswer> answer(const PackageGraph& graph, std::string_view name);

}  // namespace package_index
