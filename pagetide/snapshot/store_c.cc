#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "pagetide/allocator/arena_c_handle.h"
#include "pagetide/base/c_border.h"
#include "pagetide/base/c_numbers.h"
#include "pagetide/snapshot/snapshot_c.h"
#include "pagetide/snapshot/store.h"
#include "pagetide/snapshot/store_c_handle.h"

// The part of the C API that opens stores and reads them.

using namespace pagetide::c_api;

namespace {

using pagetide::OpenArenaOptions;
using pagetide::propagate;
using pagetide::Result;
using pagetide::SnapshotInfo;
using pagetide::SnapshotList;
using pagetide::Store;
using pagetide::StoreMode;
using pagetide::StoreOptions;

constexpr std::array<Meaning<StoreMode>, 3> kStoreModes = {{
    {PAGETIDE_STORE_CREATE_OR_WRITE, StoreMode::create_or_write},
    {PAGETIDE_STORE_WRITE, StoreMode::write},
    {PAGETIDE_STORE_READ, StoreMode::read},
}};
static_assert(kStoreModes.size() == static_cast<std::size_t>(StoreMode::read) + 1);

// Lives as long as the info that it points into.
pagetide_snapshot_info to_c(const SnapshotInfo& info) {
  return {sizeof(pagetide_snapshot_info),
          info.id.value,
          info.parent.value,
          info.created_ns,
          info.arena.c_str(),
          info.page_bytes,
          info.region_base,
          info.reserve_bytes,
          info.image_pages,
          info.reported_pages,
          info.changed_pages,
          info.zero_pages,
          info.bytes_written,
          info.stop_ns,
          info.heap_bytes,
          info.holds_code_addresses ? 1 : 0,
          info.free_bytes_are_zero ? 1 : 0};
}

}  // namespace

int pagetide_store_open(const char* path, int mode, pagetide_store** store) {
  return at_border({{path, "path"}, {store, "store"}}, [&]() -> Result<void> {
    auto meant = meaning_of(mode, kStoreModes, "pagetide_store_mode");
    if (!meant) return propagate(meant);
    auto opened = Store::open(path, StoreOptions{.mode = *meant});
    if (!opened) return propagate(opened);
    *store = std::make_unique<pagetide_store>(std::move(*opened)).release();
    return {};
  });
}

void pagetide_store_close(pagetide_store* store) {
  const KeptErrno kept_errno;
  delete store;
}

int pagetide_store_latest(pagetide_store* store, pagetide_snapshot_id* id) {
  return at_border({{store, "store"}, {id, "id"}}, [&]() -> Result<void> {
    auto latest = store->store.latest();
    if (!latest) return propagate(latest);
    *id = latest->value;
    return {};
  });
}

int pagetide_store_snapshots(pagetide_store* store, pagetide_visit_snapshot visit, void* context) {
  if (visit == nullptr) return fail_for_null("visit");
  return at_border({{store, "store"}}, [&]() -> Result<void> {
    SnapshotList list = store->store.snapshots();
    for (const SnapshotInfo& info : list.snapshots) {
      const pagetide_snapshot_info seen = to_c(info);
      visit(&seen, context);
    }
    if (list.problems.empty()) return {};
    return tl::unexpected(std::move(list.problems.front()));
  });
}

int pagetide_store_open_arena(pagetide_store* store, pagetide_snapshot_id id,
                              const pagetide_arena_options* options, pagetide_arena** arena) {
  return at_border({{store, "store"}, {arena, "arena"}}, [&]() -> Result<void> {
    auto known = arena_options(options);
    if (!known) return propagate(known);
    const OpenArenaOptions open_options = {
        .clear = known->arena.clear,
        .prefill = known->arena.prefill,
        .backend = known->arena.backend,
        .hot_pages = known->arena.hot_pages,
        .on_corruption = known->arena.on_corruption,
        .slack_percent = known->arena.slack_percent,
        .ignore_program_identity = known->ignore_program_identity};
    auto opened = store->store.open_arena({id}, open_options);
    if (!opened) return propagate(opened);
    *arena = new_handle(std::move(*opened), *known);
    return {};
  });
}
