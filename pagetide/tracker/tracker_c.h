#pragma once

// The write tracker for C: which pages of memory were written since the last look? The manual
// pages begin with pagetide_tracker(3).
//
// Errors are those of base/error_c.h.
//
// Threads. Functions on a pagetide_tracker may be called from any thread at the same time, but for
// pagetide_tracker_destroy(). A pagetide_collected may be read by several threads, or be written
// by one (collect, reserve, destroy). Nothing here may be called from a signal handler, and a
// thread must not be cancelled (pthread_cancel) in a call.
//
// fork(). A tracker belongs to the process that created it. A forked child may destroy it, which
// leaves the parent alone; its other calls on it either fail with PAGETIDE_FORKED (watch, unwatch,
// add_consumer, take, peek, collect, reserve, put_back, report_unchanged) or do nothing and say 0
// (remove_consumer, the mark functions, note_purged, prefill; statistics are all 0), but for purge,
// which gives back the child's own pages. None waits for a lock of the tracker, whatever other
// threads did at the moment of the fork. What the child writes to private memory is its own. What
// it writes to shared memory (MAP_SHARED) changes the parent's memory too, and the parent's tracker
// does not see that.
//
// Sizes are in bytes, and pages are of pagetide_page_size() bytes and numbered from the start of
// their watched range.

#include <stddef.h>
#include <stdint.h>

#include "pagetide/base/error_c.h"
#include "pagetide/base/export.h"

// NOLINTBEGIN(readability-identifier-naming): names of a C API

