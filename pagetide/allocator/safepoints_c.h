#pragma once

// Safepoints for C: where the threads of a program can be held for a moment, for a snapshot or a
// rollback (snapshot_c.h). The manual page is pagetide_safepoints(3).
//
// Errors are those of base/error_c.h.
//
// fork(). None of the other threads exist in a forked child: it makes safepoints of its own.

#include <stdint.h>

#include "pagetide/base/error_c.h"
#include "pagetide/base/export.h"

// NOLINTBEGIN(readability-identifier-naming): names of a C API

#ifdef __cplusplus
extern "C" {
#endif

// What threads, its mutators, can be held together. One for a program, or for the arenas that the
// same threads write to.
typedef struct pagetide_safepoints pagetide_safepoints;

// Stores a new one, which the caller owns, in *points.
PAGETIDE_API int pagetide_safepoints_create(pagetide_safepoints** points);

// Null is fine. Its mutators, and snapshotters that use it, are destroyed before.
PAGETIDE_API void pagetide_safepoints_destroy(pagetide_safepoints* points);

// Returns when every mutator waits at a poll or is away; they stay so until the same thread calls
// pagetide_safepoints_resume(). The calling thread may be a mutator and is not waited for. Who
// calls while another thread has stopped them waits for its end first. What takes snapshots does
// this by itself; see pagetide_snapshotter_options. Between the two calls the thread may take
// snapshots and roll back with a snapshotter that does not.
// Errors: TIMED_OUT where a thread does not come within `limit_ms`: the message names it, and all
// threads go on; BUSY where the calling thread has stopped them already.
PAGETIDE_API int pagetide_safepoints_stop(pagetide_safepoints* points, uint64_t limit_ms);
PAGETIDE_API int pagetide_safepoints_resume(pagetide_safepoints* points);

// A thread that takes part. Its functions are for that thread alone.
typedef struct pagetide_mutator pagetide_mutator;

// Makes the calling thread a mutator, at work, and stores it, which the caller owns, in *mutator.
// `name` is for error messages, up to 31 bytes; null: the name that the system has for the thread.
// A second one of a thread is the same mutator, and is destroyed before the first. Waits while a
// stop is under way.
PAGETIDE_API int pagetide_mutator_create(pagetide_safepoints* points, const char* name,
                                         pagetide_mutator** mutator);

// By the thread that made it, or by any when that has ended: nobody waits for a thread that has.
// Null is fine. Waits while a stop is under way.
PAGETIDE_API void pagetide_mutator_destroy(pagetide_mutator* mutator);

// What this thread has written is complete. Waits while a stop is under way, else costs a load.
PAGETIDE_API void pagetide_mutator_poll(pagetide_mutator* mutator);

// From leave to enter the thread writes nothing that a stop should not see half done, and is not
// waited for: for calls that block. pagetide_mutator_enter() waits while a stop is under way. They
// nest.
PAGETIDE_API void pagetide_mutator_leave(pagetide_mutator* mutator);
PAGETIDE_API void pagetide_mutator_enter(pagetide_mutator* mutator);

#ifdef __cplusplus
}  // extern "C"
#endif

// NOLINTEND(readability-identifier-naming)
