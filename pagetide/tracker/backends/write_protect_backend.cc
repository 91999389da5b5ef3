#include "pagetide/tracker/backends/write_protect_backend.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include "pagetide/base/syscalls.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/tracker/kernel/mapping_query.h"

namespace pagetide {

namespace {

constexpr std::size_t kDefaultExtraMappings = 8192;
// The kernel's default, for where it cannot be read.
constexpr std::size_t kUsualMaxMapCount = 65530;
constexpr std::size_t kStepPages = ProtectedRange::kStepPages;

std::size_t max_map_count() {
  const UniqueFd fd(::open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC));
  std::array<char, 32> text{};
  const ssize_t size = fd.valid() ? sys::read_full(fd.get(), text.data(), text.size(), 0) : 0;
  std::size_t value = 0;
  if (size <= 0 || std::from_chars(text.data(), text.data() + size, value).ec != std::errc{}) {
    return kUsualMaxMapCount;
  }
  return value;
}

// Whether no other process shares a part of the range. Unknown (no /proc) counts as shared. Fails
// where giving write access back would change what the memory may be used for.
Result<bool> is_all_private(ByteRange range) {
  auto query = MappingQuery::open();
  if (!query) return false;
  auto parts = query->trackable_parts_of(range);
  if (!parts) return propagate(parts);
  bool is_private = true;
  for (const MappedPart& part : *parts) {
    is_private = is_private && !part.is_shared;
    // What cannot be accessed at all, a reservation, is not touched before it is written to.
    if (!part.is_executable && part.is_writable == part.is_readable) continue;
    // Armed by the parent of a forked child.
    if (!part.is_executable && FaultWatch::is_inherited(SIGSEGV, part.range)) continue;
    return failure(ErrorCode::unsupported,
                   fmt::format("cannot watch {} bytes at {:#x} by page protection: they are not "
                               "mapped for reading and writing alone, as they would be afterwards.",
                               part.range.size, part.range.begin));
  }
  return is_private;
}

// Calls visit(the pages of `pages` in one step) for each step.
template <typename Visit>
void for_each_step(PageRange pages, Visit&& visit) {
  for (std::size_t first = round_down(pages.first, kStepPages); first < pages.end();
       first += kStepPages) {
    visit(PageRange{first, kStepPages}.intersect(pages));
  }
}

// Calls visit(PageRange) for stretches that hold all pages whose state is not known. A stretch
// covers neighbouring steps, so that a large untouched range is one question to the kernel.
template <typename Visit>
Result<void> for_each_unknown(const ProtectedRange& protection, PageRange pages, Visit&& visit) {
  Result<void> result;
  PageRange stretch;
  const auto flush = [&] {
    if (!stretch.empty() && result) result = visit(stretch);
    stretch = {};
  };
  for_each_step(pages, [&](PageRange step) {
    const PageRange unknown = protection.unknown(step);
    if (unknown.empty()) return flush();
    if (stretch.empty()) stretch = unknown;
    stretch.count = unknown.end() - stretch.first;
  });
  flush();
  return result;
}

// Calls visit(page) for those of `pages`, which lie in one step, whose bit is set.
template <typename Visit>
void for_each_page(PageRange pages, const ProtectedRange::StepWords& words, Visit&& visit) {
  for (std::size_t page = pages.first; page < pages.end(); ++page) {
    const std::size_t in_step = page % kStepPages;
    if ((words.at(in_step / 64) >> (in_step % 64) & 1U) != 0) visit(page);
  }
}

tl::unexpected<Error> not_watched() {
  return failure(ErrorCode::invalid_argument, "cannot collect: the range is not watched.");
}

}  // namespace

Result<WriteProtectBackend> WriteProtectBackend::open(const WriteProtectOptions& options) {
  if (auto r = FaultWatch::check_handler(SIGSEGV); !r) return propagate(r);
  std::size_t bound = options.max_extra_mappings;
  if (bound == 0) bound = std::min(kDefaultExtraMappings, max_map_count() / 8);
  std::optional<PopulatedPages> populated;
  if (auto opened = PopulatedPages::open(); opened) populated = std::move(*opened);
  return WriteProtectBackend(bound, std::move(populated));
}

Result<void> WriteProtectBackend::watch(ByteRange range) {
  auto is_private = is_all_private(range);
  if (!is_private) return propagate(is_private);
  auto protection = ProtectedRange::create(range, max_extra_mappings_);
  if (!protection) return propagate(protection);
  watches_.insert_or_assign(range.begin, Watch{std::move(*protection), *is_private});
  return {};
}

void WriteProtectBackend::unwatch(ByteRange range) {
  watches_.erase(range.begin);
}

Result<void> WriteProtectBackend::collect(ByteRange whole, ByteRange part, CollectMode mode,
                                          DirtyBitmap& written) {
  const auto found = watches_.find(whole.begin);
  if (found == watches_.end()) return not_watched();
  ProtectedRange& protection = *found->second.protection;
  const PageRange pages = PageRange::covering(part, whole);
  if (auto r = find_touched(found->second, pages); !r) return r;
  for_each_step(pages, [&](PageRange step) {
    const ProtectedRange::StepWords words =
        mode == CollectMode::take ? protection.take_written(step) : protection.written(step);
    const std::size_t first = step.first / kStepPages * words.size();
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] != 0) written.add_to_word(first + i, words[i]);
    }
  });
  return {};
}

