#include "pagetide/allocator/arena_c.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pagetide/allocator/arena.h"
#include "pagetide/allocator/arena_c_handle.h"
#include "pagetide/allocator/type_name.h"
#include "pagetide/base/c_border.h"
#include "pagetide/base/c_structs.h"

using namespace pagetide::c_api;

namespace {

using pagetide::Arena;
using pagetide::ByteRange;
using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::HeapStats;
using pagetide::propagate;
using pagetide::Result;
using pagetide::Root;
using pagetide::type_name_hash;

// Whether all of an object lies in the memory that blocks can have.
bool contains(const Arena& arena, const void* address, std::size_t size) {
  return arena.heap().owns(address) && arena.range().contains(ByteRange::of(address, size));
}

}  // namespace

// --- An arena ---

int pagetide_arena_create(const pagetide_arena_options* options, pagetide_arena** arena) {
  return at_border({{arena, "arena"}}, [&]() -> Result<void> {
    auto known = arena_options(options);
    if (!known) return propagate(known);
    auto created = Arena::create(known->arena);
    if (!created) return propagate(created);
    *arena = new_handle(std::move(*created), *known);
    return {};
  });
}

void pagetide_arena_destroy(pagetide_arena* arena) {
  const KeptErrno kept_errno;
  delete arena;
}

const char* pagetide_arena_name(const pagetide_arena* arena) {
  // Ends with a zero byte in the superblock.
  return at_border<const char*>(
      {{arena, "arena"}}, [&]() -> Result<const char*> { return arena->arena.name().data(); });
}

int pagetide_arena_range(const pagetide_arena* arena, pagetide_range* range) {
  return at_border({{arena, "arena"}, {range, "range"}}, [&]() -> Result<void> {
    *range = {arena->arena.range().data(), arena->arena.range().size};
    return {};
  });
}

// --- Memory ---

void* pagetide_arena_allocate(pagetide_arena* arena, size_t size) {
  return at_border<void*>({{arena, "arena"}}, [&] { return arena->arena.allocate(size); });
}

void* pagetide_arena_allocate_aligned(pagetide_arena* arena, size_t alignment, size_t size) {
  return at_border<void*>({{arena, "arena"}},
                          [&] { return arena->arena.allocate(size, alignment); });
}

void* pagetide_arena_allocate_zeroed(pagetide_arena* arena, size_t count, size_t size) {
  return at_border<void*>({{arena, "arena"}}, [&]() -> Result<void*> {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes)) {
      return failure(
          ErrorCode::out_of_memory,
          fmt::format("{} elements of {} bytes are more than memory can hold.", count, size));
    }
    return arena->arena.allocate_zeroed(bytes);
  });
}

void pagetide_arena_deallocate(pagetide_arena* arena, void* block) {
  (void)at_border({{arena, "arena"}}, [&]() -> Result<void> {
    arena->arena.deallocate(block);
    return {};
  });
}

size_t pagetide_arena_allocate_batch(pagetide_arena* arena, size_t size, void** blocks,
                                     size_t count) {
  if (count > 0 && blocks == nullptr) return failed<std::size_t>(fail_for_null("blocks"));
  return at_border<std::size_t>({{arena, "arena"}}, [&]() -> Result<std::size_t> {
    const std::size_t made = arena->arena.allocate_batch(size, {blocks, count});
    // Not a failure of the whole: the blocks are the caller's.
    if (made < count) {
      fail(ErrorCode::out_of_memory,
           fmt::format("the arena '{}' gave {} of {} blocks of {} bytes: its reservation or the "
                       "machine's memory is used up.",
                       arena->arena.name(), made, count, size));
    }
    return made;
  });
}

void pagetide_arena_deallocate_batch(pagetide_arena* arena, void* const* blocks, size_t count) {
  if (count > 0 && blocks == nullptr) return (void)fail_for_null("blocks");
  (void)at_border({{arena, "arena"}}, [&]() -> Result<void> {
    arena->arena.deallocate_batch({blocks, count});
    return {};
  });
}

void* pagetide_arena_reallocate(pagetide_arena* arena, void* block, size_t size) {
  return at_border<void*>({{arena, "arena"}}, [&] { return arena->arena.reallocate(block, size); });
}

