#pragma once

// Everything of the C++ API. See README.md for a first program.

#include "pagetide/allocator/arena.h"
#include "pagetide/allocator/arena_deleter.h"
#include "pagetide/allocator/safepoints.h"
#include "pagetide/allocator/stl_allocator.h"
#include "pagetide/base/bytes.h"
#include "pagetide/base/error.h"
#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/snapshot/store.h"
#include "pagetide/snapshot/verify.h"
#include "pagetide/tracker/capabilities.h"
#include "pagetide/tracker/tracker.h"
