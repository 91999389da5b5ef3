#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "pagetide/allocator/clear_policy.h"
#include "pagetide/allocator/heap_layout.h"
#include "pagetide/allocator/recent_peak.h"
#include "pagetide/allocator/region.h"
#include "pagetide/allocator/run_zeroing.h"
#include "pagetide/base/lock_rank.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/hot_pages.h"

namespace pagetide {

// A run of spans that was handed out.
struct SpanRun {
  std::size_t first = 0;
  bool known_zero = false;  // every byte
};

enum class RunContent : std::uint8_t { unknown, zero };

// Hands out runs of whole spans of a region's data area, lowest address first, and takes them
// back. Volatile: rebuilt from the span table with reset() and mark_used(). Thread-safe.
//
// Under ClearPolicy::on_free every run that comes back is made zero, outside the lock and by the
// cheaper way (run_zeroing.h); under the other policies it is as it was. It stays in memory. What
// exceeds the bound below is given back to the system, the highest addresses first. "Known zero" is
// what was recorded then, or of memory that was never handed out: it does not outlive reset(),
// after which the free spans hold what the restored image has there.
class SpanSupply {
 public:
  // Commits in steps of this many spans (2 MiB).
  static constexpr std::size_t kCommitSpans = 32;
  // What allocate_near() keeps together: the block by which the tracker decides what to arm
  // (HotPages::kBlockBytes).
  static constexpr std::size_t kBlockSpans = HotPages::kBlockBytes / layout::kSpanBytes;
  // Free spans that stay in memory: this many (32 MiB), or as many as this part of those in use. Of
  // a heap that was larger in the last second or two (RecentPeak) so many that with those in use
  // they are half as much again as it was, because giving memory back that is soon needed again
  // costs a page fault a page, and free spans are not where the next run fits. What is too much
  // goes when a run comes back.
  static constexpr std::size_t kMinIdleSpans = 512;
  static constexpr std::size_t kIdlePart = 8;
  static constexpr std::size_t kRecentPart = 2;

  using Clock = std::uint64_t (*)();  // milliseconds, not going back
  static std::uint64_t coarse_ms();

  static Result<SpanSupply> create(Region& region, const layout::Geometry& geometry,
                                   ClearPolicy clear, Clock clock = coarse_ms);
  SpanSupply(SpanSupply&& other) noexcept;
  SpanSupply& operator=(SpanSupply&&) = delete;
  SpanSupply(const SpanSupply&) = delete;
  SpanSupply& operator=(const SpanSupply&) = delete;
  ~SpanSupply() = default;

  // A run of `count` spans whose first index is a multiple of `alignment_spans` relative to
  // address 0. nullopt when the reservation or the machine is exhausted. *high_water is raised
  // where the run lies beyond it.
  std::optional<SpanRun> allocate(std::size_t count, std::size_t alignment_spans,
                                  std::uint64_t& high_water);
  // A single span near `neighbour`: in its block of kBlockSpans, else in a block that nothing else
  // is in, which is kept for it: others take spans from there when there are no more elsewhere.
  std::optional<SpanRun> allocate_near(std::size_t neighbour, std::uint64_t& high_water);
  // `content`: what the caller knows of the run.
  void release(std::size_t first, std::size_t count, RunContent content);

  // Takes the spans behind a run that was handed out, if they are free: the run has `count` spans
  // and shall have `wanted`. Whether the new ones are known to be zero; nullopt: not to be had.
  std::optional<bool> extend(std::size_t first, std::size_t count, std::size_t wanted,
                             std::uint64_t& high_water);
  // Gives all idle spans back to the system; how many.
  std::size_t trim();

  // Forgets everything; the first `high_water` spans are made usable.
  Result<void> reset(std::size_t high_water);
  void mark_used(std::size_t first, std::size_t count);
  // Makes zero what is free and not known to be. Not while others allocate or release.
  void clear_free_spans();
  std::size_t used_spans() const;
  void lock_for_fork() { mutex_.lock_for_fork(); }
  void unlock_after_fork() { mutex_.unlock_after_fork(); }
  // Free spans that stayed in memory when they came back.
  std::size_t idle_spans() const;

 private:
  // Numbers of spans.
  using SpanRange = PageRange;
  // One bit a span each.
  using SpanBits = VirtualArray<std::uint64_t>;

  SpanSupply(Region& region, const layout::Geometry& geometry, ClearPolicy clear, Clock clock,
             std::array<SpanBits, 5> bits);

  ByteRange bytes_of(std::size_t first, std::size_t count) const;
  enum class Reserved : std::uint8_t { counts_as_used, is_free };
  std::optional<std::size_t> find_free(std::size_t count, std::size_t alignment,
                                       std::size_t high_water, Reserved reserved) const;
  std::optional<std::size_t> find_free(std::size_t count, std::size_t alignment,
                                       std::size_t high_water) const;
  SpanRange block_of(std::size_t span) const;
  std::size_t align_index(std::size_t index, std::size_t alignment) const;
  bool is_used(std::size_t span) const { return test(used_, span); }
  bool is_idle(std::size_t span) const { return test(idle_, span); }
  std::size_t next_used(std::size_t from, std::size_t end, Reserved reserved) const;
  std::optional<SpanRun> take(std::size_t first, std::size_t end, std::uint64_t& high_water);
  Result<void> commit_to(std::size_t end);
  std::size_t most_idle(std::size_t used);
  bool has_room_for_idle(std::size_t count);
  std::optional<SpanRange> take_idle_beyond(std::size_t most);
  std::size_t give_back_idle_beyond(std::size_t most);
  enum class Came : std::uint8_t { given_back, zero, unknown };
  void note_free(SpanRange run, Came came);
  bool take_known_zero(std::size_t first, std::size_t end);
  void take_from_system(std::size_t first, std::size_t end);
  static bool test(const SpanBits& bits, std::size_t span) {
    return (bits[span / 64] >> (span % 64) & 1U) != 0;
  }

  mutable RankedMutex mutex_{LockRank::heap_spans, "heap spans"};
  Region* region_;
  layout::Geometry geometry_;
  ClearPolicy clear_;
  Clock clock_;
  SpanBits used_;
  SpanBits zero_;        // free, and known to be zero
  SpanBits given_back_;  // free, and to be prefilled before use
  SpanBits idle_;        // free, and in memory since they came back
  SpanBits reserved_;    // of blocks that allocate_near() has begun, all spans; used ones, too
  std::size_t used_count_ = 0;
  RecentPeak recently_used_;
  std::size_t idle_count_ = 0;
  std::size_t lowest_free_ = 0;   // no free span below this one
  std::size_t committed_ = 0;     // spans that are readable and writable
  std::size_t lowest_open_ = 0;   // no span below this one that is free and not reserved
  std::size_t reserved_end_ = 0;  // none is reserved from here on
  // Spans that were ever handed out; what is beyond is zero, and commit has prefilled it.
  std::size_t touched_ = 0;
};

}  // namespace pagetide