void* pagetide_arena_reallocate_aligned(pagetide_arena* arena, void* block, size_t alignment,
                                        size_t size) {
  return at_border<void*>({{arena, "arena"}},
                          [&] { return arena->arena.reallocate(block, size, alignment); });
}

size_t pagetide_arena_usable_size(const pagetide_arena* arena, const void* block) {
  return at_border<std::size_t>({{arena, "arena"}}, [&]() -> Result<std::size_t> {
    return arena->arena.heap().usable_size(block);
  });
}

int pagetide_arena_owns(const pagetide_arena* arena, const void* address) {
  return at_border({{arena, "arena"}},
                   [&]() -> Result<int> { return arena->arena.heap().owns(address) ? 1 : 0; });
}

// --- Named roots ---

int pagetide_arena_set_root(pagetide_arena* arena, const char* name, const char* type,
                            void* address, size_t size) {
  const auto set = [&]() -> Result<void> {
    if (!contains(arena->arena, address, size)) {
      return failure(
          ErrorCode::invalid_argument,
          fmt::format("the {} bytes at {} do not lie in the arena, so they cannot be its "
                      "root '{}'.",
                      size, address, name));
    }
    return arena->arena.roots().set({name, address, type_name_hash(type), size});
  };
  return at_border({{arena, "arena"}, {name, "name"}, {type, "type"}, {address, "address"}}, set);
}

void* pagetide_arena_find_root(const pagetide_arena* arena, const char* name, const char* type,
                               size_t size) {
  const auto find = [&]() -> Result<void*> {
    auto root = arena->arena.roots().find(name);
    if (!root) return propagate(root);
    if (root->type_hash != type_name_hash(type) || root->size_bytes != size) {
      return failure(ErrorCode::identity_mismatch,
                     fmt::format("the root '{}' has {} bytes and was not set as '{}' with {}; use "
                                 "the type that set it.",
                                 name, root->size_bytes, type, size));
    }
    if (!contains(arena->arena, root->address, size)) {
      return failure(
          ErrorCode::damaged,
          fmt::format("the root '{}' does not lie in the arena; its snapshot is damaged.", name));
    }
    return root->address;
  };
  return at_border<void*>({{arena, "arena"}, {name, "name"}, {type, "type"}}, find);
}

int pagetide_arena_erase_root(pagetide_arena* arena, const char* name) {
  return at_border({{arena, "arena"}, {name, "name"}},
                   [&] { return arena->arena.roots().erase(name); });
}

// --- The heap as a whole ---

int pagetide_arena_for_each_allocation(const pagetide_arena* arena, pagetide_visit_allocation visit,
                                       void* context) {
  if (visit == nullptr) return fail_for_null("visit");
  return at_border({{arena, "arena"}}, [&]() -> Result<void> {
    arena->arena.heap().for_each_allocation(
        [&](void* block, std::size_t usable_size) { visit(block, usable_size, context); });
    return {};
  });
}

int pagetide_arena_get_stats(const pagetide_arena* arena, pagetide_arena_stats* stats) {
  return at_border({{arena, "arena"}, {stats, "stats"}}, [&] {
    const HeapStats now = arena->arena.heap().stats();
    const pagetide_arena_stats known = {sizeof known,     now.live_blocks, now.live_bytes,
                                        now.spans_in_use, now.heap_bytes,  now.idle_bytes,
                                        now.reserve_bytes};
    return fill(stats, known, "pagetide_arena_stats");
  });
}

int pagetide_arena_get_class_stats(const pagetide_arena* arena, pagetide_class_stats* classes,
                                   size_t count) {
  if (count > 0 && classes == nullptr) return fail_for_null("classes");
  return at_border({{arena, "arena"}}, [&]() -> Result<int> {
    const auto stats = arena->arena.heap().class_stats();
    for (std::size_t i = 0; i < std::min(count, stats.size()); ++i) {
      classes[i] = {stats[i].slot_bytes, stats[i].slots, stats[i].live, stats[i].spans};
    }
    return static_cast<int>(stats.size());
  });
}

size_t pagetide_arena_trim(pagetide_arena* arena) {
  return at_border<std::size_t>({{arena, "arena"}},
                                [&]() -> Result<std::size_t> { return arena->arena.trim(); });
}

int pagetide_arena_clear_free_memory(pagetide_arena* arena) {
  return at_border({{arena, "arena"}}, [&] { return arena->arena.heap().clear_free_memory(); });
}
