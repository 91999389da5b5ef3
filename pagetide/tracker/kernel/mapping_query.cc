#include "pagetide/tracker/kernel/mapping_query.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/disabled_features.h"
#include "pagetide/tracker/kernel/kernel_abi.h"
#include "pagetide/tracker/kernel/maps_reader.h"

namespace pagetide {

namespace {

// The usual size; only that it is not the system's page size matters.
constexpr std::size_t kHugetlbBytes = std::size_t{2} << 20;

// But for where they are.
bool is_alike(const MappedPart& a, const MappedPart& b) {
  return a.is_file == b.is_file && a.is_shared == b.is_shared && a.page_bytes == b.page_bytes &&
         a.is_readable == b.is_readable && a.is_writable == b.is_writable &&
         a.is_executable == b.is_executable;
}

tl::unexpected<Error> not_mapped(std::uintptr_t address) {
  return failure(
      ErrorCode::invalid_argument,
      fmt::format("nothing is mapped at {:#x}; watch only memory that is mapped.", address));
}

// The slow way, for kernels without PROCMAP_QUERY.
Result<MappedPart> find_in_maps(std::uintptr_t address) {
  MapsReader maps;
  MapsLine line;
  while (maps.next(line)) {
    if (!line.range.contains(address)) continue;
    return MappedPart{
        line.range,    line.is_file,  line.shared,    line.is_hugetlb ? kHugetlbBytes : page_size(),
        line.readable, line.writable, line.executable};
  }
  return not_mapped(address);
}

}  // namespace

Result<MappingQuery> MappingQuery::open() {
  UniqueFd fd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return system_failure("open /proc/self/maps", errno, "/proc must be mounted.");
  MappingQuery query(std::move(fd));
  // Any address will do for finding out whether the kernel knows the question.
  query.is_fast_ = !is_disabled("procmap_query");
  if (query.is_fast_) (void)query.part_at(0);
  return query;
}

Result<MappedPart> MappingQuery::part_at(std::uintptr_t address) {
  if (is_fast_) {
    kernel::ProcmapQuery query{};
    query.size = sizeof(query);
    query.query_addr = address;
    const int r = sys::ioctl(fd_.get(), kernel::kProcmapQuery, &query);
    if (r == 0) {
      return MappedPart{{query.vma_start, query.vma_end - query.vma_start},
                        query.inode != 0,
                        (query.vma_flags & kernel::kProcmapVmaShared) != 0,
                        query.vma_page_size,
                        (query.vma_flags & kernel::kProcmapVmaReadable) != 0,
                        (query.vma_flags & kernel::kProcmapVmaWritable) != 0,
                        (query.vma_flags & kernel::kProcmapVmaExecutable) != 0};
    }
    if (r == -ENOENT) return not_mapped(address);
    is_fast_ = false;
  }
  return find_in_maps(address);
}

Result<std::vector<MappedPart>> MappingQuery::parts_of(ByteRange range) {
  std::vector<MappedPart> parts;
  for (std::uintptr_t at = range.begin; at < range.end();) {
    auto part = part_at(at);
    if (!part) return propagate(part);
    const std::uintptr_t end = std::min(part->range.end(), range.end());
    part->range = {at, end - at};
    const bool like_last = !parts.empty() && is_alike(parts.back(), *part);
    if (like_last) {
      parts.back().range.size += part->range.size;
    } else {
      parts.push_back(*part);
    }
    at = end;
  }
  return parts;
}

Result<std::vector<MappedPart>> MappingQuery::trackable_parts_of(ByteRange range) {
  auto parts = parts_of(range);
  if (!parts) return parts;
  for (const MappedPart& part : *parts) {
    if (part.page_bytes == page_size()) continue;
    return failure(ErrorCode::unsupported,
                   fmt::format("cannot watch hugetlb memory (pages of {} bytes at {:#x}): kernels "
                               "have had deadlocks there. Use transparent huge pages, or the "
                               "compare back end.",
                               part.page_bytes, part.range.begin));
  }
  return parts;
}

}  // namespace pagetide
