#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "pagetide/allocator/clear_policy.h"
#include "pagetide/allocator/heap_layout.h"
#include "pagetide/allocator/heap_metadata.h"
#include "pagetide/allocator/on_corruption.h"
#include "pagetide/allocator/region.h"
#include "pagetide/base/error.h"
#include "pagetide/base/export.h"

namespace pagetide {

class HeapChangeLog;

struct HeapStats {
  std::uint64_t live_blocks = 0;
  std::uint64_t live_bytes = 0;  // by slot size, not by what was asked for
  std::uint64_t spans_in_use = 0;
  std::uint64_t heap_bytes = 0;  // spans in use and the metadata that describes them
  // Free spans that are kept in memory for reuse: up to 32 MiB, or an eighth of what is in use.
  std::uint64_t idle_bytes = 0;
  std::uint64_t reserve_bytes = 0;
};

// Of the blocks of one size.
struct ClassStats {
  std::uint32_t slot_bytes = 0;
  std::uint64_t slots = 0;  // that its spans have
  std::uint64_t live = 0;   // of these are allocated
  std::uint64_t spans = 0;
};

// Parts of a region that can differ from zero. A value without allocation, because it is asked for
// while writers are held.
class UsedRanges {
 public:
  // Ascending; a range that begins where the last one ends is joined to it.
  void add(ByteRange range) {
    if (range.empty()) return;
    if (count_ > 0 && ranges_[count_ - 1].end() == range.begin) {
      ranges_[count_ - 1].size += range.size;
    } else {
      ranges_[count_++] = range;
    }
  }
  std::span<const ByteRange> span() const& { return {ranges_.data(), count_}; }
  std::span<const ByteRange> span() const&& = delete;  // would dangle
  std::uintptr_t end() const { return count_ == 0 ? 0 : ranges_[count_ - 1].end(); }

 private:
  std::array<ByteRange, 12> ranges_{};
  std::size_t count_ = 0;
};

// The in-region heap: slots of 40 size classes from 16 bytes to 32 KiB in spans of 64 KiB, whole
// spans above. Its ground truth is the layout in the region (heap_layout.h).
//
// Thread-safe: any thread may allocate and free anything. Small blocks take no lock as long as the
// thread's spans have room; large blocks share one. No exception, no errno: nullptr means that the
// reservation or the machine is exhausted. Freeing what is not allocated aborts the process with a
// message (proven heap corruption), or is reported and ignored (set_on_corruption()).
//
// Below "for the snapshot layer": only while no other thread is inside the heap.
class PAGETIDE_API Heap {
 public:
  static constexpr std::size_t kMaxAlignment = std::size_t{1} << 30;  // 1 GiB

  // A new heap in a fresh region.
  static Result<std::unique_ptr<Heap>> format(Region& region, std::string_view name,
                                              ClearPolicy clear);
  // The heap that a region's bytes already hold. Checks the superblock and the span table;
  // O(spans).
  static Result<std::unique_ptr<Heap>> attach(Region& region, ClearPolicy clear);

  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap();

