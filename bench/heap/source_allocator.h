#pragma once

#include <cstddef>
#include <new>

#include "bench/heap/source.h"

namespace pagetide::bench {

// Containers over the source. Stateless and thread-safe.
template <typename T>
struct SourceAllocator {
  using value_type = T;

  SourceAllocator() = default;
  template <typename U>
  SourceAllocator(const SourceAllocator<U>&) {}  // NOLINT: containers convert it silently

  T* allocate(std::size_t count) {
    static_assert(alignof(T) <= 16);
    void* block = source().allocate(count * sizeof(T));
    if (block == nullptr) throw std::bad_alloc();
    return static_cast<T*>(block);
  }
  void deallocate(T* block, std::size_t /*count*/) { source().deallocate(block); }

  template <typename U>
  friend bool operator==(const SourceAllocator&, const SourceAllocator<U>&) {
    return true;
  }
};

}  // namespace pagetide::bench
