#include "pagetide/allocator/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <map>
#include <memory_resource>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pagetide/allocator/arena_resource.h"
#include "tests/support/child_process.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"

namespace pagetide {
namespace {

using namespace literals;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::KilledBySignal;

ArenaOptions options(std::size_t reserve_bytes = 64_MiB) {
  ArenaOptions result;
  result.name = "test";
  result.reserve_bytes = reserve_bytes;
  return result;
}

Arena create(std::size_t reserve_bytes = 64_MiB) {
  return must(Arena::create(options(reserve_bytes)));
}

std::uint64_t live_blocks(const Arena& arena) {
  return must(arena.heap().check()).live_blocks;
}

// Counts its lives.
struct Counted {
  explicit Counted(int v = 0) : value(v) { ++alive; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --alive; }
  int value;
  static inline std::atomic<int> alive{0};
};

struct Throws {
  explicit Throws(int kind) {
    if (kind == 0) throw std::runtime_error("no");
    if (kind == 1) throw std::bad_alloc();
  }
};

struct Polymorphic {
  virtual ~Polymorphic() = default;
  virtual int answer() const { return 42; }
};

// --- creation ---

TEST(ArenaTest, is_what_its_options_say) {
  ArenaOptions wanted = options(16_MiB);
  wanted.base = 0x5540'0000'0000;
  wanted.clear = ClearPolicy::never;
  wanted.prefill = Prefill::none;
  wanted.backend = BackendKind::compare;
  const Arena arena = must(Arena::create(wanted));
  EXPECT_EQ(arena.name(), "test");
  EXPECT_EQ(arena.range(), (ByteRange{0x5540'0000'0000, 16_MiB}));
  EXPECT_EQ(arena.heap().clear_policy(), ClearPolicy::never);
  EXPECT_EQ(arena.region().prefill_policy(), Prefill::none);
  EXPECT_EQ(arena.tracker().backend(), BackendKind::compare);
  EXPECT_EQ(live_blocks(arena), 0U);
}

TEST(ArenaTest, two_arenas_do_not_meet) {
  const Arena first = create();
  const Arena second = create();
  EXPECT_TRUE(first.range().intersect(second.range()).empty());
}

TEST(ArenaTest, a_taken_base_is_refused) {
  const Arena first = create();
  ArenaOptions same = options();
  same.base = first.range().begin;
  EXPECT_EQ(Arena::create(same).error().code(), ErrorCode::address_taken);
}

TEST(ArenaTest, options_that_cannot_work_are_refused) {
  ArenaOptions long_name = options();
  long_name.name = std::string(64, 'n');
  EXPECT_EQ(Arena::create(long_name).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(Arena::create(options(100)).error().code(), ErrorCode::invalid_argument);
  ArenaOptions crooked = options();
  crooked.base = 0x5540'0000'0000 + 32_KiB;
  EXPECT_EQ(Arena::create(crooked).error().code(), ErrorCode::invalid_argument);
}

TEST(ArenaTest, its_end_unmaps_everything) {
  ByteRange range;
  {
    const Arena arena = create(8_MiB);
    range = arena.range();
  }
  EXPECT_TRUE(is_unmapped(range));
}

TEST(ArenaTest, moving_keeps_every_address) {
  Arena arena = create();
  std::pmr::memory_resource* resource = arena.resource();
  Heap* heap = &arena.heap();
  auto* text = must(arena.find_or_construct<std::pmr::string>("text",
                                                              "so long that it needs memory of "
                                                              "the arena",
                                                              arena.resource()));
  Arena moved(std::move(arena));
  EXPECT_EQ(moved.resource(), resource);
  EXPECT_EQ(&moved.heap(), heap);
  EXPECT_EQ(must(moved.find<std::pmr::string>("text")), text);
  text->append(1000, 'x');
  Arena other = create(8_MiB);
  const ByteRange replaced = other.range();
  other = std::move(moved);
  EXPECT_TRUE(is_unmapped(replaced));
  EXPECT_EQ(must(other.find<std::pmr::string>("text")), text);
  EXPECT_TRUE(other.heap().check());
}

// --- memory ---

TEST(ArenaTest, allocate_and_deallocate_are_those_of_the_heap) {
  Arena arena = create();
  void* block = must(arena.allocate(1000, 256));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 256, 0U);
  EXPECT_TRUE(arena.range().contains(reinterpret_cast<std::uintptr_t>(block)));
  std::memset(block, 1, 1000);
  EXPECT_EQ(live_blocks(arena), 1U);
  arena.deallocate(block);
  arena.deallocate(nullptr);
  EXPECT_EQ(live_blocks(arena), 0U);
}

TEST(ArenaTest, exhaustion_names_the_arena_and_the_way_out) {
  Arena arena = create(8_MiB);
  ASSERT_TRUE(arena.allocate(5_MiB));
  const auto r = arena.allocate(5_MiB);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(
      r.error().message(),
      "the arena 'test' is exhausted: its reservation of 8388608 bytes or the machine's memory is "
      "used up. Reserve more when creating it, or free something.");
  EXPECT_TRUE(arena.allocate(1_MiB));
}

TEST(ArenaTest, a_block_that_can_never_fit_is_named_as_such) {
  Arena arena = create(8_MiB);
  const auto r = arena.allocate(9_MiB);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(r.error().message(),
            "a block of 9437184 bytes is more than the arena 'test' can ever hold: its reservation "
            "is 8388608 bytes. Reserve more when creating it.");
}

TEST(ArenaTest, what_is_no_alignment_is_an_invalid_argument) {
  Arena arena = create();
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{48}, std::size_t{2_GiB}}) {
    const auto r = arena.allocate(16, alignment);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument) << r.error().message();
    EXPECT_THAT(r.error().message(), HasSubstr(std::to_string(alignment)));
  }
}

