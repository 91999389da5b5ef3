#pragma once

// What the tests of the C API of stores and snapshots take for granted.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "pagetide/pagetide.h"
#include "pagetide/snapshot/store_c_handle.h"
#include "tests/allocator/arena_c_support.h"
#include "tests/support/arena_image.h"
#include "tests/support/c_api.h"
#include "tests/support/must.h"
#include "tests/support/temporary_directory.h"

namespace pagetide {

using StoreHandle = std::unique_ptr<pagetide_store, decltype(&pagetide_store_close)>;
using SnapshotterHandle =
    std::unique_ptr<pagetide_snapshotter, decltype(&pagetide_snapshotter_destroy)>;

inline StoreHandle open_store(const std::string& path, int mode = PAGETIDE_STORE_CREATE_OR_WRITE) {
  pagetide_store* store = nullptr;
  must_c(pagetide_store_open(path.c_str(), mode, &store));
  return {store, pagetide_store_close};
}

inline pagetide_snapshotter_options default_snapshotter_options() {
  pagetide_snapshotter_options options;
  must_c(pagetide_snapshotter_options_init(&options, sizeof options));
  return options;
}

inline SnapshotterHandle create_snapshotter(
    const ArenaHandle& arena, const StoreHandle& store,
    const pagetide_snapshotter_options& options = default_snapshotter_options()) {
  pagetide_snapshotter* snapshotter = nullptr;
  must_c(pagetide_snapshotter_create(arena.get(), store.get(), &options, &snapshotter));
  return {snapshotter, pagetide_snapshotter_destroy};
}

inline pagetide_snapshot_id take(const SnapshotterHandle& snapshotter) {
  pagetide_snapshot_id id = 0;
  must_c(pagetide_snapshotter_take(snapshotter.get(), &id));
  return id;
}

inline ArenaHandle open_arena(const StoreHandle& store, pagetide_snapshot_id id,
                              const pagetide_arena_options& options = small_arena()) {
  pagetide_arena* arena = nullptr;
  must_c(pagetide_store_open_arena(store.get(), id, &options, &arena));
  return {arena, pagetide_arena_destroy};
}

// A block of whole pages, filled with a byte.
inline std::byte* filled_pages(const ArenaHandle& arena, std::size_t count, int fill) {
  void* block = pagetide_arena_allocate(arena.get(), count * page_size());
  if (block == nullptr) must_c(pagetide_last_error());
  return static_cast<std::byte*>(std::memset(block, fill, count * page_size()));
}

// How the arena's memory differs from a snapshot, by the C++ API; "" when it does not.
inline std::string difference_to(const ArenaHandle& arena, const StoreHandle& store,
                                 pagetide_snapshot_id id) {
  return difference(image_of(arena->arena), must(image_of(store->store, SnapshotId{id})));
}

// An arena, its store and its snapshotter.
class SnapshotCTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::string path_ = directory_.file("store");
  StoreHandle store_ = open_store(path_);
  ArenaHandle arena_ = create_arena();
  SnapshotterHandle snapshotter_ = create_snapshotter(arena_, store_);
};

}  // namespace pagetide
