#include "examples/package_index/plain_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
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

// An edge as seen from its target: who depends on it and how.
using BackEdge = std::pair<std::string, Dependency>;

bool before(const BackEdge& a, const BackEdge& b) {
  return std::tie(a.first, a.second.group, a.second.constraint, a.second.kind) <
         std::tie(b.first, b.second.group, b.second.constraint, b.second.kind);
}

std::map<std::string, std::vector<BackEdge>, std::less<>> back_edges(const PlainIndex& index) {
  std::map<std::string, std::vector<BackEdge>, std::less<>> by_target;
  for (const auto& [name, record] : index.records()) {
    for (const Dependency& dependency : record.dependencies) {
      by_target[dependency.target].emplace_back(name, dependency);
    }
  }
  for (auto& [target, edges] : by_target) std::sort(edges.begin(), edges.end(), before);
  return by_target;
}

std::vector<BackEdge> back_edges(const Package& package) {
  std::vector<BackEdge> edges;
  for (const Edge* edge : package.dependents) {
    edges.emplace_back(std::string(edge->from->name),
                       Dependency{std::string(edge->to->name), std::string(edge->constraint),
                                  edge->group, edge->kind});
  }
  std::sort(edges.begin(), edges.end(), before);
  return edges;
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
  const auto expected_back = back_edges(expected);
  graph.for_each([&](const Package& package) {
    if (package.has_record && !expected.records().contains(package.name)) {
      add(fmt::format("{} should not be there", package.name));
    }
    const auto back = expected_back.find(package.name);
    const bool same = back == expected_back.end() ? package.dependents.empty()
                                                  : back_edges(package) == back->second;
    if (!same) add(fmt::format("{}: the packages that depend on it are others", package.name));
  });
  for (const auto& [target, edges] : expected_back) {
    if (graph.find_name(target) == nullptr) {
      add(fmt::format("{} is missing, which {} depends on", target, edges.front().first));
    }
  }
  return found;
}

}  // namespace package_index