TEST(ArenaDeathTest, a_double_free_aborts) {
  Arena arena = create();
  void* block = must(arena.allocate(100));
  arena.deallocate(block);
  std::ostringstream expected;
  expected << "pagetide: heap corruption: double free of " << block << "\n";
  EXPECT_EXIT(arena.deallocate(block), KilledBySignal(SIGABRT), Eq(expected.str()));
}

// --- objects ---

TEST(ArenaObjectTest, construct_and_destroy_run_constructor_and_destructor) {
  Arena arena = create();
  Counted* object = must(arena.construct<Counted>(7));
  EXPECT_EQ(object->value, 7);
  EXPECT_EQ(Counted::alive, 1);
  EXPECT_TRUE(arena.range().contains(reinterpret_cast<std::uintptr_t>(object)));
  arena.destroy(object);
  arena.destroy(static_cast<Counted*>(nullptr));
  EXPECT_EQ(Counted::alive, 0);
  EXPECT_EQ(live_blocks(arena), 0U);
}

TEST(ArenaObjectTest, over_aligned_types_are_aligned) {
  struct alignas(512) Aligned {
    int value = 3;
  };
  Arena arena = create();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(must(arena.construct<Aligned>())) % 512, 0U);
  }
}

TEST(ArenaObjectTest, an_exception_of_the_constructor_frees_the_memory_and_goes_on) {
  Arena arena = create();
  EXPECT_THROW((void)arena.construct<Throws>(0), std::runtime_error);
  EXPECT_THROW((void)arena.find_or_construct<Throws>("thrown", 0), std::runtime_error);
  EXPECT_EQ(live_blocks(arena), 0U);
  EXPECT_EQ(arena.find<Throws>("thrown").error().code(), ErrorCode::not_found);
}

TEST(ArenaObjectTest, bad_alloc_of_the_constructor_is_exhaustion) {
  Arena arena = create();
  const auto r = arena.construct<Throws>(1);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(live_blocks(arena), 0U);
  EXPECT_TRUE(arena.construct<Throws>(2));
}

TEST(ArenaObjectTest, a_polymorphic_type_is_noticed_and_a_plain_one_is_not) {
  Arena arena = create();
  must(arena.construct<int>(1));
  must(arena.find_or_construct<std::pmr::vector<int>>("v", arena.resource()));
  EXPECT_FALSE(arena.heap().holds_code_addresses());
  must(arena.construct<Polymorphic>());
  EXPECT_TRUE(arena.heap().holds_code_addresses());
}

TEST(ArenaObjectTest, a_polymorphic_root_is_noticed) {
  Arena arena = create();
  const Polymorphic* object = must(arena.find_or_construct<Polymorphic>("p"));
  EXPECT_EQ(object->answer(), 42);
  EXPECT_TRUE(arena.heap().holds_code_addresses());
}

