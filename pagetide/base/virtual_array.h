#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "pagetide/base/bytes.h"
#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"

namespace pagetide {

// A zero-filled array with its own mapping, of which only touched pages cost memory. For tables
// indexed by page or span of a reservation: tens of MiB of address space, a few pages in use.
// Being mapped, it can never lie in memory that somebody tracks.
template <typename T>
class VirtualArray {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  VirtualArray() = default;
  VirtualArray(VirtualArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  VirtualArray& operator=(VirtualArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  VirtualArray(const VirtualArray&) = delete;
  VirtualArray& operator=(const VirtualArray&) = delete;
  ~VirtualArray() {
    if (data_ != nullptr) ::munmap(data_, mapped_bytes());
  }

  static Result<VirtualArray> create(std::size_t count) {
    VirtualArray array;
    if (count == 0) return array;
    // Beyond this the size in bytes would wrap around.
    if (count > (SIZE_MAX - page_size()) / sizeof(T)) return cannot_map(ENOMEM);
    array.size_ = count;
    void* p = ::mmap(nullptr, array.mapped_bytes(), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      const int e = errno;
      array.size_ = 0;
      return cannot_map(e);
    }
    array.data_ = static_cast<T*>(p);
    return array;
  }

  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  std::span<T> span() { return {data_, size_}; }
  std::span<const T> span() const { return {data_, size_}; }

  // Back to all zeros, giving the memory back. Cost: one system call.
  void reset() {
    if (data_ != nullptr) ::madvise(data_, mapped_bytes(), MADV_DONTNEED);
  }

 private:
  static tl::unexpected<Error> cannot_map(int system_errno) {
    return system_failure("map a table of the library", system_errno,
                          "Lower the reservation, or raise ulimit -v or vm.overcommit_memory.");
  }
  std::size_t mapped_bytes() const { return round_up(size_ * sizeof(T), page_size()); }

  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace pagetide
