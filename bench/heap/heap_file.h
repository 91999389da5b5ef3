#pragma once

#include <cstddef>
#include <string>

#include "pagetide/base/bytes.h"

namespace pagetide::bench {

// The heaps that live in a file. Enough for every workload at 100 percent, and not more: libpmemobj
// gives all of its file memory at once.
inline constexpr std::size_t kHeapFileBytes = std::size_t{512} << 20;

// A directory for the file of a restorable heap: in /dev/shm where there is one, so that no disk
// takes part in its times. Removed with what is in it at the end of the object. Not thread-safe.
class HeapDirectory {
 public:
  HeapDirectory();
  HeapDirectory(const HeapDirectory&) = delete;
  HeapDirectory& operator=(const HeapDirectory&) = delete;
  ~HeapDirectory() { remove(); }

  // Once the heap has mapped its file: whatever becomes of this process, no file is left.
  void remove();
  // Empty: no directory could be made.
  const std::string& path() const { return path_; }
  std::string file() const { return path_ + "/heap"; }

 private:
  std::string path_;
};

}  // namespace pagetide::bench
