// The C API of arenas, called from C++: options, null pointers, memory, roots, statistics. The
// oracle is the C++ API over the same arena.

#include "pagetide/allocator/arena_c.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/base/hash.h"
#include "tests/allocator/arena_c_support.h"
#include "tests/support/child_process.h"
#include "tests/support/environment.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"

namespace pagetide {
namespace {

using namespace literals;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::KilledBySignal;
using ::testing::StartsWith;

std::uint64_t live_blocks(const ArenaHandle& arena) {
  return must(cpp(arena).heap().check()).live_blocks;
}

std::byte* bytes_of(void* block) {
  return static_cast<std::byte*>(block);
}

// --- Null pointers ---

struct NullCall {
  const char* missing;
  std::function<std::int64_t()> call;
};

class ArenaCNullPointers : public testing::Test {
 protected:
  // Those that return an error; where the answer is an address or a size, null or 0 counts as one.
  std::vector<NullCall> calls() {
    pagetide_arena* a = arena_.get();
    const auto error = [](bool failed) { return failed ? pagetide_last_error() : 0; };
    return {
        {"options",
         [] { return pagetide_arena_options_init(nullptr, sizeof(pagetide_arena_options)); }},
        {"arena", [] { return pagetide_arena_create(nullptr, nullptr); }},
        {"arena", [=] { return error(pagetide_arena_name(nullptr) == nullptr); }},
        {"arena", [this] { return pagetide_arena_range(nullptr, &range_); }},
        {"range", [=] { return pagetide_arena_range(a, nullptr); }},
        {"arena", [=] { return error(pagetide_arena_allocate(nullptr, 1) == nullptr); }},
        {"arena",
         [=] { return error(pagetide_arena_allocate_aligned(nullptr, 16, 1) == nullptr); }},
        {"arena", [=] { return error(pagetide_arena_allocate_zeroed(nullptr, 1, 1) == nullptr); }},
        {"arena", [=] { return error(pagetide_arena_reallocate(nullptr, nullptr, 1) == nullptr); }},
        {"arena",
         [=] {
           return error(pagetide_arena_reallocate_aligned(nullptr, nullptr, 16, 1) == nullptr);
         }},
        {"blocks", [=] { return error(pagetide_arena_allocate_batch(a, 1, nullptr, 1) == 0); }},
        {"arena",
         [=] { return error(pagetide_arena_allocate_batch(nullptr, 1, nullptr, 0) == 0); }},
        {"classes", [=] { return pagetide_arena_get_class_stats(a, nullptr, 1); }},
        {"arena", [=] { return pagetide_arena_get_class_stats(nullptr, nullptr, 0); }},
        {"arena", [=] { return error(pagetide_arena_usable_size(nullptr, nullptr) == 0); }},
        {"arena", [this] { return pagetide_arena_owns(nullptr, &range_); }},
        {"arena",
         [=] {
           pagetide_arena_deallocate(nullptr, nullptr);
           return pagetide_last_error();
         }},
        {"arena", [this] { return pagetide_arena_set_root(nullptr, "n", "t", block_, 1); }},
        {"name", [=, this] { return pagetide_arena_set_root(a, nullptr, "t", block_, 1); }},
        {"type", [=, this] { return pagetide_arena_set_root(a, "n", nullptr, block_, 1); }},
        {"address", [=] { return pagetide_arena_set_root(a, "n", "t", nullptr, 1); }},
        {"arena", [=] { return error(pagetide_arena_find_root(nullptr, "n", "t", 1) == nullptr); }},
        {"name", [=] { return error(pagetide_arena_find_root(a, nullptr, "t", 1) == nullptr); }},
        {"type", [=] { return error(pagetide_arena_find_root(a, "n", nullptr, 1) == nullptr); }},
        {"arena", [] { return pagetide_arena_erase_root(nullptr, "n"); }},
        {"name", [=] { return pagetide_arena_erase_root(a, nullptr); }},
        {"arena",
         [] {
           const auto visit = [](void*, size_t, void*) {};
           return pagetide_arena_for_each_allocation(nullptr, visit, nullptr);
         }},
        {"visit", [=] { return pagetide_arena_for_each_allocation(a, nullptr, nullptr); }},
        {"arena", [this] { return pagetide_arena_get_stats(nullptr, &stats_); }},
        {"stats", [=] { return pagetide_arena_get_stats(a, nullptr); }},
        {"arena", [=] { return error(pagetide_arena_trim(nullptr) == 0); }},
        {"arena", [] { return pagetide_arena_clear_free_memory(nullptr); }},
    };
  }

