#pragma once

#include <memory>
#include <memory_resource>
#include <type_traits>
#include <utility>

#include "pagetide/allocator/arena.h"

namespace pagetide {

// Destroys an object of an arena and frees its memory, for smart pointers. Holds the arena's
// resource(), so that the Arena may be moved meanwhile.
template <typename T>
class ArenaDeleter {
 public:
  static_assert(!std::is_array_v<T>, "an arena has single objects; own a container of them");

  // Of an empty pointer; must not delete.
  ArenaDeleter() = default;
  explicit ArenaDeleter(Arena& arena) noexcept : resource_(arena.resource()) {}

  void operator()(T* object) const noexcept {
    object->~T();
    resource_->deallocate(const_cast<std::remove_cv_t<T>*>(object), sizeof(T), alignof(T));
  }

 private:
  std::pmr::memory_resource* resource_ = nullptr;
};

// Owns an object of an arena from outside the arena: a variable, a member of a class of the
// program. For what is in the arena only for a while, and for what is built before it is linked
// to something that stays; that ends with release().
//
// - It must end, or release(), before its arena does.
// - It does not come back. A snapshot that is taken meanwhile holds the object, and in the process
//   that opens that nobody owns it. Give a name to what is to be found again
//   (find_or_construct()), or keep it in what has one.
// - A rollback does not know of it. One to a snapshot from before make_in_arena() takes the object
//   away without its destructor, and the pointer would then free what is not allocated or is
//   another's: release() it first. One to a later snapshot leaves the object its own.
// - It does not become a pointer to a base class: a block is freed by its start, where the object
//   begins and not always its base.
// - Objects in the arena that own others could have one, for what it holds is the same in every
//   process; a plain pointer and Arena::destroy() take half the memory.
template <typename T>
using arena_ptr = std::unique_ptr<T, ArenaDeleter<T>>;

// Errors and exceptions as of Arena::construct().
template <typename T, typename... Args>
Result<arena_ptr<T>> make_in_arena(Arena& arena, Args&&... args) {
  Result<T*> made = arena.construct<T>(std::forward<Args>(args)...);
  if (!made) return propagate(made);
  return arena_ptr<T>(*made, ArenaDeleter<T>(arena));
}

}  // namespace pagetide
