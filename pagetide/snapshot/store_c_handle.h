#pragma once

// What is behind the handle of a store. For the library's own *_c.cc files.

#include <utility>

#include "pagetide/snapshot/snapshot_c.h"
#include "pagetide/snapshot/store.h"

// At one address for its life, so that a Snapshotter can refer to the Store.
struct pagetide_store {  // NOLINT(readability-identifier-naming)
  explicit pagetide_store(pagetide::Store s) : store(std::move(s)) {}
  pagetide::Store store;
};
