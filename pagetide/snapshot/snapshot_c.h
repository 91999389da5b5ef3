#pragma once

// Stores, snapshots and rollback for C. The manual pages are pagetide_store(3) and
// pagetide_snapshotter(3).
//
// Errors are those of base/error_c.h.
//
// Threads. A store may be used by one thread at a time, a snapshotter by any: calls wait for each
// other. While a snapshotter takes or rolls back, its store may not be used otherwise. Nothing here
// may be called from a signal handler, and a thread must not be cancelled (pthread_cancel) in a
// call.
//
// fork(). A forked child can neither take snapshots nor roll back (FORKED). It may destroy and
// close what it got, which leaves the parent alone.

#include <stddef.h>
#include <stdint.h>

#include "pagetide/allocator/arena_c.h"
#include "pagetide/allocator/safepoints_c.h"
#include "pagetide/base/error_c.h"
#include "pagetide/base/export.h"

// NOLINTBEGIN(readability-identifier-naming): names of a C API

#ifdef __cplusplus
extern "C" {
#endif

// --- A store ---

// A directory that holds the snapshots of an arena. After a crash at any moment it opens and holds
// every snapshot whose commit was reported. One writer at a time, over all processes; readers need
// no lock. Files and directory are readable by their owner alone.
typedef struct pagetide_store pagetide_store;

typedef enum pagetide_store_mode {
  PAGETIDE_STORE_CREATE_OR_WRITE = 0,  // for writing; made when it is missing
  PAGETIDE_STORE_WRITE = 1,            // for writing; must exist
  PAGETIDE_STORE_READ = 2              // needs no lock and works while another process writes
} pagetide_store_mode;

// Opens the store at `path` as `mode`, a pagetide_store_mode, says, and stores it, which the caller
// owns, in *store.
// Errors: NOT_FOUND, NOT_A_STORE, VERSION_TOO_NEW, DAMAGED, BUSY (another writer), UNSUPPORTED
// (another page size), PERMISSION_DENIED, NO_SPACE, SYSTEM_FAILURE.
PAGETIDE_API int pagetide_store_open(const char* path, int mode, pagetide_store** store);

// Null is fine. Its snapshotters are destroyed before; arenas that were opened from it live on.
PAGETIDE_API void pagetide_store_close(pagetide_store* store);

// Names a snapshot within its store. They ascend from 1 in the order of commits; 0 is none.
typedef uint64_t pagetide_snapshot_id;

// Stores the newest committed snapshot in *id. A store that was opened for reading looks again.
// O(1). Errors: NOT_FOUND where the store is empty; those of reading its root.
PAGETIDE_API int pagetide_store_latest(pagetide_store* store, pagetide_snapshot_id* id);

// What a store says of a snapshot. Later versions append members: a program that was compiled for a
// newer one looks at `size` before it reads those.
typedef struct pagetide_snapshot_info {
  size_t size;  // of the struct, as the library knows it
  pagetide_snapshot_id id;
  pagetide_snapshot_id parent;  // 0: none
  uint64_t created_ns;          // since 1970, UTC
  const char* arena;            // its name
  uint64_t page_bytes;          // bytes in a page
  uint64_t region_base;
  uint64_t reserve_bytes;
  uint64_t image_pages;
  uint64_t reported_pages;  // by the tracker
  uint64_t changed_pages;   // of these and of what was freed: differ from the parent's
  uint64_t zero_pages;      // of these, all zero
  uint64_t bytes_written;   // to all files of the store
  uint64_t stop_ns;         // how long writers were held
  uint64_t heap_bytes;      // spans in use and their metadata
  int holds_code_addresses;
  // Not 0: what is not zero in the image's free memory was written there after it was freed.
  int free_bytes_are_zero;
} pagetide_snapshot_info;

// Calls visit() for every snapshot, in the order of ids. *info is good until visit() returns, which
// it must; it must not use the store. O(snapshots).
// Errors: what is wrong with the first snapshot whose description cannot be read; the others were
// visited all the same.
typedef void (*pagetide_visit_snapshot)(const pagetide_snapshot_info* info, void* context);
PAGETIDE_API int pagetide_store_snapshots(pagetide_store* store, pagetide_visit_snapshot visit,
                                          void* context);

// Stores the arena of a snapshot, which the caller owns, in *arena: at its recorded address, every
// pointer in it valid. Every page read is checked. `options` may be null for the defaults; those
// that are recorded are not looked at.
// Errors: NOT_FOUND where there is no such snapshot; ADDRESS_TAKEN; IDENTITY_MISMATCH where it
// holds addresses of code of another program; DAMAGED; those of pagetide_store_open() and
// pagetide_arena_create().
PAGETIDE_API int pagetide_store_open_arena(pagetide_store* store, pagetide_snapshot_id id,
                                           const pagetide_arena_options* options,
                                           pagetide_arena** arena);

// --- Taking snapshots ---

// Takes incremental snapshots of an arena into a store, and puts the arena back to one.
typedef struct pagetide_snapshotter pagetide_snapshotter;

// Fill it with pagetide_snapshotter_options_init() and change what you want. Later versions append
// members, for which zero means the behaviour of before.
typedef struct pagetide_snapshotter_options {
  size_t size;  // of the struct, as the program was compiled; set by the init function
  // Called once each, in this order, by the thread that takes a snapshot or rolls back: between
  // them nobody may write to the arena, and no thread be inside one of its calls. They must return,
  // and must not use the arena. Both null, the default: the caller is the only thread that uses the
  // arena, or holds the others himself.
  void (*pause)(void* context);
  void (*resume)(void* context);
  void* context;
  // Memory for copies of changed pages; what exceeds it is written to the disk while writers are
  // held. Default: 256 MiB.
  size_t staging_bytes;
  // Instead of pause and resume: all threads that use the arena are mutators of these safepoints,
  // which must outlive the snapshotter, and come to one within the limit; else the error is
  // TIMED_OUT. The thread that takes the snapshot may be one of them. Where several of them do,
  // each leaves (pagetide_mutator_leave()) while it does: one may have to wait for another.
  // Defaults: null, 1000.
  pagetide_safepoints* safepoints;
  uint64_t safepoint_limit_ms;
} pagetide_snapshotter_options;

// Sets the first `size` bytes to the defaults. `size` is sizeof(pagetide_snapshotter_options) as
// the caller knows it: more or less than the library's is fine, from sizeof(size_t) to 1024.
// O(size).
PAGETIDE_API int pagetide_snapshotter_options_init(pagetide_snapshotter_options* options,
                                                   size_t size);

// Stores a new snapshotter, which the caller owns, in *snapshotter. One an arena at a time: with
// another one before it, its calls fail with BUSY. `options` may be null for the defaults; they are
// not kept, but for the callbacks and their context. Arena and store must outlive it.
// Errors: INVALID_ARGUMENT also where only one of the callbacks is given, or safepoints beside
// them; UNSUPPORTED where options set what a newer library has and this one does not.
PAGETIDE_API int pagetide_snapshotter_create(pagetide_arena* arena, pagetide_store* store,
                                             const pagetide_snapshotter_options* options,
                                             pagetide_snapshotter** snapshotter);

// Null is fine. No other thread may be using it.
PAGETIDE_API void pagetide_snapshotter_destroy(pagetide_snapshotter* snapshotter);

// Commits a snapshot, and stores its id in *id, which may be null: when the call returns, it
// survives a crash. Its parent is what the arena was opened from, rolled back to or last saved as,
// where that is in this store. After a failure nothing is lost: the next one holds all that this
// one would have. Errors: NO_SPACE; BUSY; INVALID_ARGUMENT also where the store was opened for
// reading; IDENTITY_MISMATCH where another store is at its path by now; DAMAGED where the parent
// is; PERMISSION_DENIED; SYSTEM_FAILURE; FORKED; TIMED_OUT where a thread did not come to a
// safepoint.
PAGETIDE_API int pagetide_snapshotter_take(pagetide_snapshotter* snapshotter,
                                           pagetide_snapshot_id* id);

typedef struct pagetide_rollback_stats {
  size_t size;  // of the struct: in what the program has, out what the library filled
  uint64_t restored_pages;
  uint64_t zero_pages;  // of these, became zero
  uint64_t stop_ns;     // how long writers were held
} pagetide_rollback_stats;

// Puts the arena's memory back to a snapshot of the store, in place, and fills *stats, which may be
// null. Pointers into the arena are valid again, or dangling, as they were then; the program must
// drop what else it remembers of the content. The next snapshot's parent is this one.
// Errors: NOT_FOUND; IDENTITY_MISMATCH where it is a snapshot of another arena; DAMAGED; BUSY;
// INVALID_ARGUMENT also where the store was opened for reading; SYSTEM_FAILURE; FORKED; TIMED_OUT
// where a thread did not come to a safepoint. Where that happens, or reading fails, the memory is
// untouched.
PAGETIDE_API int pagetide_snapshotter_rollback(pagetide_snapshotter* snapshotter,
                                               pagetide_snapshot_id id,
                                               pagetide_rollback_stats* stats);

#ifdef __cplusplus
}  // extern "C"
#endif

// NOLINTEND(readability-identifier-naming)
