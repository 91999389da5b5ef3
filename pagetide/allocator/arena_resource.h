#pragma once

#include <memory_resource>

#include "pagetide/base/export.h"

namespace pagetide {

class Heap;

// The memory_resource of an arena. pmr containers keep a raw pointer to their resource, so this
// object itself stands in the region, at the same address in every process, in a page that is
// never part of a snapshot: its vtable pointer belongs to the running process and is written
// anew when an arena is created or opened.
class PAGETIDE_API ArenaResource final : public std::pmr::memory_resource {
 public:
  explicit ArenaResource(Heap& heap) : heap_(&heap) {}

 private:
  // Throws std::bad_alloc when the arena is exhausted, as the standard demands.
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* block, std::size_t bytes, std::size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

  Heap* heap_;
};

}  // namespace pagetide
