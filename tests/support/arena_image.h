#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "pagetide/allocator/arena.h"
#include "pagetide/snapshot/store.h"

namespace pagetide {

// The in-memory reference of a snapshot: every page of an arena that is not zero, by number.
// The run-time page is not in it, as it is in no snapshot.
using ArenaImage = std::map<std::size_t, std::string>;

// Reads all pages the heap says are in use, without any tracker. Under ClearPolicy::deferred free
// bytes count as zero, as they do in its snapshots.
ArenaImage image_of(const Arena& arena);
// What the store gives for a snapshot.
Result<ArenaImage> image_of(Store& store, SnapshotId id);
// "page 3 differs, page 7 is missing, ..." or "" when they are equal.
std::string difference(const ArenaImage& expected, const ArenaImage& actual);

}  // namespace pagetide
