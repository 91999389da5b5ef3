#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "pagetide/snapshot/snapshot_id.h"
#include "tools/cli/output.h"

namespace pagetide::cli {

// Members appear in the order in which they were added.
using Json = nlohmann::ordered_json;

// Sizes and counts are numbers; addresses and hashes, which do not fit a double, are strings in
// hexadecimal.
Json to_json(const SnapshotInfo& info);

// Indented, with a newline at the end. Bytes that are no UTF-8 are replaced by U+FFFD.
void print_json(const Json& value, Output& out);

}  // namespace pagetide::cli
