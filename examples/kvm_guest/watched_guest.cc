#include "examples/kvm_guest/watched_guest.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "examples/kvm_guest/guest_program.h"
#include "examples/kvm_guest/page_tables.h"

namespace kvm_guest {

using pagetide::DirtyBitmap;
using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::PageRange;
using pagetide::propagate;
using pagetide::Result;

namespace {

// Where a device writes: not where the guest does, so that its mark stays readable.
constexpr std::uint64_t kDeviceOffset = kGuestPageBytes / 2;

Result<void> check_size(std::size_t memory_bytes) {
  const std::size_t pages = memory_bytes / kGuestPageBytes;
  const std::size_t needed = kPageTableAddress / kGuestPageBytes + page_table_pages(pages);
  if (pages > needed && memory_bytes <= kMaxMemoryBytes) return {};
  return failure(ErrorCode::invalid_argument,
                 fmt::format("{} pages of guest RAM are too few or too many: between {} and {}.",
                             pages, needed + 1, kMaxMemoryBytes / kGuestPageBytes));
}

DirtyBitmap set_of(std::span<const std::uint32_t> pages, std::size_t page_count) {
  DirtyBitmap set(page_count);
  for (const std::uint32_t page : pages) set.set(page);
  return set;
}

}  // namespace

WatchedGuest::WatchedGuest(GuestMemory memory, pagetide::Tracker tracker, pagetide::WatchId watch,
                           VirtualMachine machine)
    : memory_(std::move(memory)),
      tracker_(std::move(tracker)),
      watch_(watch),
      machine_(std::move(machine)) {}

Result<WatchedGuest> WatchedGuest::create(const GuestOptions& options) {
  if (auto r = check_size(options.memory_bytes); !r) return propagate(r);
  auto memory = GuestMemory::create(options.memory_bytes);
  if (!memory) return propagate(memory);
  auto tracker = pagetide::Tracker::create({pagetide::BackendKind::uffd_async});
  if (!tracker) return propagate(tracker);
  auto watch = tracker->watch(memory->range());
  if (!watch) return propagate(watch);
  // Otherwise a page that is only read, by the guest or by KVM for it, would count as written, and
  // with the first write to a huge page all the small ones of it.
  auto armed = tracker->prefill(memory->range(), pagetide::Prefill::zero_page);
  if (!armed) return propagate(armed);
  load_program(*memory);
  write_identity_map(*memory, kPageTableAddress);
  auto machine = VirtualMachine::create(*memory, {kProgramAddress, kPageTableAddress, options.ring},
                                        options.device);
  if (!machine) return propagate(machine);
  return WatchedGuest(std::move(*memory), std::move(*tracker), *watch, std::move(*machine));
}

PageRange WatchedGuest::data_pages() const {
  const std::size_t pages = memory_.page_count();
  const std::size_t first = kPageTableAddress / kGuestPageBytes + page_table_pages(pages);
  return {first, pages - first};
}

Result<std::vector<std::uint32_t>> WatchedGuest::choose_pages(std::size_t count,
                                                              std::mt19937_64& random) const {
  const PageRange data = data_pages();
  if (count > std::min(kMaxWork, data.count)) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("cannot choose {} pages: the guest has {} pages to write to, and a "
                               "work list has room for {}.",
                               count, data.count, kMaxWork));
  }
  std::vector<std::uint32_t> all(data.count);
  std::iota(all.begin(), all.end(), static_cast<std::uint32_t>(data.first));
  std::vector<std::uint32_t> chosen(count);
  std::sample(all.begin(), all.end(), chosen.begin(), count, random);
  std::shuffle(chosen.begin(), chosen.end(), random);
  return chosen;
}

Result<void> WatchedGuest::work(std::span<const std::uint32_t> pages, std::uint32_t mark) {
  write_work_list(memory_, pages, mark);
  auto port = machine_.run();
  if (!port) return propagate(port);
  if (*port != kDonePort) {
    return failure(
        ErrorCode::system_failure,
        fmt::format("the guest wrote to port {:#x}; its program knows no such port.", *port));
  }
  return {};
}

Result<DirtyBitmap> WatchedGuest::take_written() {
  auto collected = tracker_.collect(watch_, pagetide::CollectMode::take);
  if (!collected) return propagate(collected);
  if (collected->poisoned) {
    return failure(ErrorCode::system_failure,
                   fmt::format("the tracker lost count: {}", collected->cause));
  }
  return std::move(collected->written);
}

Result<Round> WatchedGuest::run_round(std::span<const std::uint32_t> guest_pages,
                                      std::span<const std::uint32_t> device_pages) {
  const std::uint32_t mark = ++rounds_;
  for (const std::uint32_t page : device_pages) {
    memory_.store(page * std::uint64_t{kGuestPageBytes} + kDeviceOffset, mark);
  }
  if (auto r = work(guest_pages, mark); !r) return propagate(r);
  auto kvm = machine_.take_dirty_log();
  if (!kvm) return propagate(kvm);
  auto tracker = take_written();
  if (!tracker) return propagate(tracker);

  DirtyBitmap guest = set_of(guest_pages, memory_.page_count());
  DirtyBitmap undone(memory_.page_count());
  for (const std::uint32_t page : guest_pages) {
    if (mark_of(memory_, page) != mark) undone.set(page);
  }
  return Round{std::move(guest), std::move(undone), memory_.take_monitor_writes(),
               std::move(*tracker), std::move(*kvm)};
}

}  // namespace kvm_guest
