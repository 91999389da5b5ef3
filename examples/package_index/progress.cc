#include "examples/package_index/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "examples/package_index/updates.h"

namespace package_index {

using pagetide::propagate;
using pagetide::Result;

namespace {

tl::unexpected<pagetide::Error> input_changed(const PackageSource& source, const char* how) {
  return pagetide::failure(
      pagetide::ErrorCode::invalid_argument,
      fmt::format(
          "{} is not what the index in the store was loaded from: {}. The package lists were "
          "refreshed, or --input names another file. Give the same input again, or remove the "
          "store to begin anew.",
          source.name(), how));
}

}  // namespace

Result<std::vector<PackageRecord>> read_done_records(PackageSource& source,
                                                     const Progress& progress) {
  std::vector<PackageRecord> records;
  records.reserve(progress.records_done);
  std::uint64_t hash = 0;
  while (records.size() < progress.records_done) {
    PackageRecord record;
    auto more = source.next(record);
    if (!more) return propagate(more);
    if (!*more) return input_changed(source, "it has fewer records");
    hash = hash_record(hash, record);
    records.push_back(std::move(record));
  }
  if (hash != progress.records_hash) return input_changed(source, "its records differ");
  return records;
}

Result<Replay> Replay::read(const std::string& input, const Progress& progress) {
  auto source = PackageSource::open(input);
  if (!source) return propagate(source);
  auto records = read_done_records(*source, progress);
  if (!records) return propagate(records);
  if (progress.load_complete && progress.load_limit == 0) {
    PackageRecord surplus;
    auto more = source->next(surplus);
    if (!more) return propagate(more);
    if (*more) return input_changed(*source, "it has more records");
  }
  return Replay(std::move(*records));
}

PlainIndex Replay::at(const Progress& progress) const {
  PlainIndex index;
  const std::size_t count = std::min<std::size_t>(progress.records_done, records_.size());
  for (std::size_t i = 0; i < count; ++i) index.put(records_[i]);
  for (std::uint64_t round = 1; round <= progress.rounds_done; ++round) {
    apply_round(index, round, [] {});
  }
  return index;
}

}  // namespace package_index
