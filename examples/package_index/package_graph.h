#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

#include "examples/package_index/package_record.h"

namespace package_index {

// Everything below lives in an arena: it allocates from the memory_resource it is given and
// points at nothing outside. A process that opens a snapshot uses it where it stands; there is no
// loading and no pointer to fix. No virtual functions, so that any build of the program may.

struct Package;

// One dependency. It is an element of from->dependencies, and to->dependents[slot] points at it,
// so that both directions are followed and undone in constant time.
struct Edge {
  using allocator_type = std::pmr::polymorphic_allocator<>;

  Edge(Package& from_package, Package& to_package, const Dependency& dependency,
       const allocator_type& allocator);
  Edge(const Edge&) = delete;
  Edge& operator=(const Edge&) = delete;

  Package* from;
  Package* to;
  std::size_t slot;
  std::pmr::string constraint;
  std::uint32_t group;
  DependencyKind kind;
};

// A package, or only the name of one: something depends on it, but the index has no record of it.
struct Package {
  using allocator_type = std::pmr::polymorphic_allocator<>;

  explicit Package(const allocator_type& allocator);
  Package(const Package&) = delete;
  Package& operator=(const Package&) = delete;

  std::string_view name;  // of the map's key, which stays where it is
  bool has_record = false;
  std::pmr::string version;
  std::pmr::string architecture;
  std::pmr::string section;
  std::pmr::string summary;
  // A list, because edges are pointed at and must not move.
  std::pmr::list<Edge> dependencies;
  std::pmr::vector<Edge*> dependents;  // in no order
};

// Name -> package, and who depends on whom. Not thread-safe. Memory that is not needed any more
// is given back at once. Throws std::bad_alloc when the arena is full; a change that was cut off
// so leaves the graph unusable, which a rollback puts right.
class PackageGraph {
 public:
  using allocator_type = std::pmr::polymorphic_allocator<>;

  explicit PackageGraph(const allocator_type& allocator) : packages_(allocator) {}
  PackageGraph(const PackageGraph&) = delete;
  PackageGraph& operator=(const PackageGraph&) = delete;

  // Adds the package, or replaces the one of that name.
  void put(const PackageRecord& record);
  // These two return false when there is no such package.
  bool remove(std::string_view name);
  bool change_version(std::string_view name, std::string_view version);

  // nullptr when the index has no record of it.
  const Package* find(std::string_view name) const;
  // Also what is only a name.
  const Package* find_name(std::string_view name) const;
  // All of them, also those that are only a name, in the order of names.
  void for_each(const std::function<void(const Package&)>& visit) const;

  std::size_t package_count() const { return package_count_; }
  std::size_t name_count() const { return packages_.size(); }
  std::size_t edge_count() const { return edge_count_; }

  // Copies into plain containers.
  std::vector<std::string> names() const;
  PackageRecord record(std::string_view name) const;  // there must be one

  // What is wrong with the structure in itself; empty when nothing is.
  std::string check() const;

 private:
  Package& package_named(std::string_view name);
  void add_edge(Package& from, const Dependency& dependency);
  void drop_edges(Package& from);
  void erase_if_unused(const Package& package);

  std::pmr::map<std::pmr::string, Package, std::less<>> packages_;
  std::size_t package_count_ = 0;
  std::size_t edge_count_ = 0;
};

}  // namespace package_index
