#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "pagetide/base/error.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/snapshot/segment.h"

namespace pagetide {

// Copies of pages that a snapshot under way makes while writers are held, until they are in its
// segment. The address space is there before. Not thread-safe.
class Staging {
 public:
  static Result<Staging> create(std::size_t bytes);

  bool is_full() const { return staged_bytes_ == memory_.size(); }
  // Where the next page is copied to, unless it is full. The copy counts once it is added.
  std::byte* next_page() { return memory_.span().data() + staged_bytes_; }
  void add_page();
  // Writes what is staged to the segment, and is empty.
  Result<void> flush(SegmentWriter& segment);
  // Drops what is staged, at the end of a snapshot, whatever became of it. Copies must not outlive
  // what they were made of: that may be freed, and cleared, any time; `clear` says that it is.
  // Memory that a like snapshot will not need goes back to the system.
  void tidy(bool clear);

 private:
  VirtualArray<std::byte> memory_;
  std::size_t staged_bytes_ = 0;
  std::size_t most_staged_bytes_ = 0;  // by this snapshot
  std::size_t kept_bytes_ = 0;         // that can have pages
};

}  // namespace pagetide
