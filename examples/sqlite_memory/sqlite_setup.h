#pragma once

#include "pagetide/pagetide.hpp"

namespace sqlite_memory {

// Makes an arena SQLite's allocator, and sets it up so that a rollback of the arena is a rollback
// of all that SQLite remembers. Before anything else of SQLite is called; once in a process. The
// arena stays where it is, and is the last of all to go.
//
// What SQLite keeps outside its heap, in its data and bss, no rollback touches. That is fine as
// long as it neither points into the heap nor counts what is in it:
//
//   sqlite3Config, the methods of malloc, mutexes and page cache, the list of VFSs, the table of
//   built-in functions      written when SQLite is initialised and never again; they point to
//                           code and to other statics. Connections point to them, which is why
//                           the arena holds code addresses.
//   sqlite3Config.pInitMutex, mutexes of connections    none in single-thread mode. In the other
//                           modes a mutex is a pthread_mutex_t in the heap: a rollback would put
//                           back whether it is held, and by whom.
//   pcache1_g               one group for all page caches, with a list of their pages, and a list
//                           of free pages of a buffer that the program gave. Without such a buffer
//                           each cache has a group of its own, in the heap, and both lists are
//                           empty.
//   sqlite3Stat, mem0       bytes and blocks in use, and limits that go by them; off. The
//                           counters for pages that did not fit into the buffer go on, and are
//                           wrong after a rollback; nothing but sqlite3_status() reads them.
//   inodeList, temporary files    of the unix VFS: which files are open, in the heap, and their
//                           descriptors, which no rollback reopens. With everything in memory,
//                           sorters, temporary tables and statement journals too, none is open.
//   sqlite3SharedCacheList, memdb_g, sqlite3BlockedList, sqlite3Autoext, sqlite3_temp_directory
//                           point into the heap as soon as a program uses shared caches, the VFS
//                           "memdb", sqlite3_unlock_notify(), sqlite3_auto_extension() or sets the
//                           directory. This one does not; pointers_from_statics() looks.
//   sqlite3Prng             the state of random(): what it gives after a rollback is not what it
//                           gave before.
pagetide::Result<void> set_up_sqlite(pagetide::Arena& arena);

// The same settings with SQLite's own allocator.
pagetide::Result<void> set_up_sqlite_without_arena();

}  // namespace sqlite_memory
