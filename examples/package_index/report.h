#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "examples/package_index/queries.h"
#include "pagetide/snapshot/snapshot_id.h"

namespace package_index {

using Milliseconds = std::chrono::duration<double, std::milli>;

class Stopwatch {
 public:
  Milliseconds elapsed() const { return std::chrono::steady_clock::now() - start_; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::string grouped(std::uint64_t number);     // "1,234,567"
std::string human_bytes(std::uint64_t bytes);  // "1.2 MiB"

// What the program tells, on standard output. Every line is out before the program goes on,
// because it may be killed at any moment.
class Report {
 public:
  explicit Report(bool is_quiet) : is_quiet_(is_quiet) {}

  void line(std::string_view text) const;
  void answers(const Answers& answers) const;
  void package(const PackageGraph& graph, std::string_view name) const;
  // One row of the table of snapshots; the first call prints its head.
  void snapshot(const pagetide::SnapshotInfo& info, std::string_view after, Milliseconds commit);

 private:
  bool is_quiet_;
  bool has_head_ = false;
};

}  // namespace package_index
