#pragma once

#include <string>
#include <string_view>

#include "pagetide/base/export.h"

namespace pagetide {

// PAGETIDE_DISABLE=name,name pretends that the machine lacks something, so that every fallback
// can be tried: a back end by its name, or what back ends are made of (userfaultfd, pagemap,
// pagemap_scan, procmap_query). Ignored in programs that gained privileges. Read at each call.
PAGETIDE_API bool is_disabled(std::string_view feature);

// All names that can be given, separated by ", ".
PAGETIDE_API std::string disabled_feature_names();

// The names in PAGETIDE_DISABLE that stand for nothing, separated by ", "; empty when all do.
PAGETIDE_API std::string unknown_disabled_features();

}  // namespace pagetide
