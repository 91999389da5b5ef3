#include "examples/package_index/plain_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

namespace package_index {

bool PlainIndex::remove(std::string_view name) {
  const auto found = records_.find(name);
  if (found == records_.end()) return false;
  records_.erase(found);
  return true;
}

bool PlainIndex::change_version(std::string_view name, std::string_view version) {
  const auto found = records_.find(name);
  if (found == records_.end()) return false;
  found->second.version = version;
  return true;
}

std::vector<std::string> PlainIndex::names() const {
  std::vector<std::string> names;
  names.reserve(records_.size());
  for (const auto& [name, record] : records_) names.push_back(name);
  return names;
}

namespace {

// Who depends on a package, once for each dependency, sorted. How, the forward edges tell.
using Dependents = std::vector<std::string_view>;

std::map<std::string_view, Dependents> dependents_in(const PlainIndex& index) {
  std::unordered_map<std::string_view, Dependents> by_target;
  for (const auto& [name, record] : index.records()) {
    for (const Dependency& dependency : record.dependencies) {
      by_target[dependency.target].push_back(name);  // in the order of names
    }
  }
  return {by_target.begin(), by_target.end()};
}

Dependents dependents_of(const Package& package) {
  Dependents dependents;
  dependents.reserve(package.dependents.size());
  for (const Edge* edge : package.dependents) dependents.push_back(edge->from->name);
  std::sort(dependents.begin(), dependents.end());
  return dependents;
}

std::string describe_difference(const PackageRecord& actual, const PackageRecord& expected) {
  const auto text = [&](std::string_view what, const std::string& a, const std::string& b) {
    return fmt::format("{}: {} is '{}' and should be '{}'", expected.name, what, a, b);
  };
  if (actual.version != expected.version) return text("version", actual.version, expected.version);
  if (actual.architecture != expected.architecture) {
    return text("architecture", actual.architecture, expected.architecture);
  }
  if (actual.section != expected.section) return text("section", actual.section, expected.section);
  if (actual.summary != expected.summary) return text("summary", actual.summary, expected.summary);
  return fmt::format("{}: its {} dependencies are not the {} that it should have", expected.name,
                     actual.dependencies.size(), expected.dependencies.size());
}

}  // namespace

std::vector<std::string> differences(const PackageGraph& graph, const PlainIndex& expected,
                                     std::size_t max_count) {
  // What follows relies on edges that lead somewhere.
  if (std::string problem = graph.check(); !problem.empty()) return {std::move(problem)};
  std::vector<std::string> found;
  const auto add = [&](std::string text) {
    if (found.size() < max_count) found.push_back(std::move(text));
  };
  for (const auto& [name, record] : expected.records()) {
    if (graph.find(name) == nullptr) {
      add(fmt::format("{} is missing", name));
    } else if (const PackageRecord actual = graph.record(name); actual != record) {
      add(describe_difference(actual, record));
    }
  }
  const auto expected_dependents = dependents_in(expected);
  graph.for_each([&](const Package& package) {
    if (package.has_record && !expected.records().contains(package.name)) {
      add(fmt::format("{} should not be there", package.name));
    }
    const auto dependents = expected_dependents.find(package.name);
    const bool same = dependents == expected_dependents.end()
                          ? package.dependents.empty()
                          : dependents_of(package) == dependents->second;
    if (!same) add(fmt::format("{}: the packages that depend on it are others", package.name));
  });
  for (const auto& [target, dependents] : expected_dependents) {
    if (graph.find_name(target) == nullptr) {
      add(fmt::format("{} is missing, which {} depends on", target, dependents.front()));
    }
  }
  return found;
}

}  // namespace package_index
