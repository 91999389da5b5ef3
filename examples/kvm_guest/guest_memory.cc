#include "examples/kvm_guest/guest_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace kvm_guest {

using pagetide::ByteRange;
using pagetide::DirtyBitmap;
using pagetide::PageRange;
using pagetide::Result;

Result<GuestMemory> GuestMemory::create(std::size_t size_bytes) {
  if (size_bytes == 0 || size_bytes % kGuestPageBytes != 0) {
    return pagetide::failure(pagetide::ErrorCode::invalid_argument,
                             fmt::format("{} bytes of guest RAM are not whole pages of {} bytes.",
                                         size_bytes, kGuestPageBytes));
  }
  void* memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return pagetide::system_failure(fmt::format("map {} bytes of guest RAM", size_bytes), errno,
                                    "Give the guest less memory.");
  }
  return GuestMemory(ByteRange::of(memory, size_bytes));
}

GuestMemory::GuestMemory(GuestMemory&& other) noexcept
    : range_(std::exchange(other.range_, {})), monitor_writes_(std::move(other.monitor_writes_)) {}

GuestMemory::~GuestMemory() {
  if (!range_.empty()) ::munmap(range_.data(), range_.size);
}

void GuestMemory::write(std::uint64_t address, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  std::memcpy(range_.data() + address, bytes.data(), bytes.size());
  monitor_writes_.set_range(PageRange::covering({range_.begin + address, bytes.size()}, range_));
}

DirtyBitmap GuestMemory::take_monitor_writes() {
  return std::exchange(monitor_writes_, DirtyBitmap(page_count()));
}

}  // namespace kvm_guest