  ArenaHandle arena_ = create_arena();
  void* block_ = pagetide_arena_allocate(arena_.get(), 1);
  pagetide_range range_{};
  pagetide_arena_stats stats_{};
};

TEST_F(ArenaCNullPointers, are_errors_that_name_the_argument) {
  for (const NullCall& null_call : calls()) {
    EXPECT_EQ(null_call.call(), PAGETIDE_INVALID_ARGUMENT) << null_call.missing;
    EXPECT_EQ(last_message(), std::string(null_call.missing) + " must not be a null pointer.");
    (void)pagetide_arena_find_root(arena_.get(), "of another error", "t", 1);
  }
  EXPECT_EQ(live_blocks(arena_), 1U);
}

TEST_F(ArenaCNullPointers, can_be_destroyed) {
  pagetide_arena_destroy(nullptr);
}

TEST_F(ArenaCNullPointers, of_blocks_are_no_blocks) {
  pagetide_arena_deallocate(arena_.get(), nullptr);
  EXPECT_EQ(pagetide_arena_usable_size(arena_.get(), nullptr), 0U);
  EXPECT_EQ(pagetide_arena_owns(arena_.get(), nullptr), 0);
}

// --- Options ---

TEST(ArenaCOptions, have_the_defaults_of_the_cpp_api) {
  pagetide_arena_options options;
  must_c(pagetide_arena_options_init(&options, sizeof options));
  const ArenaOptions expected;
  EXPECT_EQ(options.size, sizeof options);
  EXPECT_EQ(options.name, expected.name);
  EXPECT_EQ(options.reserve_bytes, expected.reserve_bytes);
  EXPECT_EQ(options.base, expected.base);
  EXPECT_EQ(options.clear, PAGETIDE_CLEAR_DEFERRED);
  EXPECT_EQ(options.prefill, PAGETIDE_PREFILL_ZERO_PAGE);
  EXPECT_EQ(options.backend, PAGETIDE_BACKEND_AUTO);
  EXPECT_EQ(options.adapt_to_hot_pages, 0);
  EXPECT_EQ(options.slack_percent, expected.slack_percent);
  EXPECT_EQ(options.hot_stale_page_ns, expected.hot_pages.stale_page_ns);
  EXPECT_EQ(options.hot_fault_ns, expected.hot_pages.fault_ns);
  EXPECT_EQ(options.hot_ioctl_ns, expected.hot_pages.ioctl_ns);
  EXPECT_EQ(options.hot_relearn_takes, expected.hot_pages.relearn_takes);
  EXPECT_EQ(options.holds_code_addresses, 0);
  EXPECT_EQ(options.ignore_program_identity, 0);
  EXPECT_EQ(options.on_corruption, nullptr);
}

TEST(ArenaCStructs, have_the_sizes_that_programs_were_compiled_with) {
  EXPECT_EQ(sizeof(pagetide_arena_options), 96U);
  EXPECT_EQ(sizeof(pagetide_arena_stats), 56U);
  EXPECT_EQ(sizeof(pagetide_class_stats), 32U);
  EXPECT_THAT(
      (std::vector<int>{PAGETIDE_CLEAR_ON_FREE, PAGETIDE_CLEAR_NEVER, PAGETIDE_CLEAR_DEFERRED}),
      ElementsAre(0, 1, 2));
}

TEST(ArenaCOptions, make_the_arena_that_they_describe) {
  pagetide_arena_options options = small_arena("described");
  options.reserve_bytes = 16_MiB;
  options.base = 0x5540'0000'0000;
  options.clear = PAGETIDE_CLEAR_NEVER;
  options.prefill = PAGETIDE_PREFILL_NONE;
  options.backend = PAGETIDE_BACKEND_COMPARE;
  options.holds_code_addresses = 1;
  const ArenaHandle arena = create_arena(options);
  EXPECT_EQ(cpp(arena).name(), "described");
  EXPECT_EQ(cpp(arena).range(), (ByteRange{0x5540'0000'0000, 16_MiB}));
  EXPECT_EQ(cpp(arena).heap().clear_policy(), ClearPolicy::never);
  EXPECT_EQ(cpp(arena).region().prefill_policy(), Prefill::none);
  EXPECT_EQ(cpp(arena).tracker().backend(), BackendKind::compare);
  EXPECT_TRUE(cpp(arena).heap().holds_code_addresses());
  EXPECT_FALSE(cpp(create_arena()).heap().holds_code_addresses());
}

TEST(ArenaCOptions, pass_the_adaptive_arming_on) {
  pagetide_arena_options options = small_arena();
  options.adapt_to_hot_pages = 1;
  options.hot_stale_page_ns = 2;
  options.hot_fault_ns = 3;
  options.hot_ioctl_ns = 4;
  options.hot_relearn_takes = 5;
  const HotPageOptions known = must(c_api::arena_options(&options)).arena.hot_pages;
  EXPECT_TRUE(known.enabled);
  EXPECT_EQ(known.stale_page_ns, 2U);
  EXPECT_EQ(known.fault_ns, 3U);
  EXPECT_EQ(known.ioctl_ns, 4U);
  EXPECT_EQ(known.relearn_takes, 5U);
}

// Whether an arena leaves blocks unarmed that are written in every epoch.
TEST(ArenaCOptions, with_adaptive_arming_make_an_arena_that_adapts) {
  for (const int adapt : {0, 1}) {
    pagetide_arena_options options = small_arena();
    options.adapt_to_hot_pages = adapt;
    EXPECT_EQ(adapts_to_hot_pages(create_arena(options)), adapt == 1);
  }
}

TEST(ArenaCOptions, may_be_null_for_the_defaults) {
  pagetide_arena* created = nullptr;
  must_c(pagetide_arena_create(nullptr, &created));
  const ArenaHandle arena(created, pagetide_arena_destroy);
  EXPECT_STREQ(pagetide_arena_name(created), "arena");
  EXPECT_EQ(cpp(arena).range().size, ArenaOptions().reserve_bytes);
}

TEST(ArenaCOptions, without_a_name_have_the_default_one) {
  EXPECT_STREQ(pagetide_arena_name(create_arena(small_arena(nullptr)).get()), "arena");
}

TEST(ArenaCOptions, of_an_older_program_are_read_to_their_end_and_no_further) {
  pagetide_arena_options options;
  std::memset(&options, 0x5a, sizeof options);
  constexpr std::size_t kOlderSize = offsetof(pagetide_arena_options, clear);
  must_c(pagetide_arena_options_init(&options, kOlderSize));
  EXPECT_EQ(options.size, kOlderSize);
  EXPECT_EQ(options.clear, 0x5a5a5a5a);
  options.reserve_bytes = 64_MiB;
  EXPECT_EQ(cpp(create_arena(options)).heap().clear_policy(), ClearPolicy::deferred);
}

TEST(ArenaCOptions, of_a_newer_program_work_while_it_sets_nothing_unknown) {
  NewerOptions<pagetide_arena_options> options;
  std::memset(&options, 0x5a, sizeof options);
  must_c(pagetide_arena_options_init(&options.known, sizeof options));
  options.known.reserve_bytes = 64_MiB;
  EXPECT_STREQ(pagetide_arena_name(create_arena(options.known).get()), "arena");
  options.added[1] = 1;
  pagetide_arena* arena = nullptr;
  EXPECT_EQ(pagetide_arena_create(&options.known, &arena), PAGETIDE_UNSUPPORTED);
  EXPECT_EQ(last_message(),
            "the arena's options set something that this version of Pagetide does not have; the "
            "program was compiled for a newer one.");
  EXPECT_EQ(arena, nullptr);
}

TEST(ArenaCOptions, with_a_size_that_was_never_set_are_refused) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1025}, SIZE_MAX}) {
    pagetide_arena_options options = small_arena();
    EXPECT_EQ(pagetide_arena_options_init(&options, size), PAGETIDE_INVALID_ARGUMENT);
    options.size = size;
    pagetide_arena* arena = nullptr;
    EXPECT_EQ(pagetide_arena_create(&options, &arena), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_THAT(last_message(), HasSubstr("set it to sizeof(pagetide_arena_options)."));
    EXPECT_EQ(arena, nullptr);
  }
}

