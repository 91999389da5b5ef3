#pragma once

#include <map>
#include <string>
#include <vector>

namespace pagetide::bench {

// An allocator that takes part in bench_heap.
struct HeapEntrant {
  std::string name;
  std::string source;   // the worker's name for it
  std::string preload;  // a library in malloc's place; empty: none
  std::map<std::string, std::string> environment;
  std::string missing;  // why it cannot take part; empty: it can

  unsigned portions = 6;  // of the work in a run; the slow ones do less

  bool clears_by_memset() const { return source == "malloc_clears"; }
  bool is_arena() const { return source.starts_with("arena"); }
};

// All of them, whether they are installed or not: a peer that is missing shall be seen to be.
std::vector<HeapEntrant> heap_entrants();
// Arenas with another slack than by default, for the pages that an epoch dirties alone.
std::vector<HeapEntrant> slack_entrants();

// The one that the others' ratios are to: an arena as it is made by default.
inline constexpr const char* kOurs = "arena";

}  // namespace pagetide::bench
