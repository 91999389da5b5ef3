#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "pagetide/allocator/heap.h"
#include "pagetide/allocator/heap_activity.h"
#include "pagetide/allocator/heap_tables.h"
#include "pagetide/allocator/thread_heap.h"
#include "pagetide/allocator/thread_heaps.h"

namespace pagetide {

// What the parts of a heap's implementation share.
struct Heap::Impl {
  explicit Impl(HeapTables t) : tables(std::move(t)) {}

  HeapTables tables;
  std::unique_ptr<ThreadHeaps> threads;
  std::uint64_t id = 0;  // of `threads`
  bool free_bytes_are_zero = false;
  OnCorruption on_corruption;

  static Result<std::unique_ptr<Impl>> create(Region& region, ClearPolicy clear);

  // The calling thread's; nullptr: see ThreadHeaps.
  ThreadHeap* my_heap() {
    const HeapThread& last = detail::heap_thread;
    return last.heap_id == id ? last.thread_heap : threads->find_or_attach();
  }
  Allocated allocate(std::size_t bytes, std::size_t alignment);
  Allocated allocate_or_make_room(std::size_t bytes, std::size_t alignment);
  // The same; to be called at the end of a function.
  void* allocate_slowly(std::size_t bytes) noexcept;
  Allocated allocate_small(std::size_t size_class);
  Allocated allocate_from(ThreadHeap& heap, std::size_t size_class);
  Allocated allocate_from_unowned(std::size_t bytes, std::size_t alignment);
  Allocated clear_late(Allocated allocated, std::size_t size_class) const;
  static std::optional<std::size_t> size_class_for(std::size_t bytes, std::size_t alignment);
  Allocated allocate_large(std::size_t bytes, std::size_t alignment, std::size_t overwritten = 0);
  bool clear_if_late(bool known_zero, std::size_t first, std::size_t count,
                     std::size_t overwritten);
  void clear_run(ByteRange run);
  std::size_t size_of_allocated(const std::byte* block) const;
  std::size_t resize_large(std::size_t span, std::size_t bytes);
  void* move(std::byte* block, std::size_t usable, std::size_t bytes, std::size_t alignment);
  void deallocate(void* block) noexcept;
  void deallocate_small(std::size_t span, std::byte* block);
  void deallocate_large(std::size_t span, std::byte* block);
  void free_remotely(std::size_t span, std::size_t slot, std::byte* block);
  void refuse(std::string_view what, const void* block, std::string_view why) const;
  bool release_empty_spans();

  std::size_t count_allocated(std::size_t span, std::size_t size_class);
  void clear_free_slots(std::size_t span, std::size_t size_class);
  Result<void> check_span(std::size_t span) const;
  Result<void> check_totals();
  Result<void> check_bitmap(std::size_t span) const;
  Result<void> rebuild_supply();
  Result<void> rebuild();
  Result<void> refresh();
  Result<void> refresh_span(std::size_t span, ThreadHeap& heir);
};

// The ends of allocate() and deallocate() when there is something left to do; functions of their
// own, so that those need save no register.
void* stop_before_return(void* block) noexcept;
void* clear_and_leave(void* block, std::size_t bytes) noexcept;

}  // namespace pagetide
