#pragma once

#include <cstdint>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/unique_fd.h"

namespace pagetide {

// One mapping of this process, or the part of it that was asked for.
struct MappedPart {
  ByteRange range;
  bool is_file = false;        // has a file or memfd behind it
  bool is_shared = false;      // MAP_SHARED
  std::size_t page_bytes = 0;  // of its pages; not the system's for hugetlb
  bool is_readable = true;
  bool is_writable = true;
  bool is_executable = false;
};

// Asks the kernel what is mapped: by PROCMAP_QUERY (Linux 6.11), which costs the same however
// many mappings there are, else by reading /proc/self/maps. Not thread-safe.
class MappingQuery {
 public:
  static Result<MappingQuery> open();

  // The mappings that cover `range`, ascending, cut to it. invalid_argument when a part of it is
  // not mapped.
  Result<std::vector<MappedPart>> parts_of(ByteRange range);
  // The same; unsupported when a part is hugetlb memory, which cannot be tracked by page.
  Result<std::vector<MappedPart>> trackable_parts_of(ByteRange range);

  // Whether PROCMAP_QUERY is used.
  bool is_fast() const { return is_fast_; }

 private:
  explicit MappingQuery(UniqueFd fd) : fd_(std::move(fd)) {}
  Result<MappedPart> part_at(std::uintptr_t address);

  UniqueFd fd_;
  bool is_fast_ = true;
};

}  // namespace pagetide
