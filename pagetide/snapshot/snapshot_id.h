#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pagetide/base/error.h"

namespace pagetide {

// Names a snapshot within its store. Ids ascend from 1 in the order of commits.
struct SnapshotId {
  std::uint64_t value = 0;
  friend auto operator<=>(const SnapshotId&, const SnapshotId&) = default;
};

struct SnapshotInfo {
  SnapshotId id;
  SnapshotId parent;             // value 0: none
  std::uint64_t created_ns = 0;  // since 1970, UTC
  std::string arena;
  std::uint64_t page_bytes = 0;
  std::uint64_t region_base = 0;
  std::uint64_t reserve_bytes = 0;
  std::uint64_t image_pages = 0;
  std::uint64_t reported_pages = 0;    // by the tracker
  std::uint64_t changed_pages = 0;     // of these and of what was freed: differ from the parent's
  std::uint64_t zero_pages = 0;        // of these, all zero
  std::uint64_t bytes_written = 0;     // to all files of the store
  std::uint64_t stop_ns = 0;           // how long writers were held
  std::uint64_t heap_bytes = 0;        // spans in use and their metadata
  std::uint64_t heap_state_bytes = 0;  // of the record of what changed in the heap's metadata
  bool has_full_index = false;
  bool holds_code_addresses = false;
  // Whether what is not zero in the image's free memory was written there after it was freed: the
  // arena has cleared on free for its whole life. False in what older versions wrote.
  bool free_bytes_are_zero = false;
  // Free memory is zero in the image, whatever the arena's memory held there.
  bool free_bytes_masked = false;
  std::string build_id;  // of the writing program, hexadecimal
  std::uint64_t load_address = 0;

  std::uint64_t data_pages() const { return changed_pages - zero_pages; }
};

// A run of pages that a snapshot changed; pages are numbered from the region's base.
struct ChangedRun {
  std::uint64_t first_page = 0;
  std::uint64_t page_count = 0;
  bool zero = false;
};

}  // namespace pagetide
