#pragma once

// Everything of the C API, for C11 and C++. The C++ API is in pagetide/pagetide.hpp.

#include "pagetide/allocator/arena_c.h"
#include "pagetide/allocator/safepoints_c.h"
#include "pagetide/base/error_c.h"
#include "pagetide/snapshot/snapshot_c.h"
#include "pagetide/tracker/tracker_c.h"
