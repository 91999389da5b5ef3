#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <type_traits>
#include <utility>

#include "pagetide/allocator/arena.h"

namespace pagetide {

// The allocator of an arena for the containers of the standard library:
//
//   using Numbers = std::vector<int, pagetide::allocator<int>>;
//   Numbers& numbers = *arena.find_or_construct<Numbers>("numbers", arena).value();
//
// It holds nothing but the address of Arena::resource(). Of all that leads to an arena this alone
// is the same in every process that opens it, so a container inside the arena goes on with its
// allocator there. Two are equal when they are of one arena.
//
// It differs from std::pmr::polymorphic_allocator where that one falls back to the program's own
// heap unnoticed, whose memory the next process does not have: there is no default constructor, and
// the copy of a container is in the arena of its source.
//
// No traits propagate: assigning to a container never takes it to another arena, for a container
// inside an arena must not have its elements in another. They are copied or moved there one by one.
// To swap two containers of different arenas is undefined, as with every allocator of this kind.
//
// Elements that take an allocator, std::pmr ones too, are constructed with this one.
//
// What std::allocate_shared() makes with it does not survive reopening: it has virtual functions
// (see Arena).
//
// Of its own it throws std::bad_alloc, from allocate(), where the arena is exhausted.
template <typename T>
class allocator {  // NOLINT(readability-identifier-naming): named as in std
 public:
  using value_type = T;
  using propagate_on_container_copy_assignment = std::false_type;
  using propagate_on_container_move_assignment = std::false_type;
  using propagate_on_container_swap = std::false_type;
  using is_always_equal = std::false_type;

  // Implicit, so that an arena can be handed to a container as its allocator.
  allocator(Arena& arena) noexcept : resource_(arena.resource()) {}
  // `resource` is that of an arena.
  allocator(std::pmr::memory_resource* resource) noexcept : resource_(resource) {}
  template <typename U>
  allocator(const allocator<U>& other) noexcept : resource_(other.resource()) {}

  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / bytes_of(1)) {
      throw std::bad_array_new_length();
    }
    return static_cast<T*>(resource_->allocate(bytes_of(count), alignof(T)));
  }
  void deallocate(T* block, std::size_t count) noexcept {
    resource_->deallocate(block, bytes_of(count), alignof(T));
  }

  template <typename U, typename... Args>
  void construct(U* object, Args&&... args) {
    std::uninitialized_construct_using_allocator(object, *this, std::forward<Args>(args)...);
  }
  // What lets elements of std::pmr take this allocator.
  template <typename U>
  operator std::pmr::polymorphic_allocator<U>() const noexcept {
    return resource_;
  }

  std::pmr::memory_resource* resource() const noexcept { return resource_; }

  template <typename U>
  bool operator==(const allocator<U>& other) const noexcept {
    return resource_ == other.resource();
  }

 private:
  static constexpr std::size_t bytes_of(std::size_t count) {
    return count * sizeof(T);  // NOLINT(bugprone-sizeof-expression): elements may be pointers
  }

  std::pmr::memory_resource* resource_;
};

}  // namespace pagetide
