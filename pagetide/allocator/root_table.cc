#include "pagetide/allocator/root_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

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
  const RankedLock lock(mutex_);
  const layout::RootEntry* entry = name.empty() ? nullptr : slot_of(name);
  if (entry == nullptr) {
    return failure(ErrorCode::not_found, fmt::format("the arena has no root named '{}'.", name));
  }
  return root_of(*entry);
}

Result<void> RootTable::insert(const Root& root) {
  if (root.name.empty() || root.name.size() >= layout::kRootNameBytes ||
      root.name.find('\0') != std::string::npos) {
    return failure(
        ErrorCode::invalid_argument,
        fmt::format("'{}' cannot name a root: a name has 1 to {} bytes and no zero byte.",
                    root.name, layout::kRootNameBytes - 1));
  }
  const RankedLock lock(mutex_);
  if (slot_of(root.name) != nullptr) {
    return failure(ErrorCode::already_exists,
                   fmt::format("the arena already has a root named '{}'.", root.name));
  }
  layout::RootEntry* free_entry = slot_of({});
  if (free_entry == nullptr) {
    return failure(
        ErrorCode::out_of_memory,
        fmt::format("all {} named roots of the arena are in use; keep further objects in a "
                    "container that is one root.",
                    layout::kRootCapacity));
  }
  free_entry->address = reinterpret_cast<std::uint64_t>(root.address);
  free_entry->type_hash = root.type_hash;
  free_entry->size_bytes = root.size_bytes;
  root.name.copy(free_entry->name.data(), free_entry->name.size());
  return {};
}

Result<void> RootTable::erase(std::string_view name) {
  const RankedLock lock(mutex_);
  layout::RootEntry* entry = name.empty() ? nullptr : slot_of(name);
  if (entry == nullptr) {
    return failure(ErrorCode::not_found, fmt::format("the arena has no root named '{}'.", name));
  }
  *entry = {};
  return {};
}

std::vector<Root> RootTable::list() const {
  const RankedLock lock(mutex_);
  std::vector<Root> roots;
  for (const layout::RootEntry& entry : std::span(entries_, layout::kRootCapacity)) {
    if (!name_of(entry).empty()) roots.push_back(root_of(entry));
  }
  return roots;
}

}  // namespace pagetide
