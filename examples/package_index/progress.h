#pragma once

#include <cstdint>
#include <vector>

#include "examples/package_index/package_record.h"
#include "examples/package_index/package_source.h"
#include "examples/package_index/plain_index.h"
#include "pagetide/base/error.h"

namespace package_index {

// How far the work has come. Lives in the arena beside the index, so that every snapshot holds
// both as they belong together, and a new process goes on exactly where its snapshot stands.
struct Progress {
  std::uint64_t records_done = 0;
  std::uint64_t records_hash = 0;  // hash_record over these
  std::uint64_t load_limit = 0;    // of the completed load; 0: the whole input
  std::uint64_t rounds_done = 0;   // of updates, after the load
  bool load_complete = false;
};

// Reads again the records that are in the index already, and stands behind them. invalid_argument
// when they are others: the input changed meanwhile.
pagetide::Result<std::vector<PackageRecord>> read_done_records(PackageSource& source,
                                                               const Progress& progress);

// A fresh parse, for comparisons: what the index must be like when it has come that far. The
// progress must be that of an index loaded from this input.
class Replay {
 public:
  // The path as in PackageSource::open. Errors as read_done_records; also when the input goes on
  // after a load that took all of it.
  static pagetide::Result<Replay> read(const std::string& input, const Progress& progress);

  // The progress may be an earlier one than the one read for.
  PlainIndex at(const Progress& progress) const;

 private:
  explicit Replay(std::vector<PackageRecord> records) : records_(std::move(records)) {}
  std::vector<PackageRecord> records_;
};

}  // namespace package_index