TEST(ArenaObjectTest, code_addresses_can_be_declared) {
  Arena arena = create();
  arena.set_holds_code_addresses();
  EXPECT_TRUE(arena.heap().holds_code_addresses());
}

// --- roots ---

TEST(ArenaRootTest, find_or_construct_constructs_once) {
  Arena arena = create();
  Counted* first = must(arena.find_or_construct<Counted>("counted", 5));
  Counted* again = must(arena.find_or_construct<Counted>("counted", 6));
  EXPECT_EQ(first, again);
  EXPECT_EQ(again->value, 5);
  EXPECT_EQ(Counted::alive, 1);
  EXPECT_EQ(must(arena.find<Counted>("counted")), first);
  must(arena.destroy_root<Counted>("counted"));
}

TEST(ArenaRootTest, what_was_never_constructed_is_not_found) {
  const Arena arena = create();
  EXPECT_EQ(arena.find<int>("nothing").error().code(), ErrorCode::not_found);
}

TEST(ArenaRootTest, destroy_root_ends_the_object_and_frees_the_name) {
  Arena arena = create();
  must(arena.find_or_construct<Counted>("counted", 5));
  must(arena.destroy_root<Counted>("counted"));
  EXPECT_EQ(Counted::alive, 0);
  EXPECT_EQ(live_blocks(arena), 0U);
  EXPECT_EQ(arena.find<Counted>("counted").error().code(), ErrorCode::not_found);
  EXPECT_EQ(arena.destroy_root<Counted>("counted").error().code(), ErrorCode::not_found);
  EXPECT_EQ(must(arena.find_or_construct<Counted>("counted", 6))->value, 6);
  must(arena.destroy_root<Counted>("counted"));
}

// As a damaged snapshot could have it.
TEST(ArenaRootTest, an_object_outside_the_arena_is_refused) {
  Arena arena = create();
  int outside = 0;
  must(arena.roots().insert({"number", &outside, type_hash<int>(), sizeof(int)}));
  const auto found = arena.find<int>("number");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::damaged);
}

TEST(ArenaRootTest, a_name_of_another_type_is_refused_in_every_way) {
  Arena arena = create();
  must(arena.find_or_construct<int>("number", 5));
  const std::string expected =
      "the root 'number' is of another type than asked for (4 bytes, not 8); use the type that "
      "constructed it.";
  const auto found = arena.find<double>("number");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::identity_mismatch);
  EXPECT_EQ(found.error().message(), expected);
  EXPECT_EQ(arena.find_or_construct<double>("number", 1.0).error().message(), expected);
  EXPECT_EQ(arena.destroy_root<double>("number").error().message(), expected);
  // Of the same size, too.
  EXPECT_EQ(arena.find<float>("number").error().code(), ErrorCode::identity_mismatch);
  EXPECT_EQ(*must(arena.find<int>("number")), 5);
  EXPECT_EQ(live_blocks(arena), 1U);
}

TEST(ArenaRootTest, names_that_do_not_fit_leave_nothing_behind) {
  Arena arena = create();
  for (const std::string& name : {std::string(), std::string(40, 'n'), std::string("a\0b", 3)}) {
    const auto r = arena.find_or_construct<Counted>(name, 1);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(Counted::alive, 0);
  }
  EXPECT_EQ(live_blocks(arena), 0U);
  EXPECT_TRUE(arena.find_or_construct<int>(std::string(39, 'n'), 1));
}

TEST(ArenaRootTest, a_full_table_leaves_nothing_behind) {
  Arena arena = create();
  for (std::size_t i = 0; i < layout::kRootCapacity; ++i) {
    must(arena.find_or_construct<std::size_t>("root " + std::to_string(i), i));
  }
  const auto r = arena.find_or_construct<Counted>("one too many", 1);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(Counted::alive, 0);
  EXPECT_EQ(live_blocks(arena), layout::kRootCapacity);
  EXPECT_EQ(*must(arena.find_or_construct<std::size_t>("root 77", std::size_t{0})), 77U);
}

TEST(ArenaRootTest, an_exhausted_arena_makes_no_root) {
  struct Big {
    std::array<char, std::size_t{9} << 20> bytes;
  };
  Arena arena = create(8_MiB);
  EXPECT_EQ(arena.find_or_construct<Big>("big").error().code(), ErrorCode::out_of_memory);
  EXPECT_TRUE(arena.roots().list().empty());
}