TEST(ArenaCOptions, with_numbers_that_are_no_enumerators_are_refused) {
  const std::map<std::string, int pagetide_arena_options::*> members = {
      {"pagetide_clear_policy", &pagetide_arena_options::clear},
      {"pagetide_prefill", &pagetide_arena_options::prefill},
      {"pagetide_backend", &pagetide_arena_options::backend}};
  for (const auto& [type, member] : members) {
    for (const int number : {-1, 7}) {
      pagetide_arena_options options = small_arena();
      options.*member = number;
      pagetide_arena* arena = nullptr;
      EXPECT_EQ(pagetide_arena_create(&options, &arena), PAGETIDE_INVALID_ARGUMENT);
      EXPECT_EQ(last_message(), std::to_string(number) + " is not a " + type + ".");
    }
  }
}

TEST(ArenaCOptions, that_cannot_work_give_the_errors_of_the_cpp_api) {
  const ArenaHandle first = create_arena();
  pagetide_arena_options same = small_arena();
  same.base = cpp(first).range().begin;
  pagetide_arena* arena = nullptr;
  EXPECT_EQ(pagetide_arena_create(&same, &arena), PAGETIDE_ADDRESS_TAKEN);
  pagetide_arena_options crooked = small_arena();
  crooked.base = 0x5540'0000'0000 + 32_KiB;
  EXPECT_EQ(pagetide_arena_create(&crooked, &arena), PAGETIDE_INVALID_ARGUMENT);
  pagetide_arena_options tiny = small_arena();
  tiny.reserve_bytes = 100;
  EXPECT_EQ(pagetide_arena_create(&tiny, &arena), PAGETIDE_INVALID_ARGUMENT);
  pagetide_arena_options long_name = small_arena(
      "0123456789012345678901234567890123456789"
      "0123456789012345678901234");
  EXPECT_EQ(pagetide_arena_create(&long_name, &arena), PAGETIDE_INVALID_ARGUMENT);
  const Disabled some("userfaultfd");
  pagetide_arena_options forced = small_arena();
  forced.backend = PAGETIDE_BACKEND_UFFD_ASYNC;
  EXPECT_EQ(pagetide_arena_create(&forced, &arena), PAGETIDE_UNSUPPORTED);
  EXPECT_EQ(arena, nullptr);
}

// --- Life ---

TEST(ArenaC, knows_its_name_and_range) {
  const ArenaHandle arena = create_arena(small_arena("known"));
  pagetide_range range{};
  must_c(pagetide_arena_range(arena.get(), &range));
  EXPECT_EQ(ByteRange::of(range.address, range.size), cpp(arena).range());
  EXPECT_STREQ(pagetide_arena_name(arena.get()), "known");
}

TEST(ArenaC, its_end_unmaps_everything) {
  ArenaHandle arena = create_arena();
  const ByteRange range = cpp(arena).range();
  arena.reset();
  EXPECT_TRUE(is_unmapped(range));
}

// --- Memory ---

