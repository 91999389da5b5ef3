#include "pagetide/tracker/capabilities.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/backends/uffd_async_backend.h"
#include "pagetide/tracker/kernel/kernel_release.h"
#include "pagetide/tracker/kernel/mapping_query.h"
#include "pagetide/tracker/kernel/pagemap_scan.h"

namespace pagetide {

namespace {

constexpr std::size_t kHugeBytes = std::size_t{2} << 20;

// Scratch memory under asynchronous tracking, with 2 MiB of it aligned to 2 MiB.
class Scratch {
 public:
  static Result<Scratch> create() {
    auto backend = UffdAsyncBackend::open();
    if (!backend) return propagate(backend);
    auto memory = VirtualArray<char>::create(2 * kHugeBytes);
    if (!memory) return propagate(memory);
    auto scanner = PagemapScanner::open();
    if (!scanner) return propagate(scanner);
    Scratch scratch(std::move(*backend), std::move(*memory), std::move(*scanner));
    if (auto r = scratch.backend_.watch(scratch.whole()); !r) return propagate(r);
    return scratch;
  }

  ByteRange whole() { return ByteRange::of(memory_.span().data(), memory_.size()); }
  ByteRange huge() { return {round_up(whole().begin, kHugeBytes), kHugeBytes}; }
  UffdAsyncBackend& backend() { return backend_; }

  // Whether a scan that does not arm and asks for more than "written" says so of the first page.
  Result<bool> reads_as_written(ByteRange range) {
    ScanQuery query;
    query.mask = kernel::kPageWritten;
    query.returned = kernel::kPageWritten | kernel::kPagePresent;
    bool seen = false;
    auto r = scanner_.scan(range, query, [&](std::uintptr_t first, std::uintptr_t, std::uint64_t) {
      seen = seen || first == range.begin;
    });
    if (!r) return propagate(r);
    return seen;
  }

 private:
  Scratch(UffdAsyncBackend backend, VirtualArray<char> memory, PagemapScanner scanner)
      : memory_(std::move(memory)), backend_(std::move(backend)), scanner_(std::move(scanner)) {}