#ifdef __cplusplus
extern "C" {
#endif

// --- Back ends ---

// How written pages are found.
typedef enum pagetide_backend {
  PAGETIDE_BACKEND_AUTO = 0,         // the best that a real round trip finds working
  PAGETIDE_BACKEND_UFFD_ASYNC = 1,   // userfaultfd, asynchronous, with PAGEMAP_SCAN (Linux 6.7)
  PAGETIDE_BACKEND_UFFD_SIGBUS = 2,  // userfaultfd, faults as SIGBUS in the writing thread (5.7)
  PAGETIDE_BACKEND_UFFD_SYNC = 3,    // userfaultfd, faults resolved by handler threads (5.7)
  PAGETIDE_BACKEND_SOFT_DIRTY = 4,   // the kernel's soft-dirty bit and clear_refs (3.11)
  PAGETIDE_BACKEND_MPROTECT = 5,     // mprotect and SIGSEGV in the writing thread: everywhere
  PAGETIDE_BACKEND_COMPARE = 6       // hashes of every page: everywhere, a pass over all memory
} pagetide_backend;

// "uffd_async" and so on, as PAGETIDE_DISABLE and `pagetide doctor` call them; "unknown" for what
// this library does not know. Never null, never to be freed. O(1).
PAGETIDE_API const char* pagetide_backend_name(int backend);

// 0 where this back end (not AUTO) works here, found by really tracking a few pages of scratch
// memory. An answer that cannot change (it works; the kernel lacks it) is found once per process
// and value of the environment variable PAGETIDE_DISABLE. Thread-safe. Asking for soft_dirty clears
// the soft-dirty bits of the process, once. Takes a few milliseconds the first time.
// Errors: whatever the back end lacks, most often UNSUPPORTED or PERMISSION_DENIED.
PAGETIDE_API int pagetide_check_backend(int backend);

// Bytes in a page of this system. O(1).
PAGETIDE_API size_t pagetide_page_size(void);

// --- A tracker ---

// Which pages of watched memory were written since the last take, by any thread of this process or
// by the kernel on its behalf (read(2) and the like).
//
// Not seen, with every back end but compare: writes through another mapping of the same memory,
// in this process or another; through long-term pins (io_uring registered buffers, RDMA, VFIO);
// write(2) to the file under a private mapping; and what empties the file or memfd behind the
// memory: fallocate(2) with FALLOC_FL_PUNCH_HOLE, MADV_REMOVE, ftruncate(2). Declare such ranges
// with pagetide_tracker_mark_always_dirty(). MADV_DONTNEED on private memory must go through
// pagetide_tracker_purge() or be told by pagetide_tracker_note_purged(); on shared memory it
// changes no content and need not be told. Forbidden in watched memory: munmap, MAP_FIXED, mremap,
// MADV_FREE.
typedef struct pagetide_tracker pagetide_tracker;

// Fill it with pagetide_tracker_options_init() and change what you want. Later versions append
// members, for which zero means the behaviour of before.
typedef struct pagetide_tracker_options {
  size_t size;  // of the struct, as the program was compiled; set by the init function
  // A pagetide_backend. Default: PAGETIDE_BACKEND_AUTO.
  int backend;
  // Not 0: no system call ever writes to the watched memory (read(2) and the like into it would
  // fail with EFAULT). Lets AUTO fall back to uffd_sigbus and mprotect. Default: 0.
  int never_syscall_target;
  // Not 0: no thread writes to watched memory during a take. Lets AUTO fall back to soft_dirty,
  // which loses such writes. Default: 0.
  int writers_held_in_takes;
  // Not 0: blocks of 2 MiB that are written in every epoch are no longer armed and count as
  // written, since a first write to an armed page costs as much as copying several. Pays off when
  // what did not change is told by pagetide_tracker_report_unchanged(). Default: 0.
  int adapt_to_hot_pages;
  // What that decision weighs, in nanoseconds; only the ratios matter.
  uint32_t hot_stale_page_ns;  // copying and hashing a page that did not change
  uint32_t hot_fault_ns;       // first write to an armed page
  uint32_t hot_ioctl_ns;       // one more scanning call
  // Every so many takes of a watch everything is armed, so that what cooled down is noticed; 0:
  // never.
  uint32_t hot_relearn_takes;
  // uffd_sync: threads that resolve faults, at least 1. Default: 1.
  size_t sync_handler_threads;
  // mprotect: mappings that splitting by protection may add, over all ranges of the process. Past
  // it, neighbours count as written too. Default: 0, for an eighth of vm.max_map_count, at most
  // 8192.
  size_t mprotect_max_extra_mappings;
} pagetide_tracker_options;

// Sets the first `size` bytes to the defaults. `size` is sizeof(pagetide_tracker_options) as the
// caller knows it: more or less than the library's is fine, from sizeof(size_t) to 1024. O(size).
PAGETIDE_API int pagetide_tracker_options_init(pagetide_tracker_options* options, size_t size);

// Stores a new tracker, which the caller owns, in *tracker. `options` may be null for the defaults;
// they are not kept. Members beyond options->size have their defaults.
// Errors: UNSUPPORTED where options set what a newer library has and this one does not; what the
// back end lacks (see pagetide_check_backend()).
// Takes milliseconds when a back end is tried for the first time.
PAGETIDE_API int pagetide_tracker_create(const pagetide_tracker_options* options,
                                         pagetide_tracker** tracker);

// Unwatches everything and frees the tracker. Null is fine. No other thread may be using it. The
// memory that was watched and every pagetide_collected live on. O(populated watched pages).
PAGETIDE_API void pagetide_tracker_destroy(pagetide_tracker* tracker);

// The back end in use: a pagetide_backend, never AUTO. O(1).
PAGETIDE_API int pagetide_tracker_backend(const pagetide_tracker* tracker);

// Why AUTO chose this back end; "" when it was asked for by name; null on an error. Belongs to the
// tracker, and is good until that is destroyed. O(1).
PAGETIDE_API const char* pagetide_tracker_reason(const pagetide_tracker* tracker);

typedef struct pagetide_tracker_stats {
  size_t size;  // of the struct: in what the program has, out what the library filled
  uint64_t takes;
  uint64_t peeks;
  uint64_t pages_reported;  // by takes, written and zeroed
  uint64_t pages_purged;
  uint64_t pages_unchanged;  // the surplus, as far as consumers told
  uint64_t hot_blocks;       // blocks of 2 MiB that the latest take left unarmed
  uint64_t poisoned_takes;
  uint64_t last_collect_ns;
  uint64_t total_collect_ns;
} pagetide_tracker_stats;

// Fills *stats, whose member `size` says how much of it there is, since the tracker's creation.
// What the library does not know is set to 0, and left out of the `size` that it stores. O(1).
PAGETIDE_API int pagetide_tracker_get_stats(const pagetide_tracker* tracker,
                                            pagetide_tracker_stats* stats);

// --- Watched ranges ---

// Names one watched range of one tracker; never used again for another one, and never 0.
typedef uint64_t pagetide_watch_id;

// Begins to track the `size` bytes at `address` (whole pages, mapped by the caller, who keeps them
// mapped until unwatch or the tracker's end) and stores the name of the range in *watch. The first
// collect reports what is populated by then.
// Of a shared mapping (memfd, shared file, shared anonymous memory) uffd_async, uffd_sync and
// uffd_sigbus report all pages in the first take, also those that nobody touched, and page tables
// are built for all of it: 2 MiB a GiB. From then on they are exact. mprotect reports all pages in
// the first take too. When the kernel reclaims pages of a shared mapping it drops their page-table
// entries, those of written pages too, so an empty entry cannot count as "not written".
// Errors: ALREADY_EXISTS where a part is watched already by this tracker; FORKED; what the back end
// has against this memory, such as a shared file mapping that cannot be written to.
PAGETIDE_API int pagetide_tracker_watch(pagetide_tracker* tracker, void* address, size_t size,
                                        pagetide_watch_id* watch);

// Ends it. O(populated pages).
// Errors: INVALID_ARGUMENT where there is no such watch; FORKED.
PAGETIDE_API int pagetide_tracker_unwatch(pagetide_tracker* tracker, pagetide_watch_id watch);

// The next collect of every consumer reports the pages that these bytes touch, besides what it
// finds. Any bytes; those outside watched memory are ignored. O(pages / 64).
PAGETIDE_API int pagetide_tracker_mark_dirty(pagetide_tracker* tracker, const void* address,
                                             size_t size);

// Every collect from now on reports the pages that these bytes touch: for memory with writers that
// nobody can see. Ends when the range is unwatched. Any bytes; those outside watched memory are
// ignored. O(pages / 64).
PAGETIDE_API int pagetide_tracker_mark_always_dirty(pagetide_tracker* tracker, const void* address,
                                                    size_t size);

// Gives the pages back to the system (MADV_DONTNEED), so that they read as zeros, and logs that as
// one step. Whole pages, all of them watched by this tracker. In a forked child without the log.
// O(populated pages).
// Errors: INVALID_ARGUMENT where these are no whole pages or not all of them are watched, and
// UNSUPPORTED where a file or memfd lies behind a part, whose content would come back: nothing is
// purged then. SYSTEM_FAILURE where a part is locked (mlock), INVALID_ARGUMENT where one is not
// mapped any more: some of the rest may be zero by then, so the next collect of every consumer
// reports all of these pages as written.
PAGETIDE_API int pagetide_tracker_purge(pagetide_tracker* tracker, void* address, size_t size);

// For memory that the caller purged himself: call it after the purge, before the pages are used
// again. A collect between the two does not know of the purge yet; the next one does. Any bytes;
// those outside watched memory are ignored. O(pages / 64).
PAGETIDE_API int pagetide_tracker_note_purged(pagetide_tracker* tracker, const void* address,
                                              size_t size);

// How untouched memory is prepared. Correct with every back end; what one cannot do it leaves out.
typedef enum pagetide_prefill {
  // What is cheapest over the first writes: ZERO_PAGE where the back end arms by page.
  PAGETIDE_PREFILL_AUTO = 0,
  // Zero pages, armed: reads never fault, a first write is one fault, and "written" is exact over
  // all of it. About 0.2 us a page.
  PAGETIDE_PREFILL_ZERO_PAGE = 1,
  // Write-protect markers: no memory, an eighth of the cost, but the first touch is two faults.
  PAGETIDE_PREFILL_MARKER = 2,
  // Nothing: the first touch is an ordinary page fault. Cheapest; just as exact for populated
  // pages, but a page that was only read counts as written.
  PAGETIDE_PREFILL_NONE = 3
} pagetide_prefill;

// "auto", "zero_page" and so on; "unknown" for what this library does not know. Never null, never
// to be freed. O(1).
PAGETIDE_API const char* pagetide_prefill_name(int policy);

// Prepares the untouched pages that these bytes touch, inside watched anonymous memory, as the
// policy, a pagetide_prefill, says, and arms them. Any bytes; those outside watched memory are
// ignored. Pages in use, and those with a file or memfd behind them, stay as they are. O(pages).
// Errors: what the kernel refuses; some of the pages may be prepared then.
PAGETIDE_API int pagetide_tracker_prefill(pagetide_tracker* tracker, void* address, size_t size,
                                          int policy);

// --- Consumers ---

// Names one reader of a tracker's stream of writes, with epochs of its own; never used again for
// another one. 0 is always there.
typedef uint32_t pagetide_consumer_id;

// Adds one, and stores its name in *consumer: it sees at least what is written from now on,
// whatever the others take. Up to 8, consumer 0 included. O(watched ranges).
// Errors: OUT_OF_MEMORY where there are 8; FORKED.
PAGETIDE_API int pagetide_tracker_add_consumer(pagetide_tracker* tracker,
                                               pagetide_consumer_id* consumer);

// Forgets what it has not seen yet. Consumer 0 stays; one that is not there is none to remove.
// Neither is an error. O(watched ranges).
PAGETIDE_API int pagetide_tracker_remove_consumer(pagetide_tracker* tracker,
                                                  pagetide_consumer_id consumer);

// --- Collecting ---

// What one collect found: two disjoint sets of pages. Belongs to no tracker, and can be used again
// and again, for any of them.
typedef struct pagetide_collected pagetide_collected;

typedef enum pagetide_page_set {
  // May have been written since the last take. Never misses one; may name a few too many.
  PAGETIDE_WRITTEN = 0,
  // Purged since the last take and not written since: their content is zero and need not be read.
  PAGETIDE_ZEROED = 1
} pagetide_page_set;

typedef enum pagetide_collect_mode {
  PAGETIDE_TAKE = 0,  // report and begin a new epoch
  PAGETIDE_PEEK = 1   // report only
} pagetide_collect_mode;

typedef struct pagetide_range {
  const void* address;
  size_t size;
} pagetide_range;

// A run of pages that follow each other.
typedef struct pagetide_page_run {
  size_t first;
  size_t count;
} pagetide_page_run;

// Stores an empty one, which the caller owns, in *collected. O(1).
PAGETIDE_API int pagetide_collected_create(pagetide_collected** collected);

// Null is fine.
PAGETIDE_API void pagetide_collected_destroy(pagetide_collected* collected);

// Makes room for everything that a collect of this watch can find when it names up to `part_count`
// parts, so that it allocates nothing and can run while other threads are held wherever they were
// (but inside this library, or the collect may wait for them for ever). Keeps what is in it.
// O(pages / 64).
// Errors: INVALID_ARGUMENT where there is no such watch; FORKED.
PAGETIDE_API int pagetide_tracker_reserve(const pagetide_tracker* tracker, pagetide_watch_id watch,
                                          size_t part_count, pagetide_collected* collected);

// The written and zeroed pages of a watched range since this consumer's last take, into
// *collected, whose former content is gone. Take begins a new epoch, peek changes nothing. Atomic a
// page, not over the range: for the state of one instant, hold the writers. A scan that fails is no
// error: see pagetide_collected_is_poisoned(). Allocates nothing where *collected was reserved and
// nothing fails.
// Errors: INVALID_ARGUMENT where there is no such watch or no such consumer; FORKED.
// After OUT_OF_MEMORY *collected holds nothing of use, but nothing is lost: the next take reports
// every page that was asked for.
// With uffd_async 3 to 6 ns a clean populated page and 50 to 60 ns a written one; with compare
// about 0.4 us a page.
PAGETIDE_API int pagetide_tracker_take(pagetide_tracker* tracker, pagetide_watch_id watch,
                                       pagetide_consumer_id consumer,
                                       pagetide_collected* collected);
PAGETIDE_API int pagetide_tracker_peek(pagetide_tracker* tracker, pagetide_watch_id watch,
                                       pagetide_consumer_id consumer,
                                       pagetide_collected* collected);

// The same for `part_count` parts of the range (whole pages inside it, in any order), with `mode`,
// a pagetide_collect_mode. Pages keep their numbers from the start of the watched range. Only the
// parts begin a new epoch. `parts` may be null when there are none.
PAGETIDE_API int pagetide_tracker_collect(pagetide_tracker* tracker, pagetide_watch_id watch,
                                          pagetide_consumer_id consumer, int mode,
                                          const pagetide_range* parts, size_t part_count,
                                          pagetide_collected* collected);

// Gives back what a take of this watch and consumer found and nobody could use: its next collect
// reports these pages as written. O(pages / 64). Where there is no such consumer, nothing is done.
// Errors: INVALID_ARGUMENT where there is no such watch, or for pages beyond its end; FORKED.
PAGETIDE_API int pagetide_tracker_put_back(pagetide_tracker* tracker, pagetide_watch_id watch,
                                           pagetide_consumer_id consumer,
                                           const pagetide_collected* collected);

// Tells which pages of the latest take had not really changed, in the layout of
// pagetide_collected_export(): statistics count the surplus, and adapt_to_hot_pages learns from it.
// Pages beyond `page_count` are taken as changed. `words` may be null when that is 0. Allocates.
// O(pages / 64).
// Errors: INVALID_ARGUMENT where there is no such watch, or for more pages than it has; FORKED.
PAGETIDE_API int pagetide_tracker_report_unchanged(pagetide_tracker* tracker,
                                                   pagetide_watch_id watch, const uint64_t* words,
                                                   size_t page_count);

// --- What was collected ---

// How many pages the sets are about, from page 0 to the end of the last part that was asked for. A
// negative result is an error, here and below. O(1).
PAGETIDE_API int64_t pagetide_collected_pages(const pagetide_collected* collected);

// How many pages are in `set`, a pagetide_page_set. O(pages / 64).
PAGETIDE_API int64_t pagetide_collected_count(const pagetide_collected* collected, int set);

// 1 where the page is in `set`, else 0; pages that were not asked for are not. An error is not 0
// either, so that a page is never taken for clean by mistake. O(1).
PAGETIDE_API int pagetide_collected_has(const pagetide_collected* collected, int set, size_t page);

// Finds the first run of pages of `set`, or what is left of it, at or after the end of *run, and
// stores it there; 1 when there is one, 0 when not. A run of {0, 0} begins:
//
//   pagetide_page_run run = {0, 0};
//   while (pagetide_collected_next_run(collected, PAGETIDE_WRITTEN, &run) > 0) ...
//
// Runs ascend and are as long as they can be. All of them together: O(pages / 64 + runs).
PAGETIDE_API int pagetide_collected_next_run(const pagetide_collected* collected, int set,
                                             pagetide_page_run* run);

// Writes `set` as KVM's dirty log has it: page p in bit p % 64 of word p / 64. Needs a word for
// every 64 of pagetide_collected_pages(), the last one perhaps begun; further words are set to 0.
// O(word_count).
// Errors: INVALID_ARGUMENT where there are too few words.
PAGETIDE_API int pagetide_collected_export(const pagetide_collected* collected, int set,
                                           uint64_t* words, size_t word_count);

// 1 where the scan failed, so that WRITTEN names every page that was asked for; else 0. An error is
// not 0 either. O(1).
PAGETIDE_API int pagetide_collected_is_poisoned(const pagetide_collected* collected);

// Why it is poisoned; "" when it is not; null on an error. Good until the next collect into it or
// its end. O(1).
PAGETIDE_API const char* pagetide_collected_cause(const pagetide_collected* collected);

#ifdef __cplusplus
}  // extern "C"
#endif

// NOLINTEND(readability-identifier-naming)