TEST(ArenaCMemory, is_that_of_the_heap) {
  const ArenaHandle arena = create_arena();
  void* block = pagetide_arena_allocate(arena.get(), 1000);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 16, 0U);
  EXPECT_EQ(pagetide_arena_usable_size(arena.get(), block), cpp(arena).heap().usable_size(block));
  EXPECT_GE(pagetide_arena_usable_size(arena.get(), block), 1000U);
  EXPECT_EQ(live_blocks(arena), 1U);
  pagetide_arena_deallocate(arena.get(), block);
  EXPECT_EQ(live_blocks(arena), 0U);
}

TEST(ArenaCMemory, is_aligned_as_asked) {
  const ArenaHandle arena = create_arena();
  for (std::size_t alignment = 1; alignment <= 1_MiB; alignment *= 4) {
    void* block = pagetide_arena_allocate_aligned(arena.get(), alignment, 24);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % alignment, 0U);
  }
}

TEST(ArenaCMemory, of_no_alignment_is_an_error) {
  const ArenaHandle arena = create_arena();
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{48}, 2_GiB}) {
    EXPECT_EQ(pagetide_arena_allocate_aligned(arena.get(), alignment, 16), nullptr);
    EXPECT_EQ(pagetide_last_error(), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_THAT(last_message(), HasSubstr(std::to_string(alignment)));
  }
}

TEST(ArenaCMemory, of_no_bytes_is_a_block_of_its_own) {
  const ArenaHandle arena = create_arena();
  void* first = pagetide_arena_allocate(arena.get(), 0);
  void* second = pagetide_arena_allocate_zeroed(arena.get(), 0, 8);
  void* third = pagetide_arena_reallocate(arena.get(), nullptr, 0);
  EXPECT_NE(first, nullptr);
  EXPECT_NE(second, nullptr);
  EXPECT_NE(third, nullptr);
  EXPECT_EQ(live_blocks(arena), 3U);
}

TEST(ArenaCMemory, that_is_exhausted_is_null_and_the_error_of_the_cpp_api) {
  const ArenaHandle arena = create_arena();
  const auto expected = cpp(arena).allocate(65_MiB);
  ASSERT_FALSE(expected);
  EXPECT_EQ(pagetide_arena_allocate(arena.get(), 65_MiB), nullptr);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_OUT_OF_MEMORY);
  EXPECT_EQ(last_message(), expected.error().message());
  EXPECT_EQ(pagetide_arena_allocate(arena.get(), SIZE_MAX), nullptr);
  EXPECT_EQ(pagetide_arena_allocate_zeroed(arena.get(), 65, 1_MiB), nullptr);
  EXPECT_NE(pagetide_arena_allocate(arena.get(), 1_MiB), nullptr);
}

TEST(ArenaCMemory, that_is_zeroed_is_zero_also_where_it_was_used) {
  pagetide_arena_options options = small_arena();
  options.clear = PAGETIDE_CLEAR_NEVER;
  const ArenaHandle arena = create_arena(options);
  for (const std::size_t size : {100U, 5000U, 1'000'000U}) {
    void* used = pagetide_arena_allocate(arena.get(), 3 * size);
    std::memset(used, 0xab, 3 * size);
    pagetide_arena_deallocate(arena.get(), used);
    void* block = pagetide_arena_allocate_zeroed(arena.get(), 3, size);
    ASSERT_NE(block, nullptr);
    EXPECT_GE(pagetide_arena_usable_size(arena.get(), block), 3 * size);
    EXPECT_TRUE(is_all_zero(bytes_of(block), 3 * size));
  }
}

TEST(ArenaCMemory, for_more_elements_than_a_size_can_count_is_an_error) {
  const ArenaHandle arena = create_arena();
  // The product wraps around to 16.
  EXPECT_EQ(pagetide_arena_allocate_zeroed(arena.get(), SIZE_MAX / 16 + 2, 16), nullptr);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_OUT_OF_MEMORY);
  EXPECT_THAT(last_message(), HasSubstr("of 16 bytes are more than memory can hold."));
  EXPECT_EQ(live_blocks(arena), 0U);
}

TEST(ArenaCMemory, is_owned_by_one_arena) {
  const ArenaHandle first = create_arena();
  const ArenaHandle second = create_arena();
  const auto* block = bytes_of(pagetide_arena_allocate(first.get(), 100));
  EXPECT_EQ(pagetide_arena_owns(first.get(), block + 7), 1);
  EXPECT_EQ(pagetide_arena_owns(second.get(), block + 7), 0);
  EXPECT_EQ(pagetide_arena_owns(first.get(), &first), 0);
  EXPECT_EQ(pagetide_arena_usable_size(second.get(), block), 0U);
}

