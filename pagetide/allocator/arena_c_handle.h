#pragma once

// What is behind the handle and the options of arena_c.h. For the library's own *_c.cc files.

#include <utility>

#include "pagetide/allocator/arena.h"
#include "pagetide/allocator/arena_c.h"
#include "pagetide/base/error.h"

// At one address for its life, so that a Snapshotter can refer to the Arena.
struct pagetide_arena {  // NOLINT(readability-identifier-naming)
  explicit pagetide_arena(pagetide::Arena a) : arena(std::move(a)) {}
  pagetide::Arena arena;
};

namespace pagetide::c_api {

struct KnownArenaOptions {
  ArenaOptions arena = {};
  bool holds_code_addresses = false;
  bool ignore_program_identity = false;
};

// What they say, which may be null for the defaults.
Result<KnownArenaOptions> arena_options(const pagetide_arena_options* given);

// A handle for an arena that was made with these options.
pagetide_arena* new_handle(Arena arena, const KnownArenaOptions& options);

}  // namespace pagetide::c_api
