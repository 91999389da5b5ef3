#include "pagetide/allocator/arena_deleter.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "tests/support/must.h"

namespace pagetide {
namespace {

using namespace literals;

Arena create() {
  return must(Arena::create({.name = "deleter", .reserve_bytes = 64_MiB}));
}

std::uint64_t live_blocks(const Arena& arena) {
  return must(arena.heap().check()).live_blocks;
}

// Counts its lives.
struct Counted {
  explicit Counted(int v) : value(v) { ++alive; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --alive; }
  int value;
  static inline int alive = 0;
};

TEST(ArenaPtr, owns_an_object_of_the_arena) {
  Arena arena = create();
  {
    const arena_ptr<Counted> object = must(make_in_arena<Counted>(arena, 7));
    EXPECT_EQ(object->value, 7);
    EXPECT_TRUE(arena.heap().owns(object.get()));
    EXPECT_EQ(Counted::alive, 1);
    EXPECT_EQ(live_blocks(arena), 1U);
  }
  EXPECT_EQ(Counted::alive, 0);
  EXPECT_EQ(live_blocks(arena), 0U);
}

TEST(ArenaPtr, frees_in_the_arena_that_was_moved_meanwhile) {
  Arena arena = create();
  arena_ptr<Counted> object = must(make_in_arena<Counted>(arena, 7));
  const Arena moved = std::move(arena);
  object.reset();
  EXPECT_EQ(Counted::alive, 0);
  EXPECT_EQ(live_blocks(moved), 0U);
}

TEST(ArenaPtr, that_is_released_leaves_the_object_to_others) {
  Arena arena = create();
  Counted* left = must(make_in_arena<Counted>(arena, 7)).release();
  EXPECT_EQ(Counted::alive, 1);
  EXPECT_EQ(live_blocks(arena), 1U);
  arena.destroy(left);
  EXPECT_EQ(Counted::alive, 0);
}

TEST(ArenaPtr, takes_its_arena_along_when_it_is_assigned) {
  Arena first = create();
  Arena second = create();
  arena_ptr<Counted> object = must(make_in_arena<Counted>(first, 1));
  object = must(make_in_arena<Counted>(second, 2));
  EXPECT_EQ(live_blocks(first), 0U);
  EXPECT_EQ(live_blocks(second), 1U);
  object.reset();
  EXPECT_EQ(live_blocks(second), 0U);
}

TEST(ArenaPtr, may_be_empty) {
  arena_ptr<Counted> object;
  EXPECT_EQ(object, nullptr);
  object.reset();
}

TEST(ArenaPtr, owns_what_is_constant) {
  Arena arena = create();
  {
    const arena_ptr<const Counted> object = must(make_in_arena<const Counted>(arena, 7));
    EXPECT_EQ(object->value, 7);
  }
  EXPECT_EQ(Counted::alive, 0);
  EXPECT_EQ(live_blocks(arena), 0U);
}

struct First {
  int first = 1;
};
struct Second {
  int second = 2;
};
struct Both : First, Second {};

TEST(ArenaPtr, does_not_become_one_to_a_base_class) {
  EXPECT_FALSE((std::is_convertible_v<arena_ptr<Both>, arena_ptr<Second>>));
  EXPECT_FALSE((std::is_constructible_v<arena_ptr<First>, arena_ptr<Both>>));
}

struct Throws {
  explicit Throws(bool memory) {
    if (memory) throw std::bad_alloc();
    throw std::runtime_error("no");
  }
};

TEST(MakeInArena, fails_as_construct_does) {
  struct Big {
    char bytes[std::size_t{65} << 20];
  };
  Arena arena = create();
  EXPECT_EQ(make_in_arena<Big>(arena).error().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(make_in_arena<Throws>(arena, true).error().code(), ErrorCode::out_of_memory);
  EXPECT_THROW((void)make_in_arena<Throws>(arena, false), std::runtime_error);
  EXPECT_EQ(live_blocks(arena), 0U);
}

TEST(MakeInArena, notices_virtual_functions) {
  struct Polymorphic {
    virtual ~Polymorphic() = default;
  };
  Arena arena = create();
  EXPECT_FALSE(arena.heap().holds_code_addresses());
  const auto object = must(make_in_arena<Polymorphic>(arena));
  EXPECT_TRUE(arena.heap().holds_code_addresses());
}

}  // namespace
}  // namespace pagetide