TEST(ArenaCMemory, keeps_errno) {
  const ArenaHandle arena = create_arena();
  errno = ESRCH;
  std::vector<void*> blocks;
  for (const std::size_t size : {10U, 10'000U, 10'000'000U}) {
    blocks.push_back(pagetide_arena_allocate(arena.get(), size));
    blocks.push_back(pagetide_arena_allocate_zeroed(arena.get(), 1, size));
    blocks.back() = pagetide_arena_reallocate(arena.get(), blocks.back(), 2 * size);
  }
  (void)pagetide_arena_allocate(arena.get(), SIZE_MAX);
  for (void* block : blocks) pagetide_arena_deallocate(arena.get(), block);
  pagetide_arena_deallocate(arena.get(), nullptr);
  EXPECT_EQ(errno, ESRCH);
}

// A system call of the heap's own fails: what is locked cannot be given back to the system.
TEST(ArenaCMemory, keeps_errno_where_a_call_inside_fails) {
  const ArenaHandle arena = create_arena();
  void* block = pagetide_arena_allocate(arena.get(), 40_MiB);
  const ByteRange first_pages{reinterpret_cast<std::uintptr_t>(block), 4 * page_size()};
  if (!lock_memory(first_pages)) GTEST_FAIL() << "cannot lock four pages";
  errno = ESRCH;
  pagetide_arena_deallocate(arena.get(), block);
  EXPECT_EQ(errno, ESRCH);
}

TEST(ArenaCDeathTest, a_double_free_aborts) {
  const ArenaHandle arena = create_arena();
  void* block = pagetide_arena_allocate(arena.get(), 100);
  pagetide_arena_deallocate(arena.get(), block);
  std::ostringstream expected;
  expected << "pagetide: heap corruption: double free of " << block << "\n";
  EXPECT_EXIT(pagetide_arena_deallocate(arena.get(), block), KilledBySignal(SIGABRT),
              Eq(expected.str()));
}

TEST(ArenaCDeathTest, freeing_the_block_of_another_arena_aborts) {
  const ArenaHandle arena = create_arena();
  const ArenaHandle other = create_arena();
  void* block = pagetide_arena_allocate(other.get(), 100);
  EXPECT_EXIT(pagetide_arena_deallocate(arena.get(), block), KilledBySignal(SIGABRT),
              HasSubstr("outside the arena's data"));
  EXPECT_EXIT((void)pagetide_arena_reallocate(arena.get(), block, 200), KilledBySignal(SIGABRT),
              HasSubstr("outside the arena's data"));
}

TEST(ArenaCMemory, reports_a_double_free_where_the_options_say_so) {
  struct Report {
    std::string message;
    const void* block = nullptr;
  } report;
  pagetide_arena_options options = small_arena();
  options.on_corruption = [](const char* message, const void* block, void* context) {
    *static_cast<Report*>(context) = {message, block};
  };
  options.corruption_context = &report;
  const ArenaHandle arena = create_arena(options);
  void* block = pagetide_arena_allocate(arena.get(), 100);
  pagetide_arena_deallocate(arena.get(), block);
  pagetide_arena_deallocate(arena.get(), block);
  EXPECT_EQ(report.block, block);
  EXPECT_THAT(report.message, StartsWith("heap corruption: double free of 0x"));
}

TEST(ArenaCMemory, comes_and_goes_in_batches) {
  const ArenaHandle arena = create_arena();
  std::array<void*, 100> blocks{};
  EXPECT_EQ(pagetide_arena_allocate_batch(arena.get(), 1000, blocks.data(), blocks.size()), 100U);
  for (void* block : blocks) EXPECT_EQ(pagetide_arena_usable_size(arena.get(), block), 1024U);
  pagetide_arena_deallocate_batch(arena.get(), blocks.data(), blocks.size());
  EXPECT_EQ(cpp(arena).heap().stats().live_blocks, 0U);
}

TEST(ArenaCMemory, a_batch_is_short_where_the_reservation_ends) {
  const ArenaHandle arena = create_arena();
  std::array<void*, 10> blocks{};
  const std::size_t made =
      pagetide_arena_allocate_batch(arena.get(), 20_MiB, blocks.data(), blocks.size());
  EXPECT_GT(made, 0U);
  EXPECT_LT(made, 10U);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_OUT_OF_MEMORY);
  EXPECT_EQ(cpp(arena).heap().stats().live_blocks, made);
}

// --- Reallocation ---

TEST(ArenaCReallocate, stays_where_it_is_while_it_fits_and_half_of_it_is_used) {
  const ArenaHandle arena = create_arena();
  void* block = pagetide_arena_allocate(arena.get(), 1000);
  const std::size_t usable = pagetide_arena_usable_size(arena.get(), block);
  EXPECT_EQ(pagetide_arena_reallocate(arena.get(), block, usable), block);
  EXPECT_EQ(pagetide_arena_reallocate(arena.get(), block, usable / 2), block);
  void* smaller = pagetide_arena_reallocate(arena.get(), block, usable / 2 - 1);
  EXPECT_NE(smaller, block);
  EXPECT_LT(pagetide_arena_usable_size(arena.get(), smaller), usable);
  EXPECT_EQ(live_blocks(arena), 1U);
}

TEST(ArenaCReallocate, grows_large_blocks_where_they_are) {
  const ArenaHandle arena = create_arena();
  void* block = pagetide_arena_allocate(arena.get(), 1_MiB);
  EXPECT_EQ(pagetide_arena_reallocate(arena.get(), block, 3_MiB), block);
  EXPECT_GE(pagetide_arena_usable_size(arena.get(), block), 3_MiB);
}

