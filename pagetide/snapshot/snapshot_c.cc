#include "pagetide/snapshot/snapshot_c.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "pagetide/allocator/arena_c_handle.h"
#include "pagetide/allocator/safepoints_c_handle.h"
#include "pagetide/base/c_border.h"
#include "pagetide/base/c_structs.h"
#include "pagetide/snapshot/quiesce.h"
#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/snapshot/store_c_handle.h"

using namespace pagetide::c_api;

namespace {

using pagetide::Arena;
using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::propagate;
using pagetide::Quiesce;
using pagetide::Result;
using pagetide::RollbackStats;
using pagetide::Snapshotter;
using pagetide::SnapshotterOptions;
using pagetide::Store;

constexpr const char* kOptionsType = "pagetide_snapshotter_options";
constexpr std::uint64_t kSafepointLimitMs = 1000;
constexpr const char* kStatsType = "pagetide_rollback_stats";

pagetide_snapshotter_options default_options() {
  const SnapshotterOptions options;
  return {sizeof(pagetide_snapshotter_options),
          nullptr,
          nullptr,
          nullptr,
          options.staging_bytes,
          nullptr,
          kSafepointLimitMs};
}

Result<SnapshotterOptions> snapshotter_options(const pagetide_snapshotter_options* given) {
  if (given == nullptr) return SnapshotterOptions{};
  auto known = known_options(*given, default_options(), kOptionsType, "snapshotter");
  if (!known) return propagate(known);
  if ((known->pause == nullptr) != (known->resume == nullptr)) {
    return failure(ErrorCode::invalid_argument,
                   "the options pause and resume belong together: set both, or none where one "
                   "thread does everything.");
  }
  if (known->pause != nullptr && known->safepoints != nullptr) {
    return failure(
        ErrorCode::invalid_argument,
        "writers are held by the options pause and resume or by safepoints, not by both: "
        "set one of them.");
  }
  SnapshotterOptions options;
  options.staging_bytes = known->staging_bytes;
  if (known->safepoints != nullptr) {
    const auto limit =
        static_cast<std::int64_t>(std::min<std::uint64_t>(known->safepoint_limit_ms, INT64_MAX));
    options.quiesce =
        Quiesce::safepoint(known->safepoints->points, std::chrono::milliseconds(limit));
  }
  if (known->pause != nullptr) {
    void* const context = known->context;
    options.quiesce = Quiesce::caller([pause = known->pause, context] { pause(context); },
                                      [resume = known->resume, context] { resume(context); });
  }
  return options;
}

}  // namespace

struct pagetide_snapshotter {  // NOLINT(readability-identifier-naming)
  pagetide_snapshotter(Arena& arena, Store& store, SnapshotterOptions options)
      : snapshotter(arena, store, std::move(options)) {}
  Snapshotter snapshotter;
};

int pagetide_snapshotter_options_init(pagetide_snapshotter_options* options, size_t size) {
  return at_border({{options, "options"}},
                   [&] { return set_defaults(options, size, default_options(), kOptionsType); });
}

int pagetide_snapshotter_create(pagetide_arena* arena, pagetide_store* store,
                                const pagetide_snapshotter_options* options,
                                pagetide_snapshotter** snapshotter) {
  const auto create = [&]() -> Result<void> {
    auto known = snapshotter_options(options);
    if (!known) return propagate(known);
    *snapshotter =
        std::make_unique<pagetide_snapshotter>(arena->arena, store->store, std::move(*known))
            .release();
    return {};
  };
  return at_border({{arena, "arena"}, {store, "store"}, {snapshotter, "snapshotter"}}, create);
}

void pagetide_snapshotter_destroy(pagetide_snapshotter* snapshotter) {
  const KeptErrno kept_errno;
  delete snapshotter;
}

int pagetide_snapshotter_take(pagetide_snapshotter* snapshotter, pagetide_snapshot_id* id) {
  return at_border({{snapshotter, "snapshotter"}}, [&]() -> Result<void> {
    auto taken = snapshotter->snapshotter.take();
    if (!taken) return propagate(taken);
    if (id != nullptr) *id = taken->value;
    return {};
  });
}

int pagetide_snapshotter_rollback(pagetide_snapshotter* snapshotter, pagetide_snapshot_id id,
                                  pagetide_rollback_stats* stats) {
  return at_border({{snapshotter, "snapshotter"}}, [&]() -> Result<void> {
    // Before anything is done: a rollback that happened must not fail.
    if (stats != nullptr) {
      if (auto size = checked_size(stats->size, kStatsType); !size) return propagate(size);
    }
    auto done = snapshotter->snapshotter.rollback({id});
    if (!done) return propagate(done);
    if (stats == nullptr) return {};
    const pagetide_rollback_stats known = {sizeof known, done->restored_pages, done->zero_pages,
                                           done->stop_ns};
    return fill(stats, known, kStatsType);
  });
}
