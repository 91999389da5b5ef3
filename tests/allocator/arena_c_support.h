#pragma once

// What the tests of the C API of arenas take for granted.

#include <cstddef>
#include <cstring>
#include <memory>

#include "pagetide/allocator/arena_c_handle.h"
#include "pagetide/pagetide.h"
#include "tests/support/c_api.h"
#include "tests/support/must.h"

namespace pagetide {

using ArenaHandle = std::unique_ptr<pagetide_arena, decltype(&pagetide_arena_destroy)>;

inline pagetide_arena_options small_arena(const char* name = "c") {
  pagetide_arena_options options;
  must_c(pagetide_arena_options_init(&options, sizeof options));
  options.name = name;
  options.reserve_bytes = std::size_t{64} << 20;
  return options;
}

inline ArenaHandle create_arena(const pagetide_arena_options& options = small_arena()) {
  pagetide_arena* arena = nullptr;
  must_c(pagetide_arena_create(&options, &arena));
  return {arena, pagetide_arena_destroy};
}

// The same arena for the C++ API, which tells whether C did what it should.
inline Arena& cpp(const ArenaHandle& handle) {
  return handle->arena;
}

// Whether pages that are written in every epoch are found hot.
inline bool adapts_to_hot_pages(const ArenaHandle& arena) {
  constexpr std::size_t kBytes = std::size_t{8} << 20;
  void* block = pagetide_arena_allocate(arena.get(), kBytes);
  for (int round = 1; round <= 5; ++round) {
    std::memset(block, round, kBytes);
    must(cpp(arena).tracker().collect(cpp(arena).region().watch(), CollectMode::take));
  }
  return cpp(arena).tracker().stats().hot_blocks > 0;
}

}  // namespace pagetide
