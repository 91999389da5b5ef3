#include "pagetide/tracker/kernel/populated_pages.h"

#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/disabled_features.h"
#include "pagetide/tracker/kernel/pagemap_file.h"

namespace pagetide {

namespace {

// Both ways: as many runs as fit into one answer.
constexpr std::size_t kRuns = 4096;  // not a page size
// The kernel holds mmap_lock for reading during a scan. Also keeps huge pages whole.
constexpr std::size_t kMaxScanBytes = std::size_t{1} << 30;

// Entries of /proc/PID/pagemap.
constexpr std::uint64_t kEntryPresent = std::uint64_t{1} << 63;
constexpr std::uint64_t kEntrySwapped = std::uint64_t{1} << 62;

}  // namespace

Result<PopulatedPages> PopulatedPages::open() {
  auto fd = open_own_pagemap();
  if (!fd) return propagate(fd);
  auto runs = VirtualArray<kernel::PageRegion>::create(kRuns);
  if (!runs) return propagate(runs);
  auto entries = VirtualArray<std::uint64_t>::create(kRuns);
  if (!entries) return propagate(entries);
  PopulatedPages pages(std::move(*fd), std::move(*runs), std::move(*entries));
  pages.scans_ = !is_disabled("pagemap_scan") && pages.can_scan();
  return pages;
}

// Tries it on a page that is certainly populated.
bool PopulatedPages::can_scan() {
  runs_[0] = {};
  std::uintptr_t at = ByteRange::of(&runs_[0], 1).page_cover().begin;
  const auto found = next_by_scan(at, at + page_size(), PageState::populated);
  return found && found->size() == 1;
}

Result<PopulatedPages::Runs> PopulatedPages::next(std::uintptr_t& at, std::uintptr_t end,
                                                  PageState state) {
  return scans_ ? next_by_scan(at, end, state) : next_by_read(at, end, state);
}

Result<PopulatedPages::Runs> PopulatedPages::next_by_scan(std::uintptr_t& at, std::uintptr_t end,
                                                          PageState state) {
  kernel::PmScanArg arg{};
  arg.size = sizeof(arg);
  arg.start = at;
  arg.end = std::min(end, round_down(at + kMaxScanBytes, kMaxScanBytes));
  arg.vec = reinterpret_cast<std::uintptr_t>(runs_.span().data());
  arg.vec_len = runs_.size();
  arg.category_anyof_mask = kernel::kPagePresent;
  if (state != PageState::in_memory) arg.category_anyof_mask |= kernel::kPageSwapped;
  if (state == PageState::not_zero) {
    arg.category_mask = kernel::kPagePfnZero;
    arg.category_inverted = kernel::kPagePfnZero;
  }
  // One bit that all runs share or lack, so that neighbours are one run as far as possible.
  arg.return_mask = kernel::kPageSwapped;
  const int found = sys::ioctl(fd_.get(), kernel::kPagemapScan, &arg);
  if (found < 0) {
    return system_failure("scan the page table for populated pages (PAGEMAP_SCAN)", -found,
                          "The range is taken as written in whole.");
  }
  if (arg.walk_end <= at) {
    return failure(ErrorCode::system_failure,
                   "PAGEMAP_SCAN made no progress; the range is taken as written in whole.");
  }
  at = arg.walk_end;
  return Runs(runs_.span().first(static_cast<std::size_t>(found)));
}

Result<PopulatedPages::Runs> PopulatedPages::next_by_read(std::uintptr_t& at, std::uintptr_t end,
                                                          PageState state) {
  const std::size_t wanted = std::min((end - at) / page_size(), entries_.size());
  const ssize_t size =
      sys::read_full(fd_.get(), entries_.span().data(), wanted * sizeof(std::uint64_t),
                     at / page_size() * sizeof(std::uint64_t));
  if (size < 0 || static_cast<std::size_t>(size) != wanted * sizeof(std::uint64_t)) {
    return system_failure("read /proc/self/pagemap", size < 0 ? static_cast<int>(-size) : EIO,
                          "The range is taken as written in whole.");
  }
  const std::uint64_t asked =
      state == PageState::in_memory ? kEntryPresent : kEntryPresent | kEntrySwapped;
  std::size_t count = 0;
  for (std::size_t i = 0; i < wanted; ++i, at += page_size()) {
    if ((entries_[i] & asked) == 0) continue;
    if (count > 0 && runs_[count - 1].end == at) {
      runs_[count - 1].end += page_size();
    } else {
      runs_[count++] = {at, at + page_size(), 0};
    }
  }
  return Runs(runs_.span().first(count));
}

}  // namespace pagetide
