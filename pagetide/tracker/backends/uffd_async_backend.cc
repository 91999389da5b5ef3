#include "pagetide/tracker/backends/uffd_async_backend.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/disabled_features.h"

namespace pagetide {

namespace {

// "Watched memory that is written" never includes pages nobody touched.
constexpr std::uint64_t kPopulated = kernel::kPagePresent | kernel::kPageSwapped;

constexpr std::string_view kCompareWayOut =
    "The compare back end works without it (BackendKind::compare); `pagetide doctor` shows what "
    "this machine has.";

}  // namespace

Result<UffdAsyncBackend> UffdAsyncBackend::open() {
  if (is_disabled("userfaultfd")) {
    return failure(ErrorCode::unsupported,
                   "cannot open userfaultfd: switched off by PAGETIDE_DISABLE. " +
                       std::string(kCompareWayOut));
  }
  UniqueFd fd(static_cast<int>(
      ::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kernel::kUffdUserModeOnly)));
  if (!fd.valid()) {
    const int e = errno;
    return system_failure(
        "open userfaultfd", e,
        (e == EPERM ? std::string("A sandbox (seccomp) forbids the call. ")
                    : std::string("Linux 6.7 or newer with CONFIG_USERFAULTFD is needed. ")) +
            std::string(kCompareWayOut));
  }
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kernel::kUffdFeatureWpAsync | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
  if (const int r = sys::ioctl(fd.get(), UFFDIO_API, &api); r < 0) {
    return failure(
        ErrorCode::unsupported,
        "this kernel has no asynchronous write protection (UFFD_FEATURE_WP_ASYNC); Linux "
        "6.7 or newer is needed. " +
            std::string(kCompareWayOut),
        -r);
  }
  auto scanner = PagemapScanner::open();
  if (!scanner) return propagate(scanner);
  auto mappings = MappingQuery::open();
  if (!mappings) return propagate(mappings);
  return UffdAsyncBackend(std::move(fd), std::move(*scanner), std::move(*mappings));
}

Result<void> UffdAsyncBackend::watch(ByteRange range) {
  auto parts = mappings_.trackable_parts_of(range);
  if (!parts) return propagate(parts);
  uffdio_register request{};
  request.range = {range.begin, range.size};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  if (const int r = sys::ioctl(fd_.get(), UFFDIO_REGISTER, &request); r < 0) {
    return system_failure(
        "register memory with userfaultfd", -r,
        r == -EBUSY
            ? "Another userfaultfd of this process already watches a part of it; only one can."
            : "Its mappings must allow write tracking: a shared file must be opened for writing.");
  }
  for (const MappedPart& part : *parts) {
    if (part.is_file || part.is_shared) {
      special_parts_[part.range.begin] = {part.range, part.is_shared};
    }
  }
  return {};
}

void UffdAsyncBackend::unwatch(ByteRange range) {
  // Before closing, always: kernels before 6.8.10 leave protection bits behind on close.
  uffdio_range request{range.begin, range.size};
  (void)sys::ioctl(fd_.get(), UFFDIO_UNREGISTER, &request);
  special_parts_.erase(special_parts_.lower_bound(range.begin),
                       special_parts_.lower_bound(range.end()));
}

namespace {

ScanQuery anonymous_query() {
  ScanQuery query;
  query.mask = kernel::kPageWritten;
  query.anyof = kPopulated;
  query.returned = kernel::kPageWritten;
  return query;
}

ScanQuery private_file_query() {
  ScanQuery query = anonymous_query();
  query.inverted = kernel::kPageFile;
  query.mask |= kernel::kPageFile;
  return query;
}

ScanQuery shared_query() {
  ScanQuery query = anonymous_query();
  query.anyof = 0;
  return query;
}

}  // namespace

