#pragma once

#include "pagetide/allocator/heap_tables.h"
#include "pagetide/allocator/thread_heap.h"

namespace pagetide {

// In a forked child, while it has one thread and that is outside the heap: makes a sound heap of
// what the parent's other threads were doing when they were copied, and gives all small spans to
// `heir`. No thread heap knows any span before. What they had allocated stays allocated, what they
// had freed is free, and what was on its way is the one or the other; see docs/heap.md. Allocates
// nothing. O(spans).
void repair_after_fork(HeapTables& tables, ThreadHeap& heir);

}  // namespace pagetide
