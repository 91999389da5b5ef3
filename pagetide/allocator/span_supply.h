#pragma once

#include <cstdint>
#include <optional>

#include "pagetide/allocator/heap_layout.h"
#include "pagetide/allocator/region.h"
#include "pagetide/base/lock_rank.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide {

// Hands out runs of whole spans of a region's data area, lowest address first, and takes them
// back. Volatile: rebuilt from the span table with reset() and mark_used().
//
// Every free span reads as zero: a run that comes back is purged. Thread-safe.
class SpanSupply {
 public:
  // Commits in steps of this many spans (2 MiB).
  static constexpr std::size_t kCommitSpans = 32;

  static Result<SpanSupply> create(Region& region, const layout::Geometry& geometry);
  SpanSupply(SpanSupply&& other) noexcept;
  SpanSupply& operator=(SpanSupply&&) = delete;
  SpanSupply(const SpanSupply&) = delete;
  SpanSupply& operator=(const SpanSupply&) = delete;
  ~SpanSupply() = default;

  // A run of `count` spans whose first index is a multiple of `alignment_spans` relative to
  // address 0. nullopt when the reservation or the machine is exhausted. *high_water is raised
  // where the run lies beyond it. `zeroed` memory: always.
  std::optional<std::size_t> allocate(std::size_t count, std::size_t alignment_spans,
                                      std::uint64_t& high_water);
  void release(std::size_t first, std::size_t count);

  // Forgets everything; the first `high_water` spans are made usable.
  Result<void> reset(std::size_t high_water);
  void mark_used(std::size_t first, std::size_t count);
  std::size_t used_spans() const;

 private:
  SpanSupply(Region& region, const layout::Geometry& geometry, VirtualArray<std::uint64_t> used);

  ByteRange bytes_of(std::size_t first, std::size_t count) const;
  std::optional<std::size_t> find_free(std::size_t count, std::size_t alignment,
                                       std::size_t limit) const;
  std::size_t align_index(std::size_t index, std::size_t alignment) const;
  bool is_used(std::size_t span) const { return (used_[span / 64] >> (span % 64) & 1U) != 0; }
  Result<void> commit_to(std::size_t end);

  mutable RankedMutex mutex_{LockRank::heap_spans, "heap spans"};
  Region* region_;
  layout::Geometry geometry_;
  VirtualArray<std::uint64_t> used_;  // one bit a span
  std::size_t used_count_ = 0;
  std::size_t lowest_free_ = 0;  // no free span below this one
  std::size_t committed_ = 0;    // spans that are readable and writable
  std::size_t touched_ = 0;      // spans that were ever handed out; beyond, commit has prefilled
};

}  // namespace pagetide
