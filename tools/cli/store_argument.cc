#include "tools/cli/store_argument.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace pagetide::cli {

namespace {

constexpr std::string_view kLatest = "latest";

bool reads_as_id(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return text == kLatest || (!text.empty() && std::all_of(text.begin(), text.end(), is_digit));
}

bool is_directory(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

std::string store_of_environment() {
  const char* value = std::getenv("PAGETIDE_STORE");
  return value == nullptr ? std::string() : std::string(value);
}

Result<void> set_snapshot(StoreArgument& argument, const std::string& text) {
  argument.has_snapshot = true;
  if (text == kLatest) return {};
  SnapshotId id;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, id.value);
  if (!reads_as_id(text) || error != std::errc{} || stop != end) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("'{}' is no snapshot: name one by its number, as `pagetide log` "
                               "shows it, or by the word 'latest'.",
                               text));
  }
  argument.snapshot = id;
  return {};
}

}  // namespace

Result<StoreArgument> read_store_and_id(const Positionals& positionals) {
  StoreArgument argument;
  argument.path = positionals.first;
  std::string id = positionals.second;
  const bool is_single_id =
      id.empty() && reads_as_id(argument.path) && !is_directory(argument.path);
  if (is_single_id) id = std::exchange(argument.path, {});
  if (argument.path.empty()) argument.path = store_of_environment();
  if (argument.path.empty() && is_single_id) {
    return failure(
        ErrorCode::invalid_argument,
        fmt::format("'{0}' reads as a snapshot, and no directory has that name. Name the "
                    "store in front of it, or set PAGETIDE_STORE; a store that is called "
                    "'{0}' is './{0}'.",
                    id));
  }
  if (argument.path.empty()) {
    return failure(ErrorCode::invalid_argument,
                   "which store? Name its directory, or set PAGETIDE_STORE.");
  }
  if (!id.empty()) {
    if (auto r = set_snapshot(argument, id); !r) return propagate(r);
  }
  return argument;
}

Result<StoreArgument> read_store(const std::string& positional) {
  StoreArgument argument;
  argument.path = positional.empty() ? store_of_environment() : positional;
  if (argument.path.empty()) {
    return failure(ErrorCode::invalid_argument,
                   "which store? Name its directory, or set PAGETIDE_STORE.");
  }
  return argument;
}

Result<Store> open_for_reading(const StoreArgument& argument) {
  StoreOptions options;
  options.mode = StoreMode::read;
  return Store::open(argument.path, options);
}

Result<SnapshotInfo> find_snapshot(Store& store, const StoreArgument& argument) {
  if (argument.snapshot) return store.info(*argument.snapshot);
  Result<SnapshotId> latest = store.latest();
  if (!latest) return propagate(latest);
  return store.info(*latest);
}

}  // namespace pagetide::cli
