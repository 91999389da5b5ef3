#pragma once

#include <optional>
#include <string>

#include "pagetide/base/error.h"
#include "pagetide/snapshot/store.h"

namespace pagetide::cli {

// The positional arguments of a verb as they were given; empty: left out.
struct Positionals {
  std::string first;
  std::string second;
};

struct StoreArgument {
  std::string path;
  std::optional<SnapshotId> snapshot;  // nothing: the latest
  bool has_snapshot = false;           // whether one was named at all, be it "latest"
};

// Reads `[STORE] [ID]`, STORE being PAGETIDE_STORE when it is left out. A single argument is the
// ID when PAGETIDE_STORE is set, the argument reads as an ID (digits or "latest") and no
// directory has that name; else it is the STORE. invalid_argument when there is no store, or the
// ID is none.
Result<StoreArgument> read_store_and_id(const Positionals& positionals);
// Reads `[STORE]`.
Result<StoreArgument> read_store(const std::string& positional);

Result<Store> open_for_reading(const StoreArgument& argument);
// The named snapshot, or the latest.
Result<SnapshotInfo> find_snapshot(Store& store, const StoreArgument& argument);

}  // namespace pagetide::cli
