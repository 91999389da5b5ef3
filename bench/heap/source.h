#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "pagetide/allocator/arena.h"
#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"

namespace pagetide::bench {

// Where a workload's blocks come from. Every allocator is called through such a table, so that
// none is inlined and each pays for one indirect call. Thread-safe, as the allocators are. Blocks
// are aligned to 16 bytes at least.
struct Source {
  void* (*allocate)(std::size_t bytes) = nullptr;  // nullptr: exhausted
  void (*deallocate)(void* block) = nullptr;
  // nullptr: exhausted, and the block is as it was. An allocator that keeps sizes itself ignores
  // `old_bytes`.
  void* (*reallocate)(void* block, std::size_t old_bytes, std::size_t new_bytes) = nullptr;
};

// An allocator that was opened for the worker, until the end of this object. One at a time.
class OpenSource {
 public:
  OpenSource() = default;
  OpenSource(const OpenSource&) = delete;
  OpenSource& operator=(const OpenSource&) = delete;
  virtual ~OpenSource() = default;

  virtual Source table() const = 0;
  // The arena that it is; nullptr for others.
  virtual Arena* arena() { return nullptr; }
  // The shared mapping that its blocks lie in; empty for those that have none.
  virtual ByteRange shared_memory() const { return {}; }
};

// `malloc`         what the process has: glibc's, or that of a preloaded library
// `malloc_clears`  the same, each block cleared by memset before it is freed
// `arena`          an arena as it is made by default, under ClearPolicy::deferred
// `arena_clears`   the same under ClearPolicy::on_free
// `arena_keeps`    the same under ClearPolicy::never
// `arena_slack_N`  as `arena`, with a slack of N percent
// `interprocess`   Boost.Interprocess, managed_mapped_file
// `pmemobj`        libpmemobj, atomic allocations
// Errors: invalid_argument for another name; unsupported for one that was not there to build with.
Result<std::unique_ptr<OpenSource>> open_source(std::string_view name);

// What open_source() chooses from.
std::unique_ptr<OpenSource> open_malloc_source(bool clears);
Result<std::unique_ptr<OpenSource>> open_arena_source(
    ClearPolicy clear, unsigned slack_percent = kDefaultSlackPercent);
Result<std::unique_ptr<OpenSource>> open_interprocess_source();
Result<std::unique_ptr<OpenSource>> open_pmemobj_source();

namespace detail {
inline Source chosen_source;
}
// What the workloads of this process use. Set it before the first thread.
inline const Source& source() {
  return detail::chosen_source;
}
inline void set_source(const Source& table) {
  detail::chosen_source = table;
}

}  // namespace pagetide::bench
