#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/tracker/backends/handler_lock.h"
#include "pagetide/tracker/backends/signal_chain.h"

namespace pagetide {

// What the signal handlers and takes of one process have counted, or those of one range.
struct ProtectionCounts {
  std::uint64_t faults = 0;             // first writes to armed pages that were let through
  std::uint64_t faults_settled = 0;     // another thread had been first
  std::uint64_t coarse_faults = 0;      // of `faults`: those that let through more than a page
  std::uint64_t surplus_pages = 0;      // pages that count as written only because of that
  std::uint64_t runs_left_unarmed = 0;  // by takes, for the sake of the mappings
};

// Splitting a mapping by protection makes new ones, and a process may have no more than
// vm.max_map_count. The new ones of all ranges are counted here.
class MappingBudget {
 public:
  // Two more, unless there would be more than `limit`.
  static bool reserve_two(std::size_t limit);
  static void change(std::int64_t by);
  static std::size_t used();
};

// One range of memory of which pages are made read-only ("armed"), so that the first write to
// each raises SIGSEGV; the handler records the page and makes it writable again.
//
// Each page is in one of three states, by two bits:
//   armed             clean; read-only
//   written           to be reported; writable
//   neither           never armed: its owner may have written it, or nobody has touched it
// and, while a handler is at work on it, in both. Writes are never missed because "written" is
// set before the page becomes writable and is only cleared together with arming, under the lock.
// A page that is read-only by us always has its "armed" bit, in a forked child too: the bit is set
// before mprotect() takes access away and cleared after mprotect() gave it back.
//
// All that a handler writes lies in mappings of its own, never in memory that is watched, with the
// one exception of the process's static data, which therefore cannot be.
class ProtectedRange {
 public:
  // Work is done in steps of so many pages, eight words: 2 MiB where a page has 4 KiB.
  static constexpr std::size_t kStepPages = 512;
  using StepWords = std::array<std::uint64_t, kStepPages / 64>;
  static bool has_any(const StepWords& words);

  // `max_extra_mappings` bounds MappingBudget. Errors: those of FaultWatch::add, out_of_memory.
  static Result<std::unique_ptr<ProtectedRange>> create(ByteRange range,
                                                        std::size_t max_extra_mappings);
  ProtectedRange(const ProtectedRange&) = delete;
  ProtectedRange& operator=(const ProtectedRange&) = delete;
  // Makes all pages writable again. Works in a forked child, for its own copy of the memory.
  ~ProtectedRange();

  ByteRange range() const { return range_; }

  // --- for the one thread that collects ---

  // The pages of `pages` that are in neither state, as one bound: the least range with all of
  // them. `pages` lies in one step.
  PageRange unknown(PageRange pages) const;
  // Those of `pages` that are not armed become written.
  void note_written(PageRange pages);
  // The written pages of `pages`, which lies in one step; bit 0 is the step's first page.
  StepWords written(PageRange pages) const;
  // The same, and arms them. Pages that could not be armed stay written.
  StepWords take_written(PageRange pages);
  // Arms those of `pages`, in one step, that are in neither state, and tells which.
  StepWords arm_unknown(PageRange pages);
  // Makes the armed pages of `pages` writable and written.
  void disarm(PageRange pages);

  std::size_t count_armed(PageRange pages) const;

  ProtectionCounts counts() const;

 private:
  // A set of pages that handlers and collectors share.
  class SharedBits {
   public:
    static Result<SharedBits> create(std::size_t page_count);
    std::uint64_t word(std::size_t i) const;
    bool test(std::size_t page) const { return (word(page / 64) >> (page % 64) & 1U) != 0; }
    void add(std::size_t i, std::uint64_t bits) { ref(i).fetch_or(bits); }
    void set(PageRange pages);
    void reset(PageRange pages);
    // The first run of set pages within `pages`; empty when there is none.
    PageRange first_run(PageRange pages) const;
    // The longest run of set pages around `page`, which is set.
    PageRange run_around(std::size_t page, std::size_t page_count) const;

   private:
    explicit SharedBits(VirtualArray<std::uint64_t> words) : words_(std::move(words)) {}
    std::atomic_ref<std::uint64_t> ref(std::size_t i) const { return std::atomic_ref(words_[i]); }
    std::size_t find(std::size_t page, std::size_t end, bool value) const;

    // Mutable, since atomic_ref wants it for loads too.
    mutable VirtualArray<std::uint64_t> words_;
  };
  // In a mapping of its own, because handlers write to it.
  struct Shared {
    ProtectionCounts counts;
    std::uint64_t generation;  // changes whenever pages are armed
  };

  ProtectedRange(ByteRange range, std::size_t max_extra_mappings, SharedBits armed,
                 SharedBits written, VirtualArray<Shared> shared, HandlerLock lock);

  // In the handler. open_around() is false when mprotect() refuses.
  static FaultAnswer on_fault(void* owner, const MemoryFault& fault) noexcept;
  FaultAnswer let_through(std::size_t page);
  bool open_around(std::size_t page);
  void note_opened(std::size_t pages);

  // Under the lock. A run is a PageRange whose pages are all armed, or are all not.
  void arm(const StepWords& wanted, std::size_t step_first);
  bool arm_run(PageRange run);
  bool disarm_armed(PageRange pages, std::size_t& disarmed);
  bool disarm_run(PageRange run);
  int mappings_when_disarmed(PageRange run) const;
  bool is_armed(std::size_t page) const { return page < page_count_ && armed_.test(page); }
  bool protect(PageRange pages, int protection) const;
  static void count(std::uint64_t& counter, std::uint64_t by = 1);

  const ByteRange range_;
  const std::size_t page_count_;
  const std::size_t max_extra_mappings_;
  SharedBits armed_;
  SharedBits written_;
  mutable VirtualArray<Shared> shared_;
  HandlerLock lock_;
  FaultWatch faults_;  // the last: nothing may be gone while handlers can come
};

}  // namespace pagetide
