#include "pagetide/tracker/backends/soft_dirty_process.h"

#include <algorithm>
#include <bit>
#include <string>

#include "pagetide/tracker/backends/handler_lock.h"
#include "pagetide/tracker/word_masks.h"

namespace pagetide {

namespace {

// Of one read: 32 KiB.
constexpr std::size_t kEntries = 4096;  // not a page size

constexpr std::string_view kWayOut =
    "A kernel built with CONFIG_MEM_SOFT_DIRTY is needed (grep MEM_SOFT_DIRTY "
    "/boot/config-$(uname -r)), which exists for x86-64, s390x and ppc64. The compare back end "
    "works "
    "without it.";

bool is_populated(std::uint64_t entry) {
  return (entry & (kPagemapPresent | kPagemapSwapped)) != 0;
}
bool is_soft_dirty(std::uint64_t entry) {
  return (entry & kPagemapSoftDirty) != 0;
}

bool test(const VirtualArray<std::uint64_t>& words, std::size_t page) {
  return (words[page / 64] >> (page % 64) & 1U) != 0;
}

tl::unexpected<Error> no_soft_dirty(std::string_view what) {
  return failure(ErrorCode::unsupported, std::string(what).append(" ").append(kWayOut));
}

}  // namespace

// One watched range. Its tables cost memory only where pages were collected.
class SoftDirtyProcess::Watch {
 public:
  static Result<std::unique_ptr<Watch>> create(ByteRange range) {
    const std::size_t words = divide_up(range.size / page_size(), 64);
    auto watch = std::make_unique<Watch>();
    watch->range = range;
    for (auto* table : {&watch->seen, &watch->gathered}) {
      auto made = VirtualArray<std::uint64_t>::create(words);
      if (!made) return propagate(made);
      *table = std::move(*made);
    }
    return watch;
  }

  ByteRange range;
  VirtualArray<std::uint64_t> seen;      // collected at least once; the others are not gathered
  VirtualArray<std::uint64_t> gathered;  // to be reported
};

SoftDirtyProcess::SoftDirtyProcess(std::unique_ptr<SoftDirtyKernel> kernel,
                                   VirtualArray<std::uint64_t> entries,
                                   VirtualArray<std::byte> scratch)
    : kernel_(std::move(kernel)), entries_(std::move(entries)), scratch_(std::move(scratch)) {}

SoftDirtyProcess::~SoftDirtyProcess() = default;

Result<std::shared_ptr<SoftDirtyProcess>> SoftDirtyProcess::over(
    std::unique_ptr<SoftDirtyKernel> kernel) {
  auto entries = VirtualArray<std::uint64_t>::create(kEntries);
  if (!entries) return propagate(entries);
  auto scratch = VirtualArray<std::byte>::create(page_size());
  if (!scratch) return propagate(scratch);
  std::shared_ptr<SoftDirtyProcess> made(
      new SoftDirtyProcess(std::move(kernel), std::move(*entries), std::move(*scratch)));
  if (auto r = made->probe(); !r) return propagate(r);
  return made;
}

Result<std::shared_ptr<SoftDirtyProcess>> SoftDirtyProcess::of_this_process() {
  static RankedMutex mutex(LockRank::soft_dirty_opening, "soft-dirty bits of this process");
  static std::shared_ptr<SoftDirtyProcess> kept;
  static pid_t owner = 0;
  const RankedLock lock(mutex);
  if (kept != nullptr && owner == ::getpid()) return kept;
  auto kernel = SoftDirtyKernel::open();
  if (!kernel) return propagate(kernel);
  auto made = over(std::move(*kernel));
  if (!made) return propagate(made);
  kept = std::move(*made);
  owner = ::getpid();
  return kept;
}

// --- the round trip ---

Result<std::uint64_t> SoftDirtyProcess::scratch_entry() {
  std::uint64_t entry = 0;
  const ByteRange page = ByteRange::of(scratch_.span().data(), page_size());
  if (auto r = kernel_->read_entries(page, {&entry, 1}); !r) return propagate(r);
  return entry;
}

// write -> set -> clear -> not set -> write -> set. Writing to clear_refs succeeds on kernels that
// have no soft-dirty bits, and some had bits that did not come back, so each step is looked at.
Result<void> SoftDirtyProcess::probe() {
  const std::uintptr_t scratch = ByteRange::of(scratch_.span().data(), 1).begin;
  kernel_->store(scratch);
  auto written = scratch_entry();
  if (!written) return propagate(written);
  if (!is_populated(*written)) {
    return no_soft_dirty("/proc/self/pagemap does not show a page that was just written.");
  }
  if (!is_soft_dirty(*written)) {
    return no_soft_dirty(
        "This kernel has no soft-dirty bits: a page that was just written lacks it.");
  }
  if (auto r = kernel_->clear_all(); !r) return r;
  auto cleared = scratch_entry();
  if (!cleared) return propagate(cleared);
  if (is_soft_dirty(*cleared)) {
    return no_soft_dirty(
        "This kernel does not clear soft-dirty bits, though clear_refs says it did.");
  }
  // From here on it is the tripwire.
  kernel_->store(scratch);
  auto again = scratch_entry();
  if (!again) return propagate(again);
  if (!is_soft_dirty(*again)) {
    return no_soft_dirty("This kernel loses writes: after clearing, a written page lacks its bit.");
  }
  return {};
}

// --- watching ---

Result<SoftDirtyProcess::Watch*> SoftDirtyProcess::add(ByteRange range) {
  if (!kernel_->is_private(range)) {
    return failure(
        ErrorCode::unsupported,
        "cannot track shared memory with soft-dirty bits: the kernel forgets them when it "
        "reclaims a page of it. Use private memory, or BackendKind::compare.");
  }
  auto watch = Watch::create(range);
  if (!watch) return propagate(watch);
  const BlockedSignals blocked(BlockedSignals::Except::faults);
  const RankedLock lock(mutex_);
  watches_.push_back(std::move(*watch));
  return watches_.back().get();
}

void SoftDirtyProcess::remove(Watch* watch) {
  const BlockedSignals blocked(BlockedSignals::Except::faults);
  const RankedLock lock(mutex_);
  std::erase_if(watches_, [&](const auto& one) { return one.get() == watch; });
}

std::uint64_t SoftDirtyProcess::clearings() const {
  const RankedLock lock(mutex_);
  return clearings_;
}

std::uint64_t SoftDirtyProcess::foreign_clearings() const {
  const RankedLock lock(mutex_);
  return foreign_clearings_;
}

// --- collecting ---

Result<void> SoftDirtyProcess::collect(Watch& watch, ByteRange part, CollectMode mode,
                                       DirtyBitmap& written) {
  // A thread that is stopped by a signal shall not be stopped with this lock in its hands.
  const BlockedSignals blocked(BlockedSignals::Except::faults);
  const RankedLock lock(mutex_);
  const PageRange pages = PageRange::covering(part, watch.range);
  if (auto r = check_tripwire(); !r) return r;
  auto any_bit_set = gather(watch, pages);
  if (!any_bit_set) return propagate(any_bit_set);
  if (mode == CollectMode::take && *any_bit_set) {
    if (auto r = gather_all(); !r) return r;
    if (auto r = clear_all(); !r) return r;
  }
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    const std::uint64_t found = watch.gathered[i] & mask;
    if (found != 0) written.add_to_word(i, found);
    if (mode == CollectMode::peek) return;
    if (found != 0) watch.gathered[i] &= ~mask;
    if ((watch.seen[i] & mask) != mask) watch.seen[i] |= mask;
  });
  return {};
}