TEST(ArenaRootTest, of_racing_threads_one_constructs_and_all_get_its_object) {
  Arena arena = create();
  constexpr std::size_t kThreads = 4;
  const std::size_t rounds = scaled(100);
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::string name = "root " + std::to_string(round % 200);
    std::array<Counted*, kThreads> objects{};
    std::atomic<std::size_t> ready{0};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        ++ready;
        while (ready < kThreads) std::this_thread::yield();
        objects.at(i) = must(arena.find_or_construct<Counted>(name, static_cast<int>(i)));
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Counted* object : objects) ASSERT_EQ(object, objects[0]);
    ASSERT_EQ(Counted::alive, 1);
    ASSERT_EQ(live_blocks(arena), 1U);
    must(arena.destroy_root<Counted>(name));
  }
}

// --- the memory_resource ---

TEST(ArenaResourceTest, is_one_object_at_one_address_inside_the_region) {
  const Arena arena = create();
  const auto address = reinterpret_cast<std::uintptr_t>(arena.resource());
  EXPECT_EQ(address, arena.range().begin + arena.heap().geometry().runtime_offset);
  EXPECT_EQ(arena.resource(), arena.resource());
}

TEST(ArenaResourceTest, equals_itself_only) {
  const Arena first = create();
  const Arena second = create();
  EXPECT_TRUE(first.resource()->is_equal(*first.resource()));
  EXPECT_FALSE(first.resource()->is_equal(*second.resource()));
  EXPECT_FALSE(first.resource()->is_equal(*std::pmr::new_delete_resource()));
}

TEST(ArenaResourceTest, throws_bad_alloc_when_exhausted_and_works_on) {
  Arena arena = create(8_MiB);
  std::pmr::vector<char> vector(arena.resource());
  EXPECT_THROW(vector.resize(9_MiB), std::bad_alloc);
  EXPECT_THROW((void)arena.resource()->allocate(16, 2_GiB), std::bad_alloc);
  vector.resize(1_MiB);
  EXPECT_TRUE(arena.range().contains(reinterpret_cast<std::uintptr_t>(vector.data())));
}

TEST(ArenaResourceTest, serves_every_kind_of_container) {
  RandomSource random;
  Arena arena = create();
  struct Containers {
    explicit Containers(std::pmr::memory_resource* r) : vector(r), map(r), table(r), text(r) {}
    std::pmr::vector<std::uint64_t> vector;
    std::pmr::map<std::uint64_t, std::pmr::string> map;
    std::pmr::unordered_map<std::uint64_t, std::uint64_t> table;
    std::pmr::string text;
  };
  auto* inside = must(arena.find_or_construct<Containers>("all", arena.resource()));
  std::map<std::uint64_t, std::string> model;
  for (std::size_t i = 0; i < scaled(5000); ++i) {
    const std::uint64_t key = random.below(2000);
    if (random.one_in(3)) {
      inside->map.erase(key);
      inside->table.erase(key);
      model.erase(key);
    } else {
      const std::string value(random.below(200), static_cast<char>('a' + key % 26));
      inside->map.insert_or_assign(key, value);
      inside->table.insert_or_assign(key, value.size());
      model.insert_or_assign(key, value);
    }
    inside->vector.push_back(key);
    inside->text.append("x");
  }
  ASSERT_EQ(inside->map.size(), model.size());
  for (const auto& [key, value] : model) {
    ASSERT_EQ(std::string_view(inside->map.at(key)), value);
    ASSERT_EQ(inside->table.at(key), value.size());
  }
  EXPECT_TRUE(arena.heap().check());
  must(arena.destroy_root<Containers>("all"));
  EXPECT_EQ(live_blocks(arena), 0U);
}

// --- images ---

// What a snapshot would hold: all bytes but the run-time page.
std::vector<std::byte> image_of(const Arena& arena) {
  const std::uintptr_t base = arena.range().begin;
  std::vector<std::byte> image(arena.heap().image_bytes());
  for (const UsedRanges& used : {arena.heap().metadata_ranges(), arena.heap().used_ranges()}) {
    for (const ByteRange& range : used.span()) {
      std::memcpy(image.data() + (range.begin - base), range.data(), range.size);
    }
  }
  return image;
}

