#include "pagetide/allocator/arena_resource.h"

#include <new>

#include "pagetide/allocator/heap.h"

namespace pagetide {

void* ArenaResource::do_allocate(std::size_t bytes, std::size_t alignment) {
  void* block = heap_->allocate(bytes, alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void ArenaResource::do_deallocate(void* block, std::size_t, std::size_t) {
  heap_->deallocate(block);
}

bool ArenaResource::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  return this == &other;
}

}  // namespace pagetide