  // `alignment` is a power of two up to kMaxAlignment. Blocks are aligned to 16 bytes at least. A
  // size of 0 gives a unique block. The content is unspecified.
  void* allocate(std::size_t bytes) noexcept;
  void* allocate(std::size_t bytes, std::size_t alignment) noexcept;
  // The same, but all usable bytes are zero. Memory that is known to be zero is not written to:
  // that never handed out, and under on_free all that was freed since the heap was made, opened or
  // rolled back. (Who writes to memory that is not his finds his bytes in a later block.)
  void* allocate_zeroed(std::size_t bytes, std::size_t alignment = 16) noexcept;
  // Changes the size of a block and returns where it is then, with its bytes up to the smaller of
  // both sizes; what is new is unspecified. It stays where it is if it can: a large one whose
  // neighbour is free, and a small one of which at least a half is still used. nullptr block: as
  // allocate(). Returns nullptr, and leaves the block as it is, where allocate() would; also for
  // what is not allocated, where that is reported (set_on_corruption()) instead of aborting.
  void* reallocate(void* block, std::size_t bytes, std::size_t alignment = 16) noexcept;
  // nullptr is ignored.
  void deallocate(void* block) noexcept;
  // Gives the memory of spans that are free back to the system: those that are kept for reuse, and
  // the empty ones of the calling thread and of threads that have ended. How many bytes. Other
  // threads may allocate and free.
  std::size_t trim() noexcept;
  // Blocks of `bytes` each into out, from its front; how many: fewer than asked for only where the
  // reservation or the machine is exhausted. As many allocations, in one operation of the heap: a
  // thread that is to be stopped is so after all of them.
  std::size_t allocate_batch(std::size_t bytes, std::span<void*> out) noexcept;
  // Frees them all; null pointers are ignored. As many frees, in one operation.
  void deallocate_batch(std::span<void* const> blocks) noexcept;
  // Clears what is free and not known to be zero, for a heap under on_free that holds remains of
  // blocks freed under never, or that was restored from such a snapshot: from here on it is as if
  // it had been under on_free for its whole life. Pages that are zero already are not written to.
  // Not while other threads allocate or free. Under never it fails with invalid_argument. Cost:
  // reads all free memory.
  Result<void> clear_free_memory();
  // All bytes of the block that may be used; constant over the block's life. 0 for nullptr.
  std::size_t usable_size(const void* block) const noexcept;
  // Whether it is the start of an allocated block. Of any address; what other threads allocate and
  // free meanwhile may or may not count.
  bool is_allocated(const void* block) const noexcept;
  bool owns(const void* address) const noexcept;

  // Every allocated block, in address order. Not while other threads allocate or free.
  void for_each_allocation(const std::function<void(void*, std::size_t)>& visit) const;
  // Walks everything and checks that it agrees with itself. Not while others allocate or free.
  Result<HeapStats> check() const;
  // Counts by walking the bitmaps: O(spans). Not while others allocate or free.
  HeapStats stats() const;
  // Of each size class, by walking the bitmaps: O(spans). Large blocks are in none. Not while
  // others allocate or free.
  std::array<ClassStats, layout::kSizeClasses> class_stats() const;

  std::string_view name() const;
  ClearPolicy clear_policy() const;
  // Not while other threads free.
  void set_on_corruption(const OnCorruption& on_corruption);
  // At most kMaxSlackPercent. Before the heap is used.
  void set_slack_percent(unsigned percent);
  bool holds_code_addresses() const;
  void set_holds_code_addresses();
  const layout::Geometry& geometry() const;

  // --- for the snapshot layer ---
  // The pages of the data that can differ from zero. Also while others allocate: then more may be
  // handed out by the time it returns.
  UsedRanges used_ranges() const;
  // The same of the metadata: superblock, roots, span table, eight groups of bitmaps; ascending and
  // disjoint, without the run-time page.
  UsedRanges metadata_ranges() const;
  HeapMetadata metadata() const;
  // Everything from here on is zero; from the region's start.
  std::size_t image_bytes() const;
  // What of the metadata has changed since the log was cleared last. Not the superblock. Clear it
  // only together with a take of the tracker: what is freed in pages that are dirty in this epoch
  // is not noted again.
  HeapChangeLog& changes() const;
  // Spans in use and the metadata for them, without walking.
  std::uint64_t heap_bytes() const;
  // Brings the bitmaps up to date with what threads have freed that do not own the block's span, so
  // that no slot that is free is stored as allocated. Cost: what was freed so since the last time.
  void settle() const;
  // Whether all bytes that are free were zero when they were freed: the heap has been under
  // on_free for its whole life, in this process and before. Then a byte in free memory that is
  // not zero was written after the free.
  bool free_bytes_are_zero() const;
  // What is known of bytes that came into the region from elsewhere; nothing after attach().
  void inherit_free_bytes_are_zero(bool known);
  // Rebuilds what is volatile after the region's bytes were replaced. O(spans), reads all bitmaps.
  Result<void> rebuild();
  // The same where nothing of the metadata was replaced but what the change log notes, and settle()
  // was called before. Cost: what is noted, and 8 bytes a span.
  Result<void> refresh();
  // Makes writable what the first `bytes` of a heap of this region can occupy, before its bytes
  // are read in. No heap exists yet.
  static Result<void> commit_image(Region& region, std::size_t bytes);

 private:
  struct Impl;
  explicit Heap(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  std::uint64_t
      id_;  // of no other heap in this process, ever; here, so that the way to it is short
};

}  // namespace pagetide