TEST(ArenaCReallocate, is_aligned_as_asked) {
  const ArenaHandle arena = create_arena();
  (void)pagetide_arena_allocate(arena.get(), 48);  // so that the next one is not aligned by chance
  auto* block = bytes_of(pagetide_arena_allocate(arena.get(), 48));
  std::memset(block, 7, 48);
  auto* moved = bytes_of(pagetide_arena_reallocate_aligned(arena.get(), block, 4096, 48));
  ASSERT_NE(moved, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(moved) % 4096, 0U);
  EXPECT_TRUE(std::all_of(moved, moved + 48, [](std::byte b) { return b == std::byte{7}; }));
  EXPECT_EQ(live_blocks(arena), 2U);
}

TEST(ArenaCReallocate, to_no_alignment_is_an_error_and_leaves_the_block_alone) {
  const ArenaHandle arena = create_arena();
  void* block = pagetide_arena_allocate(arena.get(), 48);
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{48}, 2_GiB}) {
    EXPECT_EQ(pagetide_arena_reallocate_aligned(arena.get(), block, alignment, 100), nullptr);
    EXPECT_EQ(pagetide_last_error(), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_THAT(last_message(), HasSubstr(std::to_string(alignment)));
  }
  EXPECT_EQ(live_blocks(arena), 1U);
}

TEST(ArenaCReallocate, that_finds_no_memory_leaves_the_block_alone) {
  const ArenaHandle arena = create_arena();
  auto* block = bytes_of(pagetide_arena_allocate(arena.get(), 1000));
  std::memset(block, 7, 1000);
  EXPECT_EQ(pagetide_arena_reallocate(arena.get(), block, 65_MiB), nullptr);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_OUT_OF_MEMORY);
  EXPECT_EQ(live_blocks(arena), 1U);
  EXPECT_TRUE(std::all_of(block, block + 1000, [](std::byte b) { return b == std::byte{7}; }));
}

TEST(ArenaCReallocate, keeps_the_content_whatever_sizes_follow_each_other) {
  RandomSource random;
  const ArenaHandle arena = create_arena();
  std::vector<std::byte> model;
  void* block = nullptr;
  for (std::size_t i = 0; i < scaled(2000); ++i) {
    const std::size_t size = random.below(std::size_t{1} << random.between(1, 18));
    block = pagetide_arena_reallocate(arena.get(), block, size);
    ASSERT_NE(block, nullptr);
    ASSERT_GE(pagetide_arena_usable_size(arena.get(), block), size);
    const std::size_t kept = std::min(size, model.size());
    ASSERT_TRUE(std::equal(bytes_of(block), bytes_of(block) + kept, model.begin()));
    ASSERT_EQ(live_blocks(arena), 1U);
    model.resize(size);
    for (std::byte& byte : model) byte = static_cast<std::byte>(random.next());
    std::copy(model.begin(), model.end(), bytes_of(block));
  }
}

// --- Roots ---

struct Node {
  int value;
  Node* next;
};

TEST(ArenaCRoots, are_found_by_name_type_and_size) {
  const ArenaHandle arena = create_arena();
  void* node = pagetide_arena_allocate(arena.get(), sizeof(Node));
  must_c(pagetide_arena_set_root(arena.get(), "first", "struct node", node, sizeof(Node)));
  EXPECT_EQ(pagetide_arena_find_root(arena.get(), "first", "struct node", sizeof(Node)), node);
  const Root root = must(cpp(arena).roots().find("first"));
  EXPECT_EQ(root.address, node);
  EXPECT_EQ(root.size_bytes, sizeof(Node));
  EXPECT_EQ(root.type_hash, type_name_hash("struct node"));
}

TEST(ArenaCRoots, of_another_type_or_size_are_not_taken_for_it) {
  const ArenaHandle arena = create_arena();
  void* node = pagetide_arena_allocate(arena.get(), 16);
  must_c(pagetide_arena_set_root(arena.get(), "first", "struct node", node, 16));
  EXPECT_EQ(pagetide_arena_find_root(arena.get(), "first", "struct edge", 16), nullptr);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_IDENTITY_MISMATCH);
  EXPECT_EQ(pagetide_arena_find_root(arena.get(), "first", "struct node", 24), nullptr);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_IDENTITY_MISMATCH);
  EXPECT_EQ(last_message(),
            "the root 'first' has 16 bytes and was not set as 'struct node' with 24; use the type "
            "that set it.");
}

TEST(ArenaCRoots, that_are_missing_are_not_found) {
  const ArenaHandle arena = create_arena();
  EXPECT_EQ(pagetide_arena_find_root(arena.get(), "none", "t", 1), nullptr);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_NOT_FOUND);
  EXPECT_EQ(pagetide_arena_erase_root(arena.get(), "none"), PAGETIDE_NOT_FOUND);
}

TEST(ArenaCRoots, take_the_place_of_one_with_the_same_name) {
  const ArenaHandle arena = create_arena();
  void* first = pagetide_arena_allocate(arena.get(), 16);
  void* second = pagetide_arena_allocate(arena.get(), 32);
  must_c(pagetide_arena_set_root(arena.get(), "root", "a", first, 16));
  must_c(pagetide_arena_set_root(arena.get(), "root", "b", second, 32));
  EXPECT_EQ(pagetide_arena_find_root(arena.get(), "root", "b", 32), second);
  EXPECT_EQ(cpp(arena).roots().list().size(), 1U);
  EXPECT_EQ(live_blocks(arena), 2U);
}

