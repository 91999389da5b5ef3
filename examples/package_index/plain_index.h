#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "examples/package_index/package_graph.h"
#include "examples/package_index/package_record.h"

namespace package_index {

// The same content as a PackageGraph as plainly as possible: what the graph is compared with.
class PlainIndex {
 public:
  void put(const PackageRecord& record) { records_[record.name] = record; }
  bool remove(std::string_view name);
  bool change_version(std::string_view name, std::string_view version);

  std::vector<std::string> names() const;
  PackageRecord record(std::string_view name) const { return records_.find(name)->second; }

  const std::map<std::string, PackageRecord, std::less<>>& records() const { return records_; }

 private:
  std::map<std::string, PackageRecord, std::less<>> records_;
};

// In what the graph differs from what is expected, one sentence each, at most `max_count`; and
// what is wrong with the graph in itself. Empty: every record, every string and every edge is
// there in both directions, and nothing else.
std::vector<std::string> differences(const PackageGraph& graph, const PlainIndex& expected,
                                     std::size_t max_count = 10);

}  // namespace package_index
