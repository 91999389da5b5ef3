#pragma once

// The arena for C: a heap that comes back at the same addresses, with every pointer in it valid, by
// rollback in this process or by opening a snapshot in a new one (snapshot_c.h). The manual pages
// begin with pagetide_arena(3).
//
// Errors are those of base/error_c.h.
//
// What may be stored: plain data, and pointers into the same arena. What may not: pointers out of
// the arena (they dangle in the next process), mutexes that are held, file descriptors. Function
// pointers are addresses of code: they work only in the same build of the program loaded at the
// same address; see the option holds_code_addresses.
//
// Threads. The functions on an arena may be called from any thread at the same time, but for
// pagetide_arena_destroy() and those whose comment says "alone". Nothing here may be called from a
// signal handler, and a thread must not be cancelled (pthread_cancel) in a call.
//
// fork(). A forked child can use and destroy its copy of the arena, but cannot take snapshots of
// it.
//
// Sizes are in bytes.

#include <stddef.h>
#include <stdint.h>

#include "pagetide/base/error_c.h"
#include "pagetide/base/export.h"
#include "pagetide/tracker/tracker_c.h"

// NOLINTBEGIN(readability-identifier-naming): names of a C API

#ifdef __cplusplus
extern "C" {
#endif

// --- An arena ---

typedef struct pagetide_arena pagetide_arena;

// What becomes of freed memory.
typedef enum pagetide_clear_policy {
  PAGETIDE_CLEAR_ON_FREE = 0,  // every freed byte is cleared at once
  PAGETIDE_CLEAR_NEVER = 1,    // freed bytes stay until they are overwritten
  // Cleared at once where the page is dirty already in this epoch, else before it is used again;
  // free bytes are zero in every snapshot.
  PAGETIDE_CLEAR_DEFERRED = 2
} pagetide_clear_policy;

// For a new arena, and for one that is opened (pagetide_store_open_arena()). Fill it with
// pagetide_arena_options_init() and change what you want. Later versions append members, for which
// zero means the behaviour of before.
typedef struct pagetide_arena_options {
  size_t size;  // of the struct, as the program was compiled; set by the init function
  // These three are recorded in snapshots, so they are only for new arenas.
  const char* name;      // up to 63 bytes, for people; null: "arena", the default
  size_t reserve_bytes;  // address space: the most it can ever hold. Default: 16 GiB
  uintptr_t base;        // 0, the default: chosen; else a multiple of 64 KiB
  int clear;             // a pagetide_clear_policy. Default: PAGETIDE_CLEAR_DEFERRED
  int prefill;           // a pagetide_prefill. Default: PAGETIDE_PREFILL_ZERO_PAGE
  int backend;           // a pagetide_backend. Default: PAGETIDE_BACKEND_AUTO
  // As in pagetide_tracker_options: for arenas that keep writing the same pages.
  int adapt_to_hot_pages;
  uint32_t hot_stale_page_ns;
  uint32_t hot_fault_ns;
  uint32_t hot_ioctl_ns;
  uint32_t hot_relearn_takes;
  // Not 0: the arena holds function pointers or other addresses of code, so that its snapshots
  // open only in the same build of the program loaded at the same address. Cannot be taken back:
  // an arena that was opened has it when its snapshot has. Default: 0.
  int holds_code_addresses;
  // Not 0: opens one that holds code addresses in any program; all those addresses dangle.
  // Default: 0.
  int ignore_program_identity;
  // How much memory may stay free so that fewer pages get dirty; 0 to 50. Default: 20.
  uint32_t slack_percent;
  // Null, the default: freeing what is not allocated aborts the process with a message on standard
  // error. Else this is called, by the thread that frees and before anything was changed, with the
  // message, which is good until it returns, the block and corruption_context; the free is ignored.
  // It may use the arena, and must return. A double free by two threads that is found only later
  // aborts in any case.
  void (*on_corruption)(const char* message, const void* block, void* context);
  void* corruption_context;
} pagetide_arena_options;

// Sets the first `size` bytes to the defaults. `size` is sizeof(pagetide_arena_options) as the
// caller knows it: more or less than the library's is fine, from sizeof(size_t) to 1024. O(size).
PAGETIDE_API int pagetide_arena_options_init(pagetide_arena_options* options, size_t size);

// Stores a new arena, which the caller owns, in *arena. `options` may be null for the defaults;
// they are not kept. Members beyond options->size have their defaults. Errors: ADDRESS_TAKEN;
// UNSUPPORTED where options set what a newer library has and this one does not; what the back end
// lacks (see pagetide_check_backend()).
PAGETIDE_API int pagetide_arena_create(const pagetide_arena_options* options,
                                       pagetide_arena** arena);

// Unmaps everything and frees the handle. Null is fine. No other thread may be using it, and its
// snapshotter is destroyed before.
PAGETIDE_API void pagetide_arena_destroy(pagetide_arena* arena);

// Its name. Belongs to the arena; null on an error. O(1).
PAGETIDE_API const char* pagetide_arena_name(const pagetide_arena* arena);

// Stores where it is and how much is reserved in *range. O(1).
PAGETIDE_API int pagetide_arena_range(const pagetide_arena* arena, pagetide_range* range);

// --- Memory ---

// Like malloc(3) and its relatives, but that errno is never changed and a failure is null and an
// error: OUT_OF_MEMORY where the reservation or the machine is exhausted. Blocks are aligned to 16
// bytes, their content is unspecified, and no bytes are a block of their own, never null.
PAGETIDE_API void* pagetide_arena_allocate(pagetide_arena* arena, size_t size);

// The same, aligned to `alignment`, a power of two up to 1 GiB.
PAGETIDE_API void* pagetide_arena_allocate_aligned(pagetide_arena* arena, size_t alignment,
                                                   size_t size);

// A block for `count` elements of `size` bytes, all zero: OUT_OF_MEMORY also where the product is
// no size. Memory that is known to be zero is not written to.
PAGETIDE_API void* pagetide_arena_allocate_zeroed(pagetide_arena* arena, size_t count, size_t size);

// Frees a block. Null is fine. What is not allocated aborts the process with a message on standard
// error: the heap is proven to be corrupt. The option on_corruption reports it instead.
PAGETIDE_API void pagetide_arena_deallocate(pagetide_arena* arena, void* block);

// Stores `count` blocks of `size` bytes each in blocks[0] and onward, and returns how many: fewer,
// and a last error of OUT_OF_MEMORY, where the reservation or the machine is exhausted. O(count).
PAGETIDE_API size_t pagetide_arena_allocate_batch(pagetide_arena* arena, size_t size, void** blocks,
                                                  size_t count);

// Frees `count` blocks. Null ones are fine. O(count).
PAGETIDE_API void pagetide_arena_deallocate_batch(pagetide_arena* arena, void* const* blocks,
                                                  size_t count);

// The block with room for `size` bytes; null as for pagetide_arena_allocate(), and then the old one
// is as it was. It stays where it is if it can: one of more than 32 KiB that shrinks or whose
// neighbour is free, and a smaller one that has the room and of which at least a half is still
// used. Otherwise a new one is allocated, aligned to 16 bytes, the content copied and the old one
// freed. A null block is allocated anew; no bytes are a block of their own. What is not allocated
// aborts the process, or is reported and gives null, as the option on_corruption says.
PAGETIDE_API void* pagetide_arena_reallocate(pagetide_arena* arena, void* block, size_t size);

// The same, aligned to `alignment`, a power of two up to 1 GiB, whatever the old block was aligned
// to.
PAGETIDE_API void* pagetide_arena_reallocate_aligned(pagetide_arena* arena, void* block,
                                                     size_t alignment, size_t size);

// All bytes of the block that may be used, constant over its life; 0 for null and for what is
// outside the arena, and on an error. O(1).
PAGETIDE_API size_t pagetide_arena_usable_size(const pagetide_arena* arena, const void* block);

// 1 where the address is one that blocks of this arena can have, else 0. An error is not 0 either.
// O(1).
PAGETIDE_API int pagetide_arena_owns(const pagetide_arena* arena, const void* address);

// --- Named roots ---

// Names an object of the arena: where a new process begins to read. `name` has 1 to 39 bytes;
// `type` is the name of its type as the program likes to write it, "struct list", and `size` its
// size. Of the type's name only a hash is kept. A root that has the name already is replaced,
// whatever its type; the object it named stays. There is room for 256. O(roots).
// Errors: INVALID_ARGUMENT also where the object does not lie in the arena; OUT_OF_MEMORY also
// where all 256 are in use.
PAGETIDE_API int pagetide_arena_set_root(pagetide_arena* arena, const char* name, const char* type,
                                         void* address, size_t size);

// The object of that name; null on an error. Roots that C++ made have types of its own. O(roots).
// Errors: NOT_FOUND; IDENTITY_MISMATCH where it was set with another type or size; DAMAGED where it
// would lie outside the arena.
PAGETIDE_API void* pagetide_arena_find_root(const pagetide_arena* arena, const char* name,
                                            const char* type, size_t size);

// Forgets the name. The object stays. O(roots).
// Errors: NOT_FOUND.
PAGETIDE_API int pagetide_arena_erase_root(pagetide_arena* arena, const char* name);

// --- The heap as a whole ---

// Calls visit() for every allocated block, in the order of addresses, with its usable size. It must
// return, and must not use the arena. Alone: while no thread allocates or frees. O(heap).
typedef void (*pagetide_visit_allocation)(void* block, size_t usable_size, void* context);
PAGETIDE_API int pagetide_arena_for_each_allocation(const pagetide_arena* arena,
                                                    pagetide_visit_allocation visit, void* context);

typedef struct pagetide_arena_stats {
  size_t size;  // of the struct: in what the program has, out what the library filled
  uint64_t live_blocks;
  uint64_t live_bytes;  // by usable size, not by what was asked for
  uint64_t spans_in_use;
  uint64_t heap_bytes;  // spans in use and the metadata that describes them
  uint64_t idle_bytes;  // freed, and kept in memory for reuse
  uint64_t reserve_bytes;
} pagetide_arena_stats;

// Fills *stats, whose member `size` says how much of it there is. What the library does not know is
// set to 0, and left out of the `size` that it stores. Alone: while no thread allocates or frees.
// O(heap).
PAGETIDE_API int pagetide_arena_get_stats(const pagetide_arena* arena, pagetide_arena_stats* stats);

typedef struct pagetide_class_stats {
  uint32_t slot_bytes;  // the usable size of its blocks
  uint64_t slots;       // that its spans have
  uint64_t live;        // of these are allocated
  uint64_t spans;       // of 64 KiB
} pagetide_class_stats;

// Fills classes[0] and onward, up to `count` of them, for the sizes that small blocks have, in
// ascending order, and returns how many there are, which may be more. Large blocks, of whole spans,
// are in none. Alone: while no thread allocates or frees. O(heap).
PAGETIDE_API int pagetide_arena_get_class_stats(const pagetide_arena* arena,
                                                pagetide_class_stats* classes, size_t count);

// Gives the memory of free spans back to the system: those that are kept for reuse, and the empty
// ones of the calling thread. Returns how many bytes; 0 on an error.
PAGETIDE_API size_t pagetide_arena_trim(pagetide_arena* arena);

// Clears what is free and not known to be zero, for an arena under PAGETIDE_CLEAR_ON_FREE that was
// under PAGETIDE_CLEAR_NEVER before: from here on no snapshot holds remains of what was freed.
// Alone: while no thread allocates or frees. Reads all free memory.
// Errors: INVALID_ARGUMENT under PAGETIDE_CLEAR_NEVER.
PAGETIDE_API int pagetide_arena_clear_free_memory(pagetide_arena* arena);

#ifdef __cplusplus
}  // extern "C"
#endif

// NOLINTEND(readability-identifier-naming)
