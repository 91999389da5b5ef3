#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pagetide/allocator/heap_layout.h"
#include "pagetide/base/error.h"
#include "pagetide/base/export.h"
#include "pagetide/base/fork_held.h"
#include "pagetide/base/lock_rank.h"

namespace pagetide {

class HeapChangeLog;

// A named object of an arena: where a new process begins to read.
struct Root {
  std::string name;
  void* address = nullptr;
  std::uint64_t type_hash = 0;
  std::uint64_t size_bytes = 0;
};

// The named roots of a heap: up to 256, names up to 39 bytes, kept in the region. Thread-safe.
// A thread at work on them is inside the heap (heap_activity.h): who stops it waits for the lock.
class PAGETIDE_API RootTable {
 public:
  // `entries` are the kRootCapacity entries in the region; changes to them are noted in `changes`,
  // unless it is nullptr.
  explicit RootTable(layout::RootEntry* entries, HeapChangeLog* changes = nullptr)
      : entries_(entries), changes_(changes) {}

  // not_found when there is none.
  Result<Root> find(std::string_view name) const;
  // already_exists, invalid_argument (name), out_of_memory (table full).
  Result<void> insert(const Root& root);
  // The same, but takes the place of a root that has the name already.
  Result<void> set(const Root& root);
  Result<void> erase(std::string_view name);
  std::vector<Root> list() const;

 private:
  layout::RootEntry* slot_of(std::string_view name) const;
  Result<void> fill_free(const Root& root);
  void note(const layout::RootEntry& entry) const;

  mutable RankedMutex mutex_{LockRank::heap_roots, "heap roots"};
  const ForkHeld held_over_fork_{mutex_};
  layout::RootEntry* entries_;
  HeapChangeLog* changes_;
};

}  // namespace pagetide