TEST(ArenaCRoots, that_are_erased_leave_their_object) {
  const ArenaHandle arena = create_arena();
  void* block = pagetide_arena_allocate(arena.get(), 16);
  must_c(pagetide_arena_set_root(arena.get(), "root", "a", block, 16));
  must_c(pagetide_arena_erase_root(arena.get(), "root"));
  EXPECT_EQ(pagetide_arena_find_root(arena.get(), "root", "a", 16), nullptr);
  EXPECT_EQ(live_blocks(arena), 1U);
}

TEST(ArenaCRoots, lie_in_the_arena) {
  const ArenaHandle arena = create_arena();
  pagetide_range range{};
  must_c(pagetide_arena_range(arena.get(), &range));
  auto* block = bytes_of(pagetide_arena_allocate(arena.get(), 16));
  int outside = 0;
  const std::vector<std::pair<void*, std::size_t>> wrong = {
      {&outside, sizeof outside},
      {const_cast<void*>(range.address), 8},  // the superblock
      {block, range.size},
      {block, SIZE_MAX}};
  for (const auto& [address, size] : wrong) {
    EXPECT_EQ(pagetide_arena_set_root(arena.get(), "root", "t", address, size),
              PAGETIDE_INVALID_ARGUMENT);
    EXPECT_THAT(last_message(), HasSubstr("do not lie in the arena"));
  }
  EXPECT_TRUE(cpp(arena).roots().list().empty());
}

TEST(ArenaCRoots, that_lie_outside_the_arena_are_damage) {
  const ArenaHandle arena = create_arena();
  int outside = 0;
  must(cpp(arena).roots().insert({"root", &outside, type_name_hash("t"), 4}));
  EXPECT_EQ(pagetide_arena_find_root(arena.get(), "root", "t", 4), nullptr);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_DAMAGED);
}

