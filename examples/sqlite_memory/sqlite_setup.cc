#include "examples/sqlite_memory/sqlite_setup.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cstddef>

namespace sqlite_memory {

using pagetide::ErrorCode;
using pagetide::Result;

namespace {

// SQLite hands its allocator no context.
constinit pagetide::Heap* sqlite_heap = nullptr;

void* allocate(int bytes) {
  return sqlite_heap->allocate(static_cast<std::size_t>(bytes));
}

void deallocate(void* block) {
  sqlite_heap->deallocate(block);
}

void* reallocate(void* block, int bytes) {
  return sqlite_heap->reallocate(block, static_cast<std::size_t>(bytes));
}

int size_of(void* block) {
  return static_cast<int>(sqlite_heap->usable_size(block));
}

// SQLite reallocates in such steps; blocks of all sizes of the heap are multiples of 16.
int round_up(int bytes) {
  return static_cast<int>(pagetide::round_up(static_cast<std::size_t>(bytes), 16));
}

int nothing_to_begin(void* /*context*/) {
  return SQLITE_OK;
}

void nothing_to_end(void* /*context*/) {}

Result<void> set(const char* what, int status) {
  if (status == SQLITE_OK) return {};
  return pagetide::failure(
      ErrorCode::unsupported,
      fmt::format("SQLite {} refuses the setting {}: {}. It must be made before SQLite is used.",
                  sqlite3_libversion(), what, sqlite3_errstr(status)));
}

// One by one, so that what SQLite does not take is named.
Result<void> keep_everything_in_the_heap() {
  // One thread at a time uses SQLite: the others wait at their safepoints.
  if (auto r = set("SINGLETHREAD", sqlite3_config(SQLITE_CONFIG_SINGLETHREAD)); !r) return r;
  if (auto r = set("MEMSTATUS", sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0)); !r) return r;
  // No buffer, no pages allocated in advance.
  if (auto r = set("PAGECACHE", sqlite3_config(SQLITE_CONFIG_PAGECACHE, nullptr, 0, 0)); !r) {
    return r;
  }
  // A connection's lookaside buffer would come from the heap and be right, too; without it every
  // allocation is the heap's own.
  if (auto r = set("LOOKASIDE", sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0)); !r) return r;
  if (auto r = set("STMTJRNL_SPILL", sqlite3_config(SQLITE_CONFIG_STMTJRNL_SPILL, -1)); !r) {
    return r;
  }
  return set("no initialisation", sqlite3_initialize());
}

}  // namespace

Result<void> set_up_sqlite(pagetide::Arena& arena) {
  sqlite_heap = &arena.heap();
  static constexpr sqlite3_mem_methods kMethods = {
      .xMalloc = allocate,
      .xFree = deallocate,
      .xRealloc = reallocate,
      .xSize = size_of,
      .xRoundup = round_up,
      .xInit = nothing_to_begin,
      .xShutdown = nothing_to_end,
      .pAppData = nullptr,
  };
  if (auto r = set("MALLOC", sqlite3_config(SQLITE_CONFIG_MALLOC, &kMethods)); !r) return r;
  // Connections point to VFSs and functions. With SQLite in a shared library that is more than the
  // arena can check: what was stored opens in no other process.
  arena.set_holds_code_addresses();
  return keep_everything_in_the_heap();
}

Result<void> set_up_sqlite_without_arena() {
  return keep_everything_in_the_heap();
}

}  // namespace sqlite_memory
