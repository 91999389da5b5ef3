#include "pagetide/tracker/tracker_c.h"

#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "pagetide/base/c_border.h"
#include "pagetide/base/c_numbers.h"
#include "pagetide/base/c_structs.h"
#include "pagetide/tracker/backend_choice.h"
#include "pagetide/tracker/tracker.h"
#include "pagetide/tracker/tracker_c_handles.h"
#include "pagetide/tracker/tracker_c_numbers.h"
#include "pagetide/tracker/tracker_c_options.h"

using namespace pagetide::c_api;

namespace {

using pagetide::BackendKind;
using pagetide::ByteRange;
using pagetide::ConsumerId;
using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::page_size;
using pagetide::propagate;
using pagetide::Result;
using pagetide::Tracker;
using pagetide::TrackerStats;

Result<ByteRange> range_of(const void* address, std::size_t size) {
  const ByteRange range = ByteRange::of(address, size);
  if (range.end() >= range.begin) return range;
  return failure(ErrorCode::invalid_argument,
                 fmt::format("{} bytes at {} reach beyond the end of memory.", size, address));
}

// Calls use(a Tracker, a ByteRange), which returns Result<void>, for a range in memory.
template <typename Use>
int with_range(pagetide_tracker* tracker, const void* address, std::size_t size, Use&& use) {
  return at_border({{tracker, "tracker"}, {address, "address"}}, [&]() -> Result<void> {
    auto range = range_of(address, size);
    if (!range) return propagate(range);
    return use(tracker->tracker, *range);
  });
}

}  // namespace

// --- Back ends ---

const char* pagetide_backend_name(int backend) {
  return name_of(backend, kBackends);
}

const char* pagetide_prefill_name(int policy) {
  return name_of(policy, kPrefills);
}

int pagetide_check_backend(int backend) {
  return at_border({}, [&]() -> Result<void> {
    auto kind = meaning_of(backend, kBackends, "pagetide_backend");
    if (!kind) return propagate(kind);
    if (*kind == BackendKind::automatic) {
      return failure(ErrorCode::invalid_argument,
                     "PAGETIDE_BACKEND_AUTO is not one back end, so it cannot be checked; "
                     "pagetide_tracker_create() finds the best one that works.");
    }
    return pagetide::check_backend(*kind);
  });
}

size_t pagetide_page_size(void) {
  return page_size();
}

// --- A tracker ---

int pagetide_tracker_options_init(pagetide_tracker_options* options, size_t size) {
  return at_border({{options, "options"}}, [&] {
    return set_defaults(options, size, default_tracker_options(), "pagetide_tracker_options");
  });
}

int pagetide_tracker_create(const pagetide_tracker_options* options, pagetide_tracker** tracker) {
  return at_border({{tracker, "tracker"}}, [&]() -> Result<void> {
    auto known = tracker_options(options);
    if (!known) return propagate(known);
    auto created = Tracker::create(*known);
    if (!created) return propagate(created);
    *tracker = std::make_unique<pagetide_tracker>(std::move(*created)).release();
    return {};
  });
}

void pagetide_tracker_destroy(pagetide_tracker* tracker) {
  const KeptErrno kept_errno;
  delete tracker;
}

int pagetide_tracker_backend(const pagetide_tracker* tracker) {
  return at_border({{tracker, "tracker"}}, [&]() -> Result<int> {
    return number_of(tracker->tracker.backend(), kBackends);
  });
}

const char* pagetide_tracker_reason(const pagetide_tracker* tracker) {
  return at_border<const char*>({{tracker, "tracker"}}, [&]() -> Result<const char*> {
    return tracker->tracker.reason().c_str();
  });
}

int pagetide_tracker_get_stats(const pagetide_tracker* tracker, pagetide_tracker_stats* stats) {
  return at_border({{tracker, "tracker"}, {stats, "stats"}}, [&] {
    const TrackerStats now = tracker->tracker.stats();
    const pagetide_tracker_stats known = {
        sizeof known,        now.takes,           now.peeks,      now.pages_reported,
        now.pages_purged,    now.pages_unchanged, now.hot_blocks, now.poisoned_takes,
        now.last_collect_ns, now.total_collect_ns};
    return fill(stats, known, "pagetide_tracker_stats");
  });
}

// --- Watched ranges ---

int pagetide_tracker_watch(pagetide_tracker* tracker, void* address, size_t size,
                           pagetide_watch_id* watch) {
  if (watch == nullptr) return fail_for_null("watch");
  return with_range(tracker, address, size, [&](Tracker& t, ByteRange range) -> Result<void> {
    auto id = t.watch(range);
    if (!id) return propagate(id);
    *watch = to_c(*id);
    return {};
  });
}

int pagetide_tracker_unwatch(pagetide_tracker* tracker, pagetide_watch_id watch) {
  return at_border({{tracker, "tracker"}}, [&]() -> Result<void> {
    auto range = tracker->tracker.range(from_c(watch));
    if (!range) return propagate(range);
    tracker->tracker.unwatch(from_c(watch));
    return {};
  });
}

int pagetide_tracker_mark_dirty(pagetide_tracker* tracker, const void* address, size_t size) {
  return with_range(tracker, address, size, [](Tracker& t, ByteRange range) -> Result<void> {
    t.mark_dirty(range);
    return {};
  });
}

int pagetide_tracker_mark_always_dirty(pagetide_tracker* tracker, const void* address,
                                       size_t size) {
  return with_range(tracker, address, size, [](Tracker& t, ByteRange range) -> Result<void> {
    t.mark_always_dirty(range);
    return {};
  });
}

int pagetide_tracker_purge(pagetide_tracker* tracker, void* address, size_t size) {
  return with_range(tracker, address, size,
                    [](Tracker& t, ByteRange range) { return t.purge(range); });
}

int pagetide_tracker_note_purged(pagetide_tracker* tracker, const void* address, size_t size) {
  return with_range(tracker, address, size, [](Tracker& t, ByteRange range) -> Result<void> {
    t.note_purged(range);
    return {};
  });
}

int pagetide_tracker_prefill(pagetide_tracker* tracker, void* address, size_t size, int policy) {
  return with_range(tracker, address, size, [&](Tracker& t, ByteRange range) -> Result<void> {
    auto meant = meaning_of(policy, kPrefills, "pagetide_prefill");
    if (!meant) return propagate(meant);
    return t.prefill(range, *meant);
  });
}

// --- Consumers ---

int pagetide_tracker_add_consumer(pagetide_tracker* tracker, pagetide_consumer_id* consumer) {
  return at_border({{tracker, "tracker"}, {consumer, "consumer"}}, [&]() -> Result<void> {
    auto added = tracker->tracker.add_consumer();
    if (!added) return propagate(added);
    *consumer = added->value;
    return {};
  });
}

int pagetide_tracker_remove_consumer(pagetide_tracker* tracker, pagetide_consumer_id consumer) {
  return at_border({{tracker, "tracker"}}, [&]() -> Result<void> {
    tracker->tracker.remove_consumer(ConsumerId{consumer});
    return {};
  });
}
