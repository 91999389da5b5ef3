#pragma once

// What is behind the handles of tracker_c.h. For the library's own *_c.cc files.

#include <utility>
#include <vector>

#include "pagetide/tracker/tracker.h"
#include "pagetide/tracker/tracker_c.h"

struct pagetide_tracker {  // NOLINT(readability-identifier-naming)
  explicit pagetide_tracker(pagetide::Tracker t) : tracker(std::move(t)) {}
  pagetide::Tracker tracker;
};

struct pagetide_collected {  // NOLINT(readability-identifier-naming)
  pagetide::Collected value;
  std::vector<pagetide::ByteRange> parts;  // of the latest collect; kept for its memory
};

namespace pagetide::c_api {

// 0 is kept for "no watch", which is what forgotten C variables hold.
inline pagetide_watch_id to_c(WatchId id) {
  return id.value + 1;
}
inline WatchId from_c(pagetide_watch_id id) {
  return WatchId{id - 1};
}

}  // namespace pagetide::c_api