std::size_t WriteProtectBackend::count_armed(ByteRange whole, ByteRange part) {
  const auto found = watches_.find(whole.begin);
  if (found == watches_.end()) return 0;
  return found->second.protection->count_armed(PageRange::covering(part, whole));
}

// Pages that were never armed are written to without our hearing of it.
Result<void> WriteProtectBackend::find_touched(Watch& watch, PageRange pages) {
  ProtectedRange& protection = *watch.protection;
  if (!can_look(watch)) {
    protection.note_written(pages);
    return {};
  }
  const ByteRange whole = protection.range();
  return for_each_unknown(protection, pages, [&](PageRange stretch) {
    return populated_->for_each(
        stretch.bytes_from(whole.begin), PageState::populated,
        [&](ByteRange run) { protection.note_written(PageRange::covering(run, whole)); });
  });
}

Result<void> WriteProtectBackend::prefill(ByteRange range, Prefill policy) {
  if (policy == Prefill::automatic || policy == Prefill::none) return {};
  for (auto& [begin, watch] : watches_) {
    const ByteRange whole = watch.protection->range();
    const ByteRange part = range.page_cover().intersect(whole);
    if (part.empty() || !can_look(watch)) continue;
    if (auto r = arm_untouched(watch, PageRange::covering(part, whole)); !r) return r;
  }
  return {};
}

Result<void> WriteProtectBackend::arm_untouched(Watch& watch, PageRange pages) {
  ProtectedRange& protection = *watch.protection;
  const ByteRange whole = protection.range();
  if (auto r = find_touched(watch, pages); !r) return r;
  Result<void> result;
  for_each_step(pages, [&](PageRange step) {
    const ProtectedRange::StepWords armed = protection.arm_unknown(step);
    if (!result || !ProtectedRange::has_any(armed)) return;
    // Somebody may have written a page after we looked and before it was armed. Now that no more
    // write gets through unseen, what is populated by now counts as written.
    result = populated_->for_each(
        step.bytes_from(whole.begin), PageState::populated, [&](ByteRange run) {
          for_each_page(PageRange::covering(run, whole), armed, [&](std::size_t page) {
            protection.disarm({page, 1});
          });
        });
  });
  return result;
}

WriteProtectStats WriteProtectBackend::stats() const {
  WriteProtectStats stats;
  for (const auto& [begin, watch] : watches_) {
    const ProtectionCounts counts = watch.protection->counts();
    stats.counts.faults += counts.faults;
    stats.counts.faults_settled += counts.faults_settled;
    stats.counts.coarse_faults += counts.coarse_faults;
    stats.counts.surplus_pages += counts.surplus_pages;
    stats.counts.runs_left_unarmed += counts.runs_left_unarmed;
  }
  stats.extra_mappings = MappingBudget::used();
  stats.max_extra_mappings = max_extra_mappings_;
  return stats;
}

// --- the probe ---

namespace {

constexpr std::string_view kCompareWayOut = "The compare back end works (BackendKind::compare).";

// Whether the kernel can write a byte there, found by having it done: 0 or a negative errno.
int write_by_kernel(int zero_fd, const ByteRange& page) {
  return ::read(zero_fd, page.data(), 1) == 1 ? 0 : -errno;
}

Result<void> protection_round_trip(const ByteRange& page) {
  const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  if (!zero.valid()) return system_failure("open /dev/zero", errno, kCompareWayOut);
  *page.data() = std::byte{1};
  if (::mprotect(page.data(), page.size, PROT_READ) != 0) {
    return system_failure("take write access away (mprotect)", errno, kCompareWayOut);
  }
  if (write_by_kernel(zero.get(), page) != -EFAULT) {
    return failure(ErrorCode::unsupported,
                   "a page was written although mprotect() had made it read-only. This kernel's "
                   "protection cannot be trusted. " +
                       std::string(kCompareWayOut));
  }
  if (::mprotect(page.data(), page.size, PROT_READ | PROT_WRITE) != 0) {
    return system_failure("give write access back (mprotect)", errno, kCompareWayOut);
  }
  if (const int r = write_by_kernel(zero.get(), page); r != 0) {
    return system_failure("write to a page after mprotect() made it writable", -r, kCompareWayOut);
  }
  return {};
}

}  // namespace

Result<void> WriteProtectBackend::probe() {
  struct sigaction now {};
  if (::sigaction(SIGSEGV, nullptr, &now) != 0) {
    return system_failure("ask for the handler of SIGSEGV", errno, kCompareWayOut);
  }
  const std::size_t size = page_size();
  void* p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return system_failure("map scratch memory for probing", errno);
  Result<void> result = protection_round_trip(ByteRange::of(p, size));
  ::munmap(p, size);
  return result;
}

}  // namespace pagetide