TEST(ArenaImageTest, an_arena_from_an_image_is_the_arena_it_was) {
  std::vector<std::byte> image;
  ArenaOptions same = options();
  {
    Arena arena = create();
    auto* words = must(
        arena.find_or_construct<std::pmr::vector<std::pmr::string>>("words", arena.resource()));
    for (int i = 0; i < 1000; ++i)
      words->emplace_back(std::string(100, static_cast<char>('a' + i % 26)));
    image = image_of(arena);
    same.base = arena.range().begin;
  }
  Arena arena = must(Arena::from_image(same, image.size(), [&](ByteRange region) -> Result<void> {
    std::memcpy(region.data(), image.data(), image.size());
    return {};
  }));
  EXPECT_EQ(arena.name(), "test");
  auto* words = must(arena.find<std::pmr::vector<std::pmr::string>>("words"));
  ASSERT_EQ(words->size(), 1000U);
  for (std::size_t i = 0; i < 1000; ++i) {
    ASSERT_EQ((*words)[i], std::pmr::string(100, static_cast<char>('a' + i % 26)));
  }
  // The containers go on with the resource that stands where it stood.
  EXPECT_EQ(words->get_allocator().resource(), arena.resource());
  words->clear();
  words->shrink_to_fit();
  for (int i = 0; i < 100; ++i) words->emplace_back(200, 'z');
  EXPECT_TRUE(arena.heap().check());
}

TEST(ArenaImageTest, an_image_that_cannot_be_loaded_leaves_no_arena) {
  ArenaOptions at = options();
  at.base = 0x5540'0000'0000;
  const auto failed = Arena::from_image(at, 1_MiB, [](ByteRange) -> Result<void> {
    return failure(ErrorCode::damaged, "the disk broke.");
  });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "the disk broke.");
  const auto zeros = Arena::from_image(at, 1_MiB, [](ByteRange) { return Result<void>(); });
  ASSERT_FALSE(zeros);
  EXPECT_EQ(zeros.error().code(), ErrorCode::damaged);
  const auto larger = Arena::from_image(at, 65_MiB, [](ByteRange) { return Result<void>(); });
  ASSERT_FALSE(larger);
  EXPECT_EQ(larger.error().message(), "the image is larger than the arena's reservation.");
  EXPECT_TRUE(is_unmapped({at.base, 1_MiB}));
}

TEST(ArenaTest, knows_its_origin_and_has_one_consumer) {
  Arena arena = create();
  EXPECT_EQ(arena.origin().snapshot, 0U);
  ArenaOrigin origin;
  origin.snapshot = 17;
  origin.store_uuid[3] = 9;
  arena.set_origin(origin);
  EXPECT_EQ(arena.origin().snapshot, 17U);
  EXPECT_EQ(arena.origin().store_uuid[3], 9);
  EXPECT_TRUE(arena.acquire_consumer());
  EXPECT_FALSE(arena.acquire_consumer());
  arena.release_consumer();
  EXPECT_TRUE(arena.acquire_consumer());
}

TEST(ArenaForkTest, a_child_can_use_and_end_its_copy) {
  Arena arena = create();
  auto* numbers = must(arena.find_or_construct<std::pmr::vector<int>>("numbers", arena.resource()));
  numbers->assign(1000, 7);
  EXPECT_EQ(run_in_child([&]() -> std::string {
              numbers->resize(100'000, 8);
              if (!arena.find_or_construct<Counted>("of the child", 1)) return "cannot construct";
              if (!arena.heap().check()) return "damaged";
              const Arena ending = std::move(arena);
              return {};
            }),
            "");
  EXPECT_EQ(numbers->size(), 1000U);
  EXPECT_FALSE(arena.find<Counted>("of the child"));
  must(arena.tracker().collect(arena.region().watch(), CollectMode::take));
  (*numbers)[0] = 8;
  const Collected seen = must(arena.tracker().collect(arena.region().watch(), CollectMode::take));
  EXPECT_FALSE(seen.poisoned);
  EXPECT_EQ(seen.written.count(), 1U);
}

TEST(ArenaTest, too_much_slack_is_refused) {
  const auto arena = Arena::create({.reserve_bytes = 16_MiB, .slack_percent = 51});
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(arena.error().message(),
            "a slack of 51 % is more than an arena can have; give 0 to 50.");
}

}  // namespace
}  // namespace pagetide
