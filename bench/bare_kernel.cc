#include "bench/bare_kernel.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>

#include "pagetide/base/bytes.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/kernel/pagemap_scan.h"

namespace pagetide::bench {

using namespace literals;

Result<BareUffd> BareUffd::open(std::uint64_t features) {
  UniqueFd fd(static_cast<int>(
      ::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kernel::kUffdUserModeOnly)));
  if (!fd.valid()) return system_failure("open userfaultfd", errno);
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
  if (const int r = sys::ioctl(fd.get(), UFFDIO_API, &api); r < 0) {
    return system_failure("agree on userfaultfd features (UFFDIO_API)", -r);
  }
  return BareUffd(std::move(fd));
}

Result<void> BareUffd::watch(ByteRange range) {
  uffdio_register request{};
  request.range = {range.begin, range.size};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  const int r = sys::ioctl(fd_.get(), UFFDIO_REGISTER, &request);
  if (r < 0) return system_failure("register memory with userfaultfd", -r);
  return {};
}

void BareUffd::unwatch(ByteRange range) {
  uffdio_range request{range.begin, range.size};
  (void)sys::ioctl(fd_.get(), UFFDIO_UNREGISTER, &request);
}

Result<void> BareUffd::protect(ByteRange range) {
  uffdio_writeprotect request{};
  request.range = {range.begin, range.size};
  request.mode = UFFDIO_WRITEPROTECT_MODE_WP;
  const int r = sys::ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &request);
  if (r < 0) return system_failure("write-protect memory (UFFDIO_WRITEPROTECT)", -r);
  return {};
}

Result<void> BareUffd::map_zero_pages(ByteRange range) {
  std::uintptr_t at = range.begin;
  while (at < range.end()) {
    uffdio_zeropage request{};
    request.range = {at, std::min(2_MiB, range.end() - at)};
    request.mode = UFFDIO_ZEROPAGE_MODE_DONTWAKE;
    const int r = sys::ioctl(fd_.get(), UFFDIO_ZEROPAGE, &request);
    if (request.zeropage > 0) {
      at += static_cast<std::uintptr_t>(request.zeropage);
    } else if (r != -EAGAIN) {
      return system_failure("map zero pages (UFFDIO_ZEROPAGE)", -r);
    }
  }
  return {};
}

namespace {

Result<UniqueFd> open_pagemap() {
  UniqueFd fd(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return system_failure("open /proc/self/pagemap", errno);
  return fd;
}

}  // namespace

Result<BareScan> BareScan::open() {
  auto fd = open_pagemap();
  if (!fd) return propagate(fd);
  auto vector = VirtualArray<kernel::PageRegion>::create(PagemapScanner::kVectorRegions);
  if (!vector) return propagate(vector);
  return BareScan(std::move(*fd), std::move(*vector));
}

Result<std::size_t> BareScan::scan(ByteRange range, const BareQuery& query) {
  std::size_t pages = 0;
  for (std::uintptr_t at = range.begin; at < range.end();) {
    kernel::PmScanArg arg{};
    arg.size = sizeof(arg);
    arg.flags = kernel::kScanCheckWpAsync | (query.write_protect ? kernel::kScanWpMatching : 0);
    arg.start = at;
    arg.end = range.end();
    arg.vec = reinterpret_cast<std::uintptr_t>(vector_.span().data());
    arg.vec_len = vector_.size();
    arg.category_mask = query.mask;
    arg.category_anyof_mask = query.anyof;
    arg.return_mask = kernel::kPageWritten;
    const int found = sys::ioctl(fd_.get(), kernel::kPagemapScan, &arg);
    if (found < 0) return system_failure("scan the page table (PAGEMAP_SCAN)", -found);
    for (std::size_t i = 0; i < static_cast<std::size_t>(found); ++i) {
      pages += (vector_[i].end - vector_[i].start) / page_size();
    }
    at = arg.walk_end;
  }
  return pages;
}

Result<BarePagemap> BarePagemap::open() {
  auto fd = open_pagemap();
  if (!fd) return propagate(fd);
  auto entries = VirtualArray<std::uint64_t>::create(32_KiB);
  if (!entries) return propagate(entries);
  return BarePagemap(std::move(*fd), std::move(*entries));
}

Result<std::size_t> BarePagemap::count_written(ByteRange range) {
  constexpr std::uint64_t kProtected = std::uint64_t{1} << 57;
  constexpr std::uint64_t kPresent = std::uint64_t{1} << 63;
  std::size_t written = 0;
  const std::size_t end = range.end() / page_size();
  for (std::size_t page = range.begin / page_size(); page < end;) {
    const std::size_t count = std::min(entries_.size(), end - page);
    const std::size_t bytes = count * sizeof(std::uint64_t);
    const ssize_t r =
        sys::read_full(fd_.get(), entries_.span().data(), bytes, page * sizeof(std::uint64_t));
    if (r != static_cast<ssize_t>(bytes)) {
      return system_failure("read /proc/self/pagemap", r < 0 ? static_cast<int>(-r) : EIO);
    }
    for (const std::uint64_t entry : entries_.span().first(count)) {
      written += (entry & (kPresent | kProtected)) == kPresent ? 1 : 0;
    }
    page += count;
  }
  return written;
}

Result<void> populate_by_reading(ByteRange range) {
  if (::madvise(range.data(), range.size, MADV_POPULATE_READ) == 0) return {};
  return system_failure("populate memory (MADV_POPULATE_READ)", errno);
}

double page_tables_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmPTE:") continue;
    double kib = 0;
    status >> kib;
    return kib;
  }
  return 0;
}

}  // namespace pagetide::bench
