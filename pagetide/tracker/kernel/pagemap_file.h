#pragma once

#include "pagetide/base/error.h"
#include "pagetide/base/unique_fd.h"

namespace pagetide {

// /proc/self/pagemap, with the way out in the error where it cannot be had.
Result<UniqueFd> open_own_pagemap();

}  // namespace pagetide
