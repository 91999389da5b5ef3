#pragma once

// The errors of the C API; pagetide_last_error_message(3).
//
// A function that can fail returns a number: 0 or more is the answer, less than 0 a pagetide_error.
// Functions that give an address return NULL instead. What went wrong is then in
// pagetide_last_error() and its relatives, for the calling thread. Every function
// may return PAGETIDE_INVALID_ARGUMENT (a null pointer where a handle or a place for an answer is
// required, a number that is no such enumerator) and PAGETIDE_OUT_OF_MEMORY; comments list only
// further errors. A call that fails has changed nothing and stored nothing, unless its comment
// says otherwise. errno is never changed.

#include "pagetide/base/export.h"

// NOLINTBEGIN(readability-identifier-naming): names of a C API

#ifdef __cplusplus
extern "C" {
#endif

// Numbers are never reused for something else. Later versions may add some.
typedef enum pagetide_error {
  PAGETIDE_OK = 0,
  PAGETIDE_INVALID_ARGUMENT = -1,    // the caller passed something that can never work
  PAGETIDE_OUT_OF_MEMORY = -2,       // of the machine, or all places of a fixed number are taken
  PAGETIDE_ADDRESS_TAKEN = -3,       // the address range asked for is already mapped
  PAGETIDE_UNSUPPORTED = -4,         // kernel, CPU, file system or library lacks what was asked for
  PAGETIDE_PERMISSION_DENIED = -5,   // it exists, but not for this user or in this sandbox
  PAGETIDE_SYSTEM_FAILURE = -6,      // a system call failed; pagetide_last_errno() says how
  PAGETIDE_NOT_FOUND = -7,           // there is none
  PAGETIDE_ALREADY_EXISTS = -8,      // there is one
  PAGETIDE_BUSY = -9,                // another writer or consumer holds it
  PAGETIDE_NOT_A_STORE = -10,        // the path holds something else, or an interrupted creation
  PAGETIDE_VERSION_TOO_NEW = -11,    // written by a newer Pagetide
  PAGETIDE_DAMAGED = -12,            // a checksum or a bound does not hold
  PAGETIDE_NO_SPACE = -13,           // the disk is full
  PAGETIDE_IDENTITY_MISMATCH = -14,  // written by another program or at another load address
  PAGETIDE_FORKED = -15,             // used in a child process of the one that opened it
  PAGETIDE_TIMED_OUT = -16           // somebody did not do in time what was waited for
} pagetide_error;

// "invalid argument" for PAGETIDE_INVALID_ARGUMENT and so on, "ok" for 0 and more, "unknown" for
// what this library does not know. Never null, never to be freed. O(1).
PAGETIDE_API const char* pagetide_error_name(int error);

// The pagetide_error of the latest call of this thread that failed; 0 while none has. Calls that
// succeed leave it as it is: look at it where a call returned NULL. O(1).
PAGETIDE_API int pagetide_last_error(void);

// What the latest call of this thread that failed has to say: full sentences, with the cause and,
// where there is one, the way out; "" while none has failed. Calls that succeed leave it as it is.
// A text that names something of the C++ API means what has that name here: BackendKind::uffd_async
// is PAGETIDE_BACKEND_UFFD_ASYNC, and so on; only BackendKind::write_protect has another name,
// PAGETIDE_BACKEND_MPROTECT.
// Never null; belongs to the library, is good until this thread's next failing call or its end,
// and holds at most 1023 bytes: what is longer is cut. Allocates nothing. O(1).
PAGETIDE_API const char* pagetide_last_error_message(void);

// The errno of the system call that made the latest failing call of this thread fail; 0 where none
// did. O(1).
PAGETIDE_API int pagetide_last_errno(void);

#ifdef __cplusplus
}  // extern "C"
#endif

// NOLINTEND(readability-identifier-naming)