Result<void> UffdAsyncBackend::collect(ByteRange whole, ByteRange part, CollectMode mode,
                                       DirtyBitmap& written) {
  std::uintptr_t at = part.begin;
  for (auto special = special_parts_.lower_bound(whole.begin);
       special != special_parts_.end() && special->first < part.end(); ++special) {
    const ByteRange inside = special->second.range.intersect({at, part.end() - at});
    if (inside.empty()) continue;
    const ByteRange before{at, inside.begin - at};
    if (auto r = scan(before, anonymous_query(), mode, whole, written); !r) return r;
    const ScanQuery query = special->second.is_shared ? shared_query() : private_file_query();
    if (auto r = scan(inside, query, mode, whole, written); !r) return r;
    at = inside.end();
  }
  return scan({at, part.end() - at}, anonymous_query(), mode, whole, written);
}

Result<void> UffdAsyncBackend::scan(ByteRange part, const ScanQuery& query, CollectMode mode,
                                    ByteRange whole, DirtyBitmap& written) {
  if (part.empty()) return {};
  ScanQuery asked = query;
  asked.write_protect = mode == CollectMode::take;
  return scanner_.scan(part, asked, [&](std::uintptr_t first, std::uintptr_t end, std::uint64_t) {
    written.set_range(PageRange::covering({first, end - first}, whole));
  });
}

std::size_t UffdAsyncBackend::count_armed(ByteRange, ByteRange part) {
  std::size_t unarmed = 0;
  // After a failing scan those that were not found count as armed.
  (void)scanner_.scan(part, anonymous_query(),
                      [&](std::uintptr_t first, std::uintptr_t end, std::uint64_t) {
                        unarmed += (end - first) / page_size();
                      });
  return part.size / page_size() - unarmed;
}

Result<void> UffdAsyncBackend::prefill(ByteRange range, Prefill policy) {
  if (policy == Prefill::none) return {};
  ScanQuery query;
  query.mask = kernel::kPageWritten;
  query.returned = kernel::kPageWritten;
  query.write_protect = true;
  if (policy == Prefill::marker) {
    // Only what nobody touched: a populated page that is not armed holds dirt to be reported.
    query.mask |= kernel::kPagePresent | kernel::kPageSwapped;
    query.inverted = kernel::kPagePresent | kernel::kPageSwapped;
    return arm(range, query);
  }
  if (auto r = map_zero_pages(range); !r) return r;
  query.mask |= kernel::kPagePfnZero;
  return arm(range, query);
}

Result<void> UffdAsyncBackend::arm(ByteRange range, const ScanQuery& query) {
  return scanner_.scan(range, query, [](std::uintptr_t, std::uintptr_t, std::uint64_t) {});
}

// MADV_POPULATE_READ does the same at six times the cost (0.86 against 0.14 us a page).
Result<void> UffdAsyncBackend::map_zero_pages(ByteRange range) {
  // Steps keep mmap_lock short; 2 MiB is also one page table.
  constexpr std::size_t kStepBytes = std::size_t{2} << 20;
  std::size_t step = kStepBytes;
  std::uintptr_t at = range.begin;
  while (at < range.end()) {
    uffdio_zeropage request{};
    request.range = {at, std::min(step, range.end() - at)};
    // Wakes nobody: there are no readers of this descriptor.
    request.mode = UFFDIO_ZEROPAGE_MODE_DONTWAKE;
    const int r = sys::ioctl(fd_.get(), UFFDIO_ZEROPAGE, &request);
    if (request.zeropage > 0) {
      at += static_cast<std::uintptr_t>(request.zeropage);
      step = kStepBytes;
    } else if (r == -EEXIST) {
      at += page_size();  // populated already: stays as it is
    } else if (r == -ENOENT && request.range.len > page_size()) {
      // One call takes no range of two mappings: up to the border, in ever smaller steps.
      step = round_up(request.range.len / 2, page_size());
    } else if (r != -EAGAIN) {
      return system_failure("prefill with zero pages (UFFDIO_ZEROPAGE)", -r,
                            "Prefill::none works without it.");
    }
  }
  return {};
}

}  // namespace pagetide