TEST(ArenaCRoots, have_names_of_1_to_39_bytes) {
  const ArenaHandle arena = create_arena();
  void* block = pagetide_arena_allocate(arena.get(), 16);
  const auto set = [&](const std::string& name) {
    return pagetide_arena_set_root(arena.get(), name.c_str(), "t", block, 16);
  };
  EXPECT_EQ(set(""), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(set(std::string(40, 'n')), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(set(std::string(39, 'n')), PAGETIDE_OK);
}

TEST(ArenaCRoots, are_at_most_256) {
  const ArenaHandle arena = create_arena();
  void* block = pagetide_arena_allocate(arena.get(), 16);
  const auto set = [&](int number) {
    return pagetide_arena_set_root(arena.get(), std::to_string(number).c_str(), "t", block, 16);
  };
  for (int i = 0; i < 256; ++i) must_c(set(i));
  EXPECT_EQ(set(256), PAGETIDE_OUT_OF_MEMORY);
  EXPECT_EQ(set(7), PAGETIDE_OK) << "one that is there needs no room";
}

TEST(ArenaCRoots, of_cpp_are_of_types_of_its_own) {
  const ArenaHandle arena = create_arena();
  must(cpp(arena).find_or_construct<int>("number", 7));
  EXPECT_EQ(pagetide_arena_find_root(arena.get(), "number", "int", sizeof(int)), nullptr);
  EXPECT_EQ(pagetide_last_error(), PAGETIDE_IDENTITY_MISMATCH);
}

// --- The heap as a whole ---

using Blocks = std::map<void*, std::size_t>;

TEST(ArenaCHeap, visits_the_blocks_that_the_cpp_api_visits) {
  RandomSource random;
  const ArenaHandle arena = create_arena();
  std::vector<void*> allocated;
  for (int i = 0; i < 200; ++i) {
    allocated.push_back(pagetide_arena_allocate(arena.get(), random.below(100'000)));
    if (random.one_in(3)) {
      pagetide_arena_deallocate(arena.get(), allocated.back());
      allocated.pop_back();
    }
  }
  Blocks seen;
  const auto visit = [](void* block, size_t usable_size, void* context) {
    static_cast<Blocks*>(context)->emplace(block, usable_size);
  };
  must_c(pagetide_arena_for_each_allocation(arena.get(), visit, &seen));
  Blocks expected;
  for (void* block : allocated) expected.emplace(block, cpp(arena).heap().usable_size(block));
  EXPECT_EQ(seen, expected);
}

TEST(ArenaCHeap, has_the_statistics_of_the_cpp_api) {
  const ArenaHandle arena = create_arena();
  for (const std::size_t size : {10U, 1000U, 100'000U}) {
    void* block = std::memset(pagetide_arena_allocate(arena.get(), size), 1, size);
    (void)pagetide_arena_allocate(arena.get(), size);
    pagetide_arena_deallocate(arena.get(), block);
  }
  pagetide_arena_stats stats;
  stats.size = sizeof stats;
  must_c(pagetide_arena_get_stats(arena.get(), &stats));
  const HeapStats expected = cpp(arena).heap().stats();
  EXPECT_EQ(stats.size, sizeof stats);
  EXPECT_EQ(stats.live_blocks, 3U);
  EXPECT_EQ(stats.live_bytes, expected.live_bytes);
  EXPECT_EQ(stats.spans_in_use, expected.spans_in_use);
  EXPECT_EQ(stats.heap_bytes, expected.heap_bytes);
  EXPECT_EQ(stats.idle_bytes, expected.idle_bytes);
  EXPECT_EQ(stats.reserve_bytes, expected.reserve_bytes);
  EXPECT_GT(stats.idle_bytes, 0U);
}

TEST(ArenaCHeap, has_the_statistics_of_each_size) {
  const ArenaHandle arena = create_arena();
  for (int i = 0; i < 5; ++i) (void)pagetide_arena_allocate(arena.get(), 100);
  std::array<pagetide_class_stats, 8> classes;
  EXPECT_EQ(pagetide_arena_get_class_stats(arena.get(), nullptr, 0), 40);
  EXPECT_EQ(pagetide_arena_get_class_stats(arena.get(), classes.data(), 7), 40);
  EXPECT_EQ(classes[0].slot_bytes, 16U);
  EXPECT_EQ(classes[6].slot_bytes, 112U);
  EXPECT_EQ(classes[6].slots, 585U);
  EXPECT_EQ(classes[6].live, 5U);
  EXPECT_EQ(classes[6].spans, 1U);
}

TEST(ArenaCHeap, gives_idle_memory_back_when_it_is_trimmed) {
  const ArenaHandle arena = create_arena();
  void* block = std::memset(pagetide_arena_allocate(arena.get(), 5_MiB), 1, 5_MiB);
  pagetide_arena_deallocate(arena.get(), block);
  const std::size_t idle = cpp(arena).heap().stats().idle_bytes;
  EXPECT_GE(idle, 5_MiB);
  EXPECT_EQ(pagetide_arena_trim(arena.get()), idle);
  EXPECT_EQ(cpp(arena).heap().stats().idle_bytes, 0U);
  EXPECT_EQ(pagetide_arena_trim(arena.get()), 0U);
}

TEST(ArenaCHeap, fills_the_statistics_that_the_program_knows) {
  const ArenaHandle arena = create_arena();
  (void)pagetide_arena_allocate(arena.get(), 1000);
  pagetide_arena_stats older;
  std::memset(&older, 0x5a, sizeof older);
  older.size = offsetof(pagetide_arena_stats, spans_in_use);
  must_c(pagetide_arena_get_stats(arena.get(), &older));
  EXPECT_EQ(older.live_blocks, 1U);
  EXPECT_EQ(older.spans_in_use, 0x5a5a5a5a5a5a5a5aU);
  NewerOptions<pagetide_arena_stats> newer;
  std::memset(&newer, 0x5a, sizeof newer);
  newer.known.size = sizeof newer;
  must_c(pagetide_arena_get_stats(arena.get(), &newer.known));
  EXPECT_EQ(newer.known.size, sizeof(pagetide_arena_stats));
  EXPECT_THAT(newer.added, ElementsAre(0, 0));
  pagetide_arena_stats unset{};
  EXPECT_EQ(pagetide_arena_get_stats(arena.get(), &unset), PAGETIDE_INVALID_ARGUMENT);
}

TEST(ArenaCHeap, clears_free_memory) {
  pagetide_arena_options options;
  must_c(pagetide_arena_options_init(&options, sizeof options));
  options.reserve_bytes = 64_MiB;
  options.clear = PAGETIDE_CLEAR_ON_FREE;
  const ArenaHandle arena = create_arena(options);
  cpp(arena).heap().inherit_free_bytes_are_zero(false);  // as after a past under `never`
  must_c(pagetide_arena_clear_free_memory(arena.get()));
  EXPECT_TRUE(cpp(arena).heap().free_bytes_are_zero());
}

TEST(ArenaCHeap, clears_no_free_memory_under_never) {
  pagetide_arena_options options = small_arena();
  options.clear = PAGETIDE_CLEAR_NEVER;
  EXPECT_EQ(pagetide_arena_clear_free_memory(create_arena(options).get()),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), HasSubstr("ClearPolicy::never"));
}

// --- fork and threads ---

TEST(ArenaCFork, a_child_can_use_and_end_its_copy) {
  ArenaHandle arena = create_arena();
  auto* block = static_cast<int*>(pagetide_arena_allocate(arena.get(), 4000));
  *block = 1;
  EXPECT_EQ(run_in_child([&]() -> std::string {
              *block = 2;
              if (pagetide_arena_allocate(arena.get(), 1_MiB) == nullptr) return last_message();
              pagetide_arena_deallocate(arena.get(), block);
              arena.reset();
              return {};
            }),
            "");
  EXPECT_EQ(*block, 1);
  EXPECT_EQ(live_blocks(arena), 1U);
}

TEST(ArenaCThreads, may_all_use_one_arena) {
  const ArenaHandle arena = create_arena();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string name = "of " + std::to_string(t);
      for (std::size_t i = 0; i < scaled(500); ++i) {
        void* block = pagetide_arena_allocate(arena.get(), 100 + i);
        must_c(pagetide_arena_set_root(arena.get(), name.c_str(), "t", block, 100));
        block = pagetide_arena_reallocate(arena.get(), block, 1000 + i);
        must_c(pagetide_arena_set_root(arena.get(), name.c_str(), "t", block, 100));
        if (pagetide_arena_find_root(arena.get(), name.c_str(), "t", 100) != block) std::abort();
        pagetide_arena_deallocate(arena.get(), block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(live_blocks(arena), 0U);
  EXPECT_EQ(cpp(arena).roots().list().size(), 4U);
}

}  // namespace
}  // namespace pagetide
