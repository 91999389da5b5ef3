#include "pagetide/allocator/root_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "pagetide/allocator/heap_activity.h"
#include "pagetide/allocator/heap_change_log.h"

namespace pagetide {

namespace {

std::string_view name_of(const layout::RootEntry& entry) {
  // The bytes may come from a damaged store: the terminator is not taken for granted.
  const auto* const end = std::find(entry.name.begin(), entry.name.end(), '\0');
  return {entry.name.data(), static_cast<std::size_t>(end - entry.name.begin())};
}

Root root_of(const layout::RootEntry& entry) {
  return {std::string(name_of(entry)), reinterpret_cast<void*>(entry.address),  // NOLINT
          entry.type_hash, entry.size_bytes};
}

}  // namespace

layout::RootEntry* RootTable::slot_of(std::string_view name) const {
  for (layout::RootEntry& entry : std::span(entries_, layout::kRootCapacity)) {
    if (name_of(entry) == name) return &entry;
  }
  return nullptr;
}

Result<Root> RootTable::find(std::string_view name) const {
  const InHeap in_heap;
  const RankedLock lock(mutex_);
  const layout::RootEntry* entry = name.empty() ? nullptr : slot_of(name);
  if (entry == nullptr) {
    return failure(ErrorCode::not_found, fmt::format("the arena has no root named '{}'.", name));
  }
  return root_of(*entry);
}

namespace {

Result<void> check_name(const std::string& name) {
  if (!name.empty() && name.size() < layout::kRootNameBytes &&
      name.find('\0') == std::string::npos) {
    return {};
  }
  return failure(ErrorCode::invalid_argument,
                 fmt::format("'{}' cannot name a root: a name has 1 to {} bytes and no zero byte.",
                             name, layout::kRootNameBytes - 1));
}

void point_to(layout::RootEntry& entry, const Root& root) {
  entry.address = reinterpret_cast<std::uint64_t>(root.address);
  entry.type_hash = root.type_hash;
  entry.size_bytes = root.size_bytes;
}

}  // namespace

void RootTable::note(const layout::RootEntry& entry) const {
  if (changes_ != nullptr) changes_->note_root(static_cast<std::size_t>(&entry - entries_));
}

// Under the lock.
Result<void> RootTable::fill_free(const Root& root) {
  layout::RootEntry* free_entry = slot_of({});
  if (free_entry == nullptr) {
    return failure(
        ErrorCode::out_of_memory,
        fmt::format("all {} named roots of the arena are in use; keep further objects in a "
                    "container that is one root.",
                    layout::kRootCapacity));
  }
  note(*free_entry);
  point_to(*free_entry, root);
  root.name.copy(free_entry->name.data(), free_entry->name.size());
  return {};
}

Result<void> RootTable::insert(const Root& root) {
  if (auto r = check_name(root.name); !r) return r;
  const InHeap in_heap;
  const RankedLock lock(mutex_);
  if (slot_of(root.name) != nullptr) {
    return failure(ErrorCode::already_exists,
                   fmt::format("the arena already has a root named '{}'.", root.name));
  }
  return fill_free(root);
}

Result<void> RootTable::set(const Root& root) {
  if (auto r = check_name(root.name); !r) return r;
  const InHeap in_heap;
  const RankedLock lock(mutex_);
  layout::RootEntry* entry = slot_of(root.name);
  if (entry == nullptr) return fill_free(root);
  note(*entry);
  point_to(*entry, root);
  return {};
}

Result<void> RootTable::erase(std::string_view name) {
  const InHeap in_heap;
  const RankedLock lock(mutex_);
  layout::RootEntry* entry = name.empty() ? nullptr : slot_of(name);
  if (entry == nullptr) {
    return failure(ErrorCode::not_found, fmt::format("the arena has no root named '{}'.", name));
  }
  note(*entry);
  *entry = {};
  return {};
}

std::vector<Root> RootTable::list() const {
  const InHeap in_heap;
  const RankedLock lock(mutex_);
  std::vector<Root> roots;
  for (const layout::RootEntry& entry : std::span(entries_, layout::kRootCapacity)) {
    if (!name_of(entry).empty()) roots.push_back(root_of(entry));
  }
  return roots;
}

}  // namespace pagetide
