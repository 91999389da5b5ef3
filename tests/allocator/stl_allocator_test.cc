#include "pagetide/allocator/stl_allocator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <new>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/support/must.h"
#include "tests/support/random_source.h"

namespace pagetide {
namespace {

using namespace literals;

template <typename T>
using Vector = std::vector<T, allocator<T>>;
using String = std::basic_string<char, std::char_traits<char>, allocator<char>>;
template <typename K, typename V>
using Map = std::map<K, V, std::less<>, allocator<std::pair<const K, V>>>;
using Traits = std::allocator_traits<allocator<int>>;

const std::string kLong = "so long that it needs memory of its own";

Arena create(std::size_t reserve_bytes = 64_MiB) {
  return must(Arena::create({.name = "stl", .reserve_bytes = reserve_bytes}));
}

std::uint64_t live_blocks(const Arena& arena) {
  return must(arena.heap().check()).live_blocks;
}

// --- What it is ---

TEST(StlAllocator, holds_the_address_that_is_the_same_in_every_process) {
  Arena arena = create();
  EXPECT_EQ(allocator<int>(arena).resource(), arena.resource());
  EXPECT_EQ(allocator<int>(arena.resource()).resource(), arena.resource());
  EXPECT_EQ(sizeof(allocator<int>), sizeof(void*));
  EXPECT_TRUE(std::is_trivially_copyable_v<allocator<int>>);
}

TEST(StlAllocator, has_no_default) {
  EXPECT_FALSE(std::is_default_constructible_v<allocator<int>>);
}

TEST(StlAllocator, never_takes_a_container_to_another_arena) {
  EXPECT_FALSE(Traits::propagate_on_container_copy_assignment::value);
  EXPECT_FALSE(Traits::propagate_on_container_move_assignment::value);
  EXPECT_FALSE(Traits::propagate_on_container_swap::value);
  EXPECT_FALSE(Traits::is_always_equal::value);
}

TEST(StlAllocator, is_equal_to_those_of_the_same_arena_only) {
  Arena first = create();
  Arena second = create();
  EXPECT_EQ(allocator<int>(first), allocator<int>(first.resource()));
  EXPECT_EQ(allocator<int>(first), allocator<double>(first));
  EXPECT_NE(allocator<int>(first), allocator<int>(second));
  EXPECT_NE(allocator<int>(first), allocator<double>(second));
}

TEST(StlAllocator, rebinds_within_its_arena) {
  Arena arena = create();
  using Rebound = Traits::rebind_alloc<double>;
  EXPECT_TRUE((std::is_same_v<Rebound, allocator<double>>));
  EXPECT_EQ(Rebound(allocator<int>(arena)).resource(), arena.resource());
}

TEST(StlAllocator, throws_only_from_allocate) {
  Arena arena = create();
  allocator<int> of_arena(arena);
  EXPECT_TRUE(noexcept(allocator<int>(arena)));
  EXPECT_TRUE((std::is_nothrow_constructible_v<allocator<int>, std::pmr::memory_resource*>));
  EXPECT_TRUE(noexcept(allocator<double>(of_arena)));
  EXPECT_TRUE(noexcept(of_arena.deallocate(nullptr, 0)));
  EXPECT_TRUE(noexcept(of_arena == of_arena));
}

// --- Memory ---

TEST(StlAllocator, gives_aligned_memory_of_the_arena) {
  struct alignas(256) Aligned {
    char bytes[256];
  };
  Arena arena = create();
  allocator<Aligned> aligned(arena);
  Aligned* blocks = aligned.allocate(3);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks) % 256, 0U);
  EXPECT_TRUE(arena.heap().owns(blocks));
  EXPECT_GE(arena.heap().usable_size(blocks), 3 * sizeof(Aligned));
  EXPECT_EQ(live_blocks(arena), 1U);
  aligned.deallocate(blocks, 3);
  EXPECT_EQ(live_blocks(arena), 0U);
}

TEST(StlAllocator, throws_bad_alloc_when_the_arena_is_exhausted_and_works_on) {
  Arena arena = create(8_MiB);
  Vector<char> bytes(arena);
  EXPECT_THROW(bytes.resize(9_MiB), std::bad_alloc);
  EXPECT_TRUE(bytes.empty());
  bytes.resize(1_MiB);
  EXPECT_TRUE(arena.heap().owns(bytes.data()));
}

TEST(StlAllocator, throws_where_the_size_would_wrap_around) {
  Arena arena = create();
  allocator<std::uint64_t> words(arena);
  const volatile std::size_t most = SIZE_MAX / 8;  // compilers warn of what they see
  EXPECT_THROW((void)words.allocate(most + 2), std::bad_array_new_length);
  EXPECT_THROW((void)words.allocate(most), std::bad_alloc);
  EXPECT_EQ(live_blocks(arena), 0U);
}

// --- Containers ---

