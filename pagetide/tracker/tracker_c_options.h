#pragma once

// The options of tracker_c.h. For the library's own *_c.cc files.

#include "pagetide/base/error.h"
#include "pagetide/tracker/tracker.h"
#include "pagetide/tracker/tracker_c.h"

namespace pagetide::c_api {

pagetide_tracker_options default_tracker_options();

// What they say, which may be null for the defaults.
Result<TrackerOptions> tracker_options(const pagetide_tracker_options* given);

}  // namespace pagetide::c_api
