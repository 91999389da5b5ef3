#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/tracker/dirty_bitmap.h"

namespace kvm_guest {

// A page of the guest and of KVM's dirty log, which on x86 is a page of the host as well.
constexpr std::size_t kGuestPageBytes = 4096;

// The RAM of a guest: anonymous memory of this process, guest-physical address 0 at its start. All
// that this process (the monitor) writes to it goes through here and is kept book of, because
// KVM's dirty log does not see it. Addresses are guest-physical and lie inside the RAM.
//
// Not thread-safe.
class GuestMemory {
 public:
  static pagetide::Result<GuestMemory> create(std::size_t size_bytes);
  GuestMemory(GuestMemory&& other) noexcept;
  GuestMemory& operator=(GuestMemory&&) = delete;
  ~GuestMemory();

  pagetide::ByteRange range() const { return range_; }
  std::size_t page_count() const { return range_.size / kGuestPageBytes; }

  void write(std::uint64_t address, std::span<const std::byte> bytes);
  template <typename T>
  void store(std::uint64_t address, const T& value) {
    write(address, std::as_bytes(std::span(&value, 1)));
  }
  template <typename T>
  T load(std::uint64_t address) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, range_.data() + address, sizeof(T));
    return value;
  }

  // The pages written by write() and store() since the last call.
  pagetide::DirtyBitmap take_monitor_writes();

 private:
  explicit GuestMemory(pagetide::ByteRange range)
      : range_(range), monitor_writes_(range.size / kGuestPageBytes) {}

  pagetide::ByteRange range_;
  pagetide::DirtyBitmap monitor_writes_;
};

}  // namespace kvm_guest
