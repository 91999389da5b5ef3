#include "bench/heap/process_pages.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/kernel/maps_reader.h"
#include "pagetide/tracker/kernel/pagemap_file.h"

namespace pagetide::bench {

namespace {

constexpr std::size_t kMaxParts = 65'536;  // the default of vm.max_map_count
constexpr std::size_t kRegions = 4096;     // entries of a vector, not a page size

Result<UniqueFd> open_faults() {
  UniqueFd fd(static_cast<int>(
      ::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kernel::kUffdUserModeOnly)));
  if (!fd.valid()) return system_failure("open userfaultfd", errno);
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kernel::kUffdFeatureWpAsync | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
  if (const int r = sys::ioctl(fd.get(), UFFDIO_API, &api); r < 0) {
    return system_failure("get asynchronous write protection", -r, "Linux 6.7 or newer has it.");
  }
  return fd;
}

}  // namespace

ProcessPages::ProcessPages(ByteRange shared, ByteRange tracked, UniqueFd faults, UniqueFd pagemap)
    : shared_(shared),
      tracked_(tracked),
      faults_(std::move(faults)),
      pagemap_(std::move(pagemap)),
      parts_(kMaxParts),
      regions_(kRegions) {}

Result<std::unique_ptr<ProcessPages>> ProcessPages::open(ByteRange shared, ByteRange tracked) {
  auto faults = open_faults();
  if (!faults) return propagate(faults);
  auto pagemap = open_own_pagemap();
  if (!pagemap) return propagate(pagemap);
  return std::unique_ptr<ProcessPages>(
      new ProcessPages(shared, tracked, std::move(*faults), std::move(*pagemap)));
}

Result<void> ProcessPages::find_parts() {
  MapsReader maps;
  if (!maps.valid()) return system_failure("read /proc/self/maps", errno);
  const auto on_stack = reinterpret_cast<std::uintptr_t>(&maps);
  part_count_ = 0;
  for (MapsLine line; maps.next(line);) {
    const bool is_tracked = tracked_.contains(line.range);
    const bool counts =
        line.shared ? !shared_.intersect(line.range).empty() : !line.range.contains(on_stack);
    if (!line.writable || (!counts && !is_tracked)) continue;
    if (part_count_ == parts_.size()) {
      return failure(ErrorCode::unsupported, "there are too many mappings to count their pages");
    }
    const PartKind kind = is_tracked    ? PartKind::is_tracked
                          : line.shared ? PartKind::is_shared
                                        : PartKind::is_private;
    parts_[part_count_++] = {line.range, kind};
  }
  return {};
}

Result<void> ProcessPages::arm() {
  if (auto r = find_parts(); !r) return r;
  for (std::size_t i = 0; i < part_count_; ++i) {
    if (parts_[i].kind == PartKind::is_tracked) continue;
    uffdio_register request{};
    request.range = {parts_[i].range.begin, parts_[i].range.size};
    request.mode = UFFDIO_REGISTER_MODE_WP;
    if (const int r = sys::ioctl(faults_.get(), UFFDIO_REGISTER, &request); r < 0) {
      return system_failure("register an allocator's memory with userfaultfd", -r);
    }
    if (auto scanned = scan(parts_[i], true, true); !scanned) return propagate(scanned);
  }
  return {};
}

Result<ProcessPages::Counts> ProcessPages::count() {
  if (auto r = find_parts(); !r) return propagate(r);
  Counts counts;
  for (std::size_t i = 0; i < part_count_; ++i) {
    auto populated = scan(parts_[i], false, false);
    if (!populated) return propagate(populated);
    counts.populated += *populated;
    if (parts_[i].kind == PartKind::is_tracked) continue;
    auto written = scan(parts_[i], true, false);
    if (!written) return propagate(written);
    counts.written += *written;
  }
  return counts;
}

// Without the check that all of it is registered: what is new is not, and is to be reported.
Result<std::size_t> ProcessPages::scan(const Part& part, bool written_only, bool arm) {
  kernel::PmScanArg query{};
  query.size = sizeof(query);
  query.flags = arm ? kernel::kScanWpMatching : 0;
  query.vec = reinterpret_cast<std::uintptr_t>(regions_.data());
  query.vec_len = regions_.size();
  query.category_anyof_mask = kernel::kPagePresent | kernel::kPageSwapped;
  // Neither zero pages nor what was only read of a file.
  query.category_inverted =
      part.kind == PartKind::is_shared ? 0 : kernel::kPagePfnZero | kernel::kPageFile;
  query.category_mask = query.category_inverted | (written_only ? kernel::kPageWritten : 0);
  query.return_mask = kernel::kPagePresent | kernel::kPageSwapped;
  std::size_t pages = 0;
  for (std::uintptr_t at = part.range.begin; at < part.range.end(); at = query.walk_end) {
    query.start = at;
    query.end = part.range.end();
    const int found = sys::ioctl(pagemap_.get(), kernel::kPagemapScan, &query);
    if (found < 0) return system_failure("scan the page table (PAGEMAP_SCAN)", -found);
    if (query.walk_end <= at) {
      return failure(ErrorCode::system_failure, "PAGEMAP_SCAN makes no progress");
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(found); ++i) {
      pages += (regions_[i].end - regions_[i].start) / page_size();
    }
  }
  return pages;
}

}  // namespace pagetide::bench
