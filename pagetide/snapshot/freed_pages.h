#pragma once

#include "pagetide/allocator/heap_metadata.h"
#include "pagetide/snapshot/heap_draft.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace pagetide {

// Adds to `freed`, whose page 0 is the first one of the heap's data, the pages that belonged to
// somebody `before` and belong to nobody `now`, of all runs of spans that came back since: large
// blocks, and spans of slots that became empty. Also of those that are in use again, as far as no
// slot was handed out there. `changes` are the entries in which the two may differ.
//
// Inside the stop: allocates nothing. Cost: the changes, and the spans of the runs.
void add_freed_pages(const HeapDraft& changes, const HeapMetadata& before, const HeapMetadata& now,
                     DirtyBitmap& freed);

}  // namespace pagetide
