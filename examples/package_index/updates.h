#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "examples/package_index/package_record.h"

namespace package_index {

// Both forms of the index.
template <typename T>
concept UpdatableIndex = requires(T index, const T& constant, const PackageRecord& record,
                                  std::string_view text) {
  { constant.names() } -> std::same_as<std::vector<std::string>>;
  { constant.record(text) } -> std::same_as<PackageRecord>;
  index.put(record);
  { index.remove(text) } -> std::same_as<bool>;
  { index.change_version(text, text) } -> std::same_as<bool>;
};

enum class Fate : std::uint8_t { keep, change_version, remove, remove_and_add_again };

// What becomes of a package in a round (counted from 1). Depends on nothing else, so that two
// indexes with the same packages stay the same, whatever they are made of. About one package in
// a hundred is touched, as by a day of updates.
Fate fate_of(std::string_view name, std::uint64_t round);

// "1.2-3" -> "1.2-3+round4"; the mark of an earlier round is replaced.
std::string later_version(std::string_view version, std::uint64_t round);

// Applies a round of updates: new versions, removals, and packages that come back after all
// removals as a later version and without their last dependency. Calls `applied` after each
// single change.
template <UpdatableIndex Index, std::invocable Applied>
void apply_round(Index& index, std::uint64_t round, Applied&& applied) {
  std::vector<PackageRecord> come_back;
  for (const std::string& name : index.names()) {
    const Fate fate = fate_of(name, round);
    if (fate == Fate::keep) continue;
    if (fate == Fate::change_version) {
      index.change_version(name, later_version(index.record(name).version, round));
    } else {
      if (fate == Fate::remove_and_add_again) come_back.push_back(index.record(name));
      index.remove(name);
    }
    applied();
  }
  for (PackageRecord& record : come_back) {
    record.version = later_version(record.version, round);
    if (!record.dependencies.empty()) record.dependencies.pop_back();
    index.put(record);
    applied();
  }
}

}  // namespace package_index
