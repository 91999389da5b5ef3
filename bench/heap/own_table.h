#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include "bench/heap/stop_worker.h"

namespace pagetide::bench {

namespace detail {
inline std::size_t all_table_bytes = 0;
}
// Of all tables that this process ever made: what its resident memory is more than it would be.
inline std::size_t own_table_bytes() {
  return detail::all_table_bytes;
}

// An array of the worker's own, all zero at first. It comes from no allocator, and from a shared
// mapping, by which ProcessPages tells it from what an allocator holds. Populated at once, so that
// its page faults are in no time that is measured. Make it in the main thread.
template <typename T>
class OwnTable {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

 public:
  explicit OwnTable(std::size_t count) {
    const std::size_t bytes = std::max<std::size_t>(count, 1) * sizeof(T);
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) stop_worker("cannot map memory for the worker's own tables");
    items_ = {static_cast<T*>(memory), count};
    mapped_bytes_ = bytes;
    detail::all_table_bytes += bytes;
  }
  OwnTable(const OwnTable&) = delete;
  OwnTable& operator=(const OwnTable&) = delete;
  ~OwnTable() { ::munmap(items_.data(), mapped_bytes_); }

  std::size_t size() const { return items_.size(); }
  T* data() const { return items_.data(); }
  T& operator[](std::size_t i) const { return items_[i]; }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::span<T> items_;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace pagetide::bench
