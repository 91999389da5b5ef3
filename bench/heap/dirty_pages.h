#pragma once

#include <cstddef>
#include <vector>

#include "bench/heap/source.h"
#include "bench/heap/workload.h"
#include "pagetide/base/error.h"

namespace pagetide::bench {

// An epoch's work on the live objects.
struct DirtyPhase {
  std::size_t replaced = 0;  // freed at random, each followed by a new one
  std::size_t updated = 0;   // live ones that are written to, at random

  friend bool operator==(const DirtyPhase&, const DirtyPhase&) = default;
};

struct DirtyCounts {
  DirtyPhase phase;
  // Medians of the epochs.
  double seconds = 0;
  double dirty_pages = 0;
  double dirty_ranges = 0;    // of an arena: runs of neighbours that its tracker's pages make
  double volatile_pages = 0;  // of an arena: written outside of its region
  double memory_pages = 0;    // populated, of all that counts
  std::size_t rss_kib = 0;    // see process_facts.h
};

// How many pages an epoch dirties of all that an allocator holds, blocks and metadata, in the
// mappings that ProcessPages names. An arena is watched by its own tracker; its metadata is in no
// tracked page, but in the record that a snapshot makes of it, which counts with what it can be at
// most. What an arena has outside of its region is rebuilt when it is opened, and counted apart.
//
// A million live objects of 16 to 256 bytes. The phases follow one another on the same objects:
// 10 000 replacements an epoch, these with updates of 1 % of the objects, such updates alone; then
// 50 000 replacements, without and with updates. New objects are filled; an update changes 8 bytes
// at both ends. A hundred epochs of a phase come before those that count.
Result<std::vector<DirtyCounts>> measure_dirty_pages(OpenSource& heap, Scale scale);

}  // namespace pagetide::bench