// Reads the pages' bits and remembers what must be reported. Tells whether any bit was set.
Result<bool> SoftDirtyProcess::gather(Watch& watch, PageRange pages) {
  bool any_bit_set = false;
  for (std::size_t first = pages.first; first < pages.end();) {
    const std::size_t count = std::min(kEntries, pages.end() - first);
    const auto entries = entries_.span().first(count);
    const ByteRange bytes = PageRange{first, count}.bytes_from(watch.range.begin);
    if (auto r = kernel_->read_entries(bytes, entries); !r) return propagate(r);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t page = first + i;
      if (!is_populated(entries[i])) continue;
      any_bit_set = any_bit_set || is_soft_dirty(entries[i]);
      if (!is_soft_dirty(entries[i]) && test(watch.seen, page)) continue;
      if (!test(watch.gathered, page)) watch.gathered[page / 64] |= std::uint64_t{1} << (page % 64);
    }
    first += count;
  }
  return any_bit_set;
}

Result<void> SoftDirtyProcess::gather_all() {
  for (const auto& watch : watches_) {
    // Runs of words that have seen pages: a word too many is no harm.
    const std::size_t page_count = watch->range.size / page_size();
    const auto seen = watch->seen.span();
    for (std::size_t word = 0; word < seen.size();) {
      if (seen[word] == 0) {
        ++word;
        continue;
      }
      const std::size_t first = word;
      while (word < seen.size() && seen[word] != 0) ++word;
      const PageRange run{first * 64, std::min(word * 64, page_count) - first * 64};
      if (auto r = gather(*watch, run); !r) return propagate(r);
    }
  }
  return {};
}

Result<void> SoftDirtyProcess::clear_all() {
  if (auto r = kernel_->clear_all(); !r) return r;
  ++clearings_;
  kernel_->store(ByteRange::of(scratch_.span().data(), 1).begin);
  return {};
}

Result<void> SoftDirtyProcess::check_tripwire() {
  auto entry = scratch_entry();
  if (!entry) return propagate(entry);
  if (is_soft_dirty(*entry)) return {};
  ++foreign_clearings_;
  // As if nothing had ever been collected.
  for (const auto& watch : watches_) watch->seen.reset();
  kernel_->store(ByteRange::of(scratch_.span().data(), 1).begin);
  return {};
}

}  // namespace pagetide
