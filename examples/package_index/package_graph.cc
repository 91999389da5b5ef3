#include "examples/package_index/package_graph.h"

#include <fmt/format.h>

#include <tuple>
#include <utility>

namespace package_index {

namespace {

// clear() keeps the memory, and so may the assignment of an empty string.
void release(std::pmr::string& text) {
  std::pmr::string(text.get_allocator()).swap(text);
}

std::string check_edges(const Package& package) {
  for (const Edge& edge : package.dependencies) {
    if (edge.from != &package) return fmt::format("an edge of {} starts elsewhere", package.name);
    if (edge.slot >= edge.to->dependents.size() || edge.to->dependents[edge.slot] != &edge) {
      return fmt::format("{} does not know that {} depends on it", edge.to->name, package.name);
    }
  }
  for (std::size_t slot = 0; slot < package.dependents.size(); ++slot) {
    const Edge& edge = *package.dependents[slot];
    if (edge.to != &package || edge.slot != slot) {
      return fmt::format("dependent {} of {} is an edge to elsewhere", slot, package.name);
    }
  }
  return {};
}

}  // namespace

Edge::Edge(Package& from_package, Package& to_package, const Dependency& dependency,
           const allocator_type& allocator)
    : from(&from_package),
      to(&to_package),
      slot(to_package.dependents.size()),
      constraint(dependency.constraint, allocator),
      group(dependency.group),
      kind(dependency.kind) {}

Package::Package(const allocator_type& allocator)
    : version(allocator),
      architecture(allocator),
      section(allocator),
      summary(allocator),
      dependencies(allocator),
      dependents(allocator) {}

Package& PackageGraph::package_named(std::string_view name) {
  if (const auto found = packages_.find(name); found != packages_.end()) return found->second;
  const auto [made, is_new] =
      packages_.emplace(std::piecewise_construct, std::forward_as_tuple(name), std::tuple<>());
  made->second.name = made->first;
  return made->second;
}

void PackageGraph::add_edge(Package& from, const Dependency& dependency) {
  Package& to = package_named(dependency.target);
  Edge& edge = from.dependencies.emplace_back(from, to, dependency);
  to.dependents.push_back(&edge);
  ++edge_count_;
}

void PackageGraph::drop_edges(Package& from) {
  while (!from.dependencies.empty()) {
    const Edge& edge = from.dependencies.front();
    Package& to = *edge.to;
    Edge* last = to.dependents.back();
    last->slot = edge.slot;
    to.dependents[edge.slot] = last;
    to.dependents.pop_back();
    from.dependencies.pop_front();
    --edge_count_;
    erase_if_unused(to);
  }
}

void PackageGraph::erase_if_unused(const Package& package) {
  if (package.has_record || !package.dependents.empty()) return;
  packages_.erase(packages_.find(package.name));
}

void PackageGraph::put(const PackageRecord& record) {
  Package& package = package_named(record.name);
  if (!package.has_record) ++package_count_;
  package.has_record = true;
  drop_edges(package);
  package.version.assign(record.version);
  package.architecture.assign(record.architecture);
  package.section.assign(record.section);
  package.summary.assign(record.summary);
  for (const Dependency& dependency : record.dependencies) add_edge(package, dependency);
}

bool PackageGraph::remove(std::string_view name) {
  const auto found = packages_.find(name);
  if (found == packages_.end() || !found->second.has_record) return false;
  Package& package = found->second;
  drop_edges(package);
  package.has_record = false;
  --package_count_;
  for (auto* text : {&package.version, &package.architecture, &package.section, &package.summary}) {
    release(*text);
  }
  erase_if_unused(package);
  return true;
}

bool PackageGraph::change_version(std::string_view name, std::string_view version) {
  const auto found = packages_.find(name);
  if (found == packages_.end() || !found->second.has_record) return false;
  found->second.version.assign(version);
  return true;
}

const Package* PackageGraph::find_name(std::string_view name) const {
  const auto found = packages_.find(name);
  return found == packages_.end() ? nullptr : &found->second;
}

const Package* PackageGraph::find(std::string_view name) const {
  const Package* package = find_name(name);
  return package != nullptr && package->has_record ? package : nullptr;
}

void PackageGraph::for_each(const std::function<void(const Package&)>& visit) const {
  for (const auto& [name, package] : packages_) visit(package);
}

std::vector<std::string> PackageGraph::names() const {
  std::vector<std::string> names;
  names.reserve(package_count_);
  for_each([&](const Package& package) {
    if (package.has_record) names.emplace_back(package.name);
  });
  return names;
}

PackageRecord PackageGraph::record(std::string_view name) const {
  const Package& package = packages_.find(name)->second;
  PackageRecord record;
  record.name = package.name;
  record.version = package.version;
  record.architecture = package.architecture;
  record.section = package.section;
  record.summary = package.summary;
  for (const Edge& edge : package.dependencies) {
    record.dependencies.push_back(
        {std::string(edge.to->name), std::string(edge.constraint), edge.group, edge.kind});
  }
  return record;
}

std::string PackageGraph::check() const {
  std::size_t records = 0;
  std::size_t edges = 0;
  std::size_t dependents = 0;
  for (const auto& [name, package] : packages_) {
    if (package.name.data() != name.data() || package.name.size() != name.size()) {
      return fmt::format("{} carries another name than its key", name);
    }
    if (!package.has_record && !package.dependencies.empty()) {
      return fmt::format("{} has dependencies, but no record", name);
    }
    if (!package.has_record && package.dependents.empty()) {
      return fmt::format("{} has no record and nothing depends on it", name);
    }
    if (std::string problem = check_edges(package); !problem.empty()) return problem;
    records += package.has_record ? 1 : 0;
    edges += package.dependencies.size();
    dependents += package.dependents.size();
  }
  if (records != package_count_ || edges != edge_count_ || dependents != edge_count_) {
    return fmt::format("counted {} packages, {} edges and {} back; it says {} and {}", records,
                       edges, dependents, package_count_, edge_count_);
  }
  return {};
}

}  // namespace package_index
