#pragma once

// What is behind the handles of safepoints_c.h. For the library's own *_c.cc files.

#include <string_view>

#include "pagetide/allocator/safepoints.h"
#include "pagetide/allocator/safepoints_c.h"

struct pagetide_safepoints {  // NOLINT(readability-identifier-naming)
  pagetide::Safepoints points;
};

struct pagetide_mutator {  // NOLINT(readability-identifier-naming)
  pagetide_mutator(pagetide::Safepoints& points, std::string_view name) : mutator(points, name) {}
  pagetide::Mutator mutator;
};