TEST(StlAllocator, serves_every_kind_of_container) {
  struct Containers {
    explicit Containers(Arena& arena)
        : numbers(arena), deque(arena), list(arena), map(arena), table(arena), text(arena) {}
    Vector<std::uint64_t> numbers;
    std::deque<std::uint64_t, allocator<std::uint64_t>> deque;
    std::list<std::uint64_t, allocator<std::uint64_t>> list;
    Map<std::uint64_t, String> map;
    std::unordered_map<std::uint64_t, std::uint64_t, std::hash<std::uint64_t>, std::equal_to<>,
                       allocator<std::pair<const std::uint64_t, std::uint64_t>>>
        table;
    String text;
  };
  RandomSource random;
  Arena arena = create();
  auto* inside = must(arena.find_or_construct<Containers>("all", arena));
  std::map<std::uint64_t, std::string> model;
  std::vector<std::uint64_t> keys;
  for (std::size_t i = 0; i < scaled(2000); ++i) {
    const std::uint64_t key = random.below(500);
    keys.push_back(key);
    inside->numbers.push_back(key);
    inside->deque.push_front(key);
    inside->list.push_back(key);
    inside->text.append("x");
    if (random.one_in(3)) {
      inside->map.erase(key);
      inside->table.erase(key);
      model.erase(key);
    } else {
      const std::string value(random.below(200), static_cast<char>('a' + key % 26));
      inside->map.insert_or_assign(key, String(value, arena));
      inside->table.insert_or_assign(key, value.size());
      model.insert_or_assign(key, value);
    }
  }
  EXPECT_TRUE(std::equal(keys.begin(), keys.end(), inside->numbers.begin(), inside->numbers.end()));
  EXPECT_TRUE(std::equal(keys.rbegin(), keys.rend(), inside->deque.begin(), inside->deque.end()));
  EXPECT_TRUE(std::equal(keys.begin(), keys.end(), inside->list.begin(), inside->list.end()));
  EXPECT_EQ(inside->text.size(), keys.size());
  ASSERT_EQ(inside->map.size(), model.size());
  ASSERT_EQ(inside->table.size(), model.size());
  for (const auto& [key, value] : model) {
    ASSERT_EQ(std::string_view(inside->map.at(key)), value);
    ASSERT_EQ(inside->table.at(key), value.size());
  }
  must(arena.destroy_root<Containers>("all"));
  EXPECT_EQ(live_blocks(arena), 0U);
}

TEST(StlAllocator, a_copy_of_a_container_is_in_the_arena_of_its_source) {
  Arena arena = create();
  const Vector<int> source({1, 2, 3}, arena);
  const Vector<int> copy = source;
  EXPECT_EQ(copy, source);
  EXPECT_EQ(copy.get_allocator(), source.get_allocator());
  EXPECT_TRUE(arena.heap().owns(copy.data()));
}

TEST(StlAllocator, assigning_copies_into_the_arena_of_the_target) {
  Arena first = create();
  Arena second = create();
  const Vector<int> source({1, 2, 3}, first);
  Vector<int> target(second);
  target = source;
  EXPECT_EQ(target, source);
  EXPECT_TRUE(second.heap().owns(target.data()));
}

TEST(StlAllocator, move_assigning_moves_the_elements_into_the_arena_of_the_target) {
  Arena first = create();
  Arena second = create();
  Vector<int> source({1, 2, 3}, first);
  Vector<int> target(second);
  target = std::move(source);
  EXPECT_EQ(target, (Vector<int>({1, 2, 3}, second)));
  EXPECT_TRUE(second.heap().owns(target.data()));
}

TEST(StlAllocator, move_assigning_within_an_arena_takes_the_memory_over) {
  Arena arena = create();
  Vector<int> source({1, 2, 3}, arena);
  const int* const elements = source.data();
  Vector<int> target(arena);
  target = std::move(source);
  EXPECT_EQ(target.data(), elements);
}

struct Tree {
  explicit Tree(const allocator<Tree>& of_arena) : branches(of_arena) {}
  Vector<Tree> branches;  // Tree is not complete yet
};

TEST(StlAllocator, serves_types_that_hold_containers_of_themselves) {
  Arena arena = create();
  Tree* root = must(arena.construct<Tree>(arena));
  root->branches.emplace_back(arena).branches.emplace_back(arena);
  EXPECT_TRUE(arena.heap().owns(root->branches[0].branches.data()));
  arena.destroy(root);
  EXPECT_EQ(live_blocks(arena), 0U);
}

TEST(StlAllocator, elements_are_constructed_with_it) {
  Arena arena = create();
  Vector<String> words(arena);
  words.emplace_back(kLong.c_str());
  words.resize(2);
  Map<String, Vector<int>> lists(arena);
  lists[words[0]].push_back(1);
  EXPECT_TRUE(arena.heap().owns(words[0].data()));
  EXPECT_EQ(words[1].get_allocator(), words.get_allocator());
  EXPECT_TRUE(arena.heap().owns(lists.begin()->first.data()));
  EXPECT_TRUE(arena.heap().owns(lists.begin()->second.data()));
}

// Otherwise their memory would be that of the default resource, outside the arena.
TEST(StlAllocator, elements_of_std_pmr_take_its_arena_too) {
  Arena arena = create();
  Vector<std::pmr::string> words(arena);
  words.emplace_back(kLong);
  Map<std::pmr::string, std::pmr::vector<int>> lists(arena);
  lists[words[0]].push_back(1);
  EXPECT_TRUE(arena.heap().owns(words[0].data()));
  EXPECT_TRUE(arena.heap().owns(lists.begin()->first.data()));
  EXPECT_TRUE(arena.heap().owns(lists.begin()->second.data()));
}

TEST(StlAllocator, shares_the_ownership_of_objects) {
  Arena arena = create();
  {
    const std::shared_ptr<int> shared = std::allocate_shared<int>(allocator<int>(arena), 7);
    EXPECT_EQ(*shared, 7);
    EXPECT_TRUE(arena.heap().owns(shared.get()));
  }
  EXPECT_EQ(live_blocks(arena), 0U);
}

}  // namespace
}  // namespace pagetide