  VirtualArray<char> memory_;  // outlives the descriptor that watches it
  UffdAsyncBackend backend_;
  PagemapScanner scanner_;
};

constexpr std::string_view kOwnLog =
    "(fixed in July 2026 kernels). Harmless for arenas, which log their purges; purge memory of "
    "your own through the tracker, or call note_purged().";

Result<void> purges_reported() {
  auto scratch = Scratch::create();
  if (!scratch) return propagate(scratch);
  const ByteRange pages{scratch->whole().begin, 2 * page_size()};
  for (std::size_t i = 0; i < 2; ++i) pages.data()[i * page_size()] = std::byte{1};
  DirtyBitmap written(2);
  if (auto r = scratch->backend().collect(pages, pages, CollectMode::take, written); !r) return r;
  if (const int r = sys::advise({pages.begin, page_size()}, MADV_DONTNEED); r < 0) {
    return system_failure("purge a scratch page", -r);
  }
  auto seen = scratch->reads_as_written(pages);
  if (!seen) return propagate(seen);
  if (*seen) return {};
  return failure(ErrorCode::unsupported, fmt::format("purged pages read as clean {}", kOwnLog));
}

Result<void> holes_reported() {
  auto scratch = Scratch::create();
  if (!scratch) return propagate(scratch);
  auto seen = scratch->reads_as_written(scratch->huge());
  if (!seen) return propagate(seen);
  if (*seen) return {};
  return failure(ErrorCode::unsupported,
                 fmt::format("2 MiB of untouched memory read as clean {}", kOwnLog));
}

Result<void> markers() {
  auto scratch = Scratch::create();
  if (!scratch) return propagate(scratch);
  const ByteRange pages{scratch->whole().begin, 4 * page_size()};
  if (auto r = scratch->backend().prefill(pages, Prefill::marker); !r) return r;
  pages.data()[page_size()] = std::byte{1};
  DirtyBitmap written(4);
  if (auto r = scratch->backend().collect(pages, pages, CollectMode::take, written); !r) return r;
  if (written.count() == 1 && written.test(1)) return {};
  return failure(ErrorCode::unsupported,
                 fmt::format("{} of 4 pages with markers read as written after a write to one; "
                             "Prefill::zero_page and none do not need them.",
                             written.count()));
}

Result<void> kernel_faults() {
  const UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  if (device.valid()) return {};
  return system_failure("open /dev/userfaultfd", errno,
                        "Linux 6.1 or newer has it; chown or chmod it for those who shall use "
                        "uffd_sync without other privilege.");
}

Result<void> procmap_query() {
  auto query = MappingQuery::open();
  if (!query) return propagate(query);
  if (query->is_fast()) return {};
  return failure(ErrorCode::unsupported, "PROCMAP_QUERY is missing; Linux 6.11 or newer has it.");
}

void add(Capabilities& found, std::string_view name, const Result<void>& result,
         std::string_view fine, std::string_view without) {
  found.items.push_back({std::string(name), result.has_value(),
                         result ? std::string(fine) : result.error().message(),
                         std::string(without)});
}

void add_backends(Capabilities& found) {
  struct Line {
    BackendKind kind;
    std::string_view fine;
    std::string_view without;
  };
  for (const Line& line : {
           Line{BackendKind::uffd_async,
                "writes by the program and by system calls are seen, once each; no privilege",
                "the next in line is used; each costs more, see its line"},
           Line{BackendKind::uffd_sigbus,
                "writes are seen as they happen; not for memory that system calls write to",
                "no tracking without a scan; first writes cost four times those of uffd_async"},
           Line{BackendKind::uffd_sync, "writes by the program and by system calls are seen",
                "a fallback less; first writes cost ten times those of uffd_async and more"},
           Line{BackendKind::soft_dirty, "the kernel's bit follows a write, a clearing and a write",
                "a fallback less for old kernels"},
           Line{BackendKind::write_protect,
                "page protection works; not for memory that system calls write to",
                "a fallback less; first writes cost five to eight times those of uffd_async"},
           Line{BackendKind::compare, "hashes every page; needs nothing of the kernel",
                "it is always there: every take reads all memory, about 0.4 us a page"},
       }) {
    add(found, to_string(line.kind), check_backend(line.kind), line.fine, line.without);
  }
}

void add_kernel_bugs(Capabilities& found) {
  found.kernel_bugs = known_kernel_bugs(running_kernel_release());
  for (KernelBug& bug : found.kernel_bugs) {
    const Capability* shown = found.find(bug.shown_by);
    if (shown == nullptr) continue;
    // A probe that could not run at all, for want of userfaultfd, tells nothing.
    if (shown->available) bug.state = KernelBug::State::not_affected;
  }
}

}  // namespace

const Capability* Capabilities::find(std::string_view name) const {
  for (const Capability& item : items) {
    if (item.name == name) return &item;
  }
  return nullptr;
}

Capabilities probe_capabilities() {
  Capabilities found;
  add(found, "kernel.release", {},
      fmt::format("Linux {}, pages of {} bytes", running_kernel_release(), page_size()), "");
  add_backends(found);
  add(found, "prefill.markers", markers(), "write-protect markers hold",
      "Prefill::marker does nothing; zero_page and none do not need it");
  add(found, "kernel.purges_reported", purges_reported(), "purged pages read as written",
      "nothing, where purges go through the tracker or an arena");
  add(found, "kernel.holes_reported", holes_reported(), "untouched 2 MiB read as written",
      "nothing, where purges go through the tracker or an arena");
  add(found, "kernel.userfaultfd_device", kernel_faults(), "/dev/userfaultfd can be opened",
      "uffd_sync needs CAP_SYS_PTRACE or vm.unprivileged_userfaultfd=1 instead");
  add(found, "kernel.procmap_query", procmap_query(), "a mapping is found without reading all",
      "watch() reads /proc/self/maps: slow with thousands of mappings");
  add_kernel_bugs(found);
  const BackendChoice choice = choose_backend({});
  found.chosen = choice.kind;
  found.reason = choice.reason;
  return found;
}

}  // namespace pagetide
