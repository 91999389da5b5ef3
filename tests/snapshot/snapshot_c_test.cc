// The C API of stores and snapshots, called from C++. The oracle is the C++ API over the same arena
// and store.

#include "pagetide/snapshot/snapshot_c.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory_resource>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/base/hash.h"
#include "pagetide/snapshot/snapshotter.h"
#include "tests/snapshot/snapshot_c_support.h"
#include "tests/support/child_process.h"
#include "tests/support/random_mutator.h"

namespace pagetide {
namespace {

using namespace literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- Null pointers ---

struct NullCall {
  const char* missing;
  std::function<int()> call;
};

TEST_F(SnapshotCTest, null_pointers_are_errors_that_name_the_argument) {
  pagetide_store* s = store_.get();
  pagetide_arena* a = arena_.get();
  pagetide_store* store = nullptr;
  pagetide_arena* arena = nullptr;
  pagetide_snapshotter* snapshotter = nullptr;
  pagetide_snapshot_id id = 0;
  const auto visit = [](const pagetide_snapshot_info*, void*) {};
  const std::vector<NullCall> calls = {
      {"path", [&] { return pagetide_store_open(nullptr, 0, &store); }},
      {"store", [&] { return pagetide_store_open(path_.c_str(), 0, nullptr); }},
      {"store", [&] { return pagetide_store_latest(nullptr, &id); }},
      {"id", [&] { return pagetide_store_latest(s, nullptr); }},
      {"store", [&] { return pagetide_store_snapshots(nullptr, visit, nullptr); }},
      {"visit", [&] { return pagetide_store_snapshots(s, nullptr, nullptr); }},
      {"store", [&] { return pagetide_store_open_arena(nullptr, 1, nullptr, &arena); }},
      {"arena", [&] { return pagetide_store_open_arena(s, 1, nullptr, nullptr); }},
      {"options", [&] { return pagetide_snapshotter_options_init(nullptr, 40); }},
      {"arena", [&] { return pagetide_snapshotter_create(nullptr, s, nullptr, &snapshotter); }},
      {"store", [&] { return pagetide_snapshotter_create(a, nullptr, nullptr, &snapshotter); }},
      {"snapshotter", [&] { return pagetide_snapshotter_create(a, s, nullptr, nullptr); }},
      {"snapshotter", [&] { return pagetide_snapshotter_take(nullptr, &id); }},
      {"snapshotter", [&] { return pagetide_snapshotter_rollback(nullptr, 1, nullptr); }}};
  for (const NullCall& null_call : calls) {
    EXPECT_EQ(null_call.call(), PAGETIDE_INVALID_ARGUMENT) << null_call.missing;
    EXPECT_EQ(last_message(), std::string(null_call.missing) + " must not be a null pointer.");
  }
}

TEST(SnapshotC, null_handles_can_be_destroyed) {
  pagetide_store_close(nullptr);
  pagetide_snapshotter_destroy(nullptr);
}

// --- Stores ---

TEST(StoreC, modes_are_those_of_the_cpp_api) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("store");
  pagetide_store* store = nullptr;
  EXPECT_EQ(pagetide_store_open(path.c_str(), PAGETIDE_STORE_READ, &store), PAGETIDE_NOT_FOUND);
  EXPECT_EQ(pagetide_store_open(path.c_str(), PAGETIDE_STORE_WRITE, &store), PAGETIDE_NOT_FOUND);
  EXPECT_EQ(store, nullptr);
  const StoreHandle writer = open_store(path);
  EXPECT_EQ(pagetide_store_open(path.c_str(), PAGETIDE_STORE_WRITE, &store), PAGETIDE_BUSY);
  const StoreHandle reader = open_store(path, PAGETIDE_STORE_READ);
  const ArenaHandle arena = create_arena();
  EXPECT_EQ(pagetide_snapshotter_take(create_snapshotter(arena, reader).get(), nullptr),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_snapshotter_take(create_snapshotter(arena, writer).get(), nullptr),
            PAGETIDE_OK);
}

TEST(StoreC, a_number_that_is_no_mode_is_refused) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("store");
  for (const int mode : {-1, 3}) {
    pagetide_store* store = nullptr;
    EXPECT_EQ(pagetide_store_open(path.c_str(), mode, &store), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(last_message(), std::to_string(mode) + " is not a pagetide_store_mode.");
    EXPECT_EQ(store, nullptr);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(StoreC, what_is_no_store_is_refused) {
  const TemporaryDirectory directory;
  std::ofstream(directory.file("text")) << "mine";
  pagetide_store* store = nullptr;
  EXPECT_EQ(pagetide_store_open(directory.file("text").c_str(), 0, &store), PAGETIDE_NOT_A_STORE);
}

TEST_F(SnapshotCTest, the_latest_snapshot_is_the_last_that_was_taken) {
  pagetide_snapshot_id id = 77;
  EXPECT_EQ(pagetide_store_latest(store_.get(), &id), PAGETIDE_NOT_FOUND);
  EXPECT_EQ(id, 77U) << "a call that fails stores nothing";
  const StoreHandle reader = open_store(path_, PAGETIDE_STORE_READ);
  EXPECT_EQ(take(snapshotter_), 1U);
  EXPECT_EQ(take(snapshotter_), 2U);
  for (pagetide_store* store : {store_.get(), reader.get()}) {
    must_c(pagetide_store_latest(store, &id));
    EXPECT_EQ(id, 2U);
  }
}

// What is visited of a snapshot, with the text that it points to.
struct Seen {
  pagetide_snapshot_info info;
  std::string arena;
};
void remember(const pagetide_snapshot_info* info, void* context) {
  static_cast<std::vector<Seen>*>(context)->push_back({*info, info->arena});
}

void expect_same(const Seen& seen, const SnapshotInfo& expected) {
  EXPECT_EQ(seen.info.size, sizeof(pagetide_snapshot_info));
  EXPECT_EQ(seen.info.id, expected.id.value);
  EXPECT_EQ(seen.info.parent, expected.parent.value);
  EXPECT_EQ(seen.info.created_ns, expected.created_ns);
  EXPECT_EQ(seen.arena, expected.arena);
  EXPECT_EQ(seen.info.page_bytes, expected.page_bytes);
  EXPECT_EQ(seen.info.region_base, expected.region_base);
  EXPECT_EQ(seen.info.reserve_bytes, expected.reserve_bytes);
  EXPECT_EQ(seen.info.image_pages, expected.image_pages);
  EXPECT_EQ(seen.info.reported_pages, expected.reported_pages);
  EXPECT_EQ(seen.info.changed_pages, expected.changed_pages);
  EXPECT_EQ(seen.info.zero_pages, expected.zero_pages);
  EXPECT_EQ(seen.info.bytes_written, expected.bytes_written);
  EXPECT_EQ(seen.info.stop_ns, expected.stop_ns);
  EXPECT_EQ(seen.info.heap_bytes, expected.heap_bytes);
  EXPECT_EQ(seen.info.holds_code_addresses, expected.holds_code_addresses ? 1 : 0);
  EXPECT_EQ(seen.info.free_bytes_are_zero, expected.free_bytes_are_zero ? 1 : 0);
}

TEST_F(SnapshotCTest, snapshots_are_those_of_the_cpp_api) {
  std::vector<Seen> seen;
  must_c(pagetide_store_snapshots(store_.get(), remember, &seen));
  EXPECT_THAT(seen, IsEmpty());
  filled_pages(arena_, 4, 1);
  take(snapshotter_);
  std::byte* block = filled_pages(arena_, 4, 2);
  cpp(arena_).set_holds_code_addresses();
  take(snapshotter_);
  std::memset(block, 0, 4 * page_size());
  take(snapshotter_);
  must_c(pagetide_store_snapshots(store_.get(), remember, &seen));
  const SnapshotList expected = store_->store.snapshots();
  ASSERT_EQ(seen.size(), 3U);
  ASSERT_EQ(expected.snapshots.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) expect_same(seen[i], expected.snapshots[i]);
}

TEST_F(SnapshotCTest, snapshots_that_cannot_be_read_are_an_error_after_all_others) {
  for (int i = 0; i < 3; ++i) take(snapshotter_);
  std::filesystem::resize_file(path_ + "/000000000002.manifest", 100);
  std::vector<Seen> seen;
  EXPECT_EQ(pagetide_store_snapshots(store_.get(), remember, &seen), PAGETIDE_DAMAGED);
  EXPECT_THAT(last_message(), HasSubstr("cannot read snapshot 2"));
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[0].info.id, 1U);
  EXPECT_EQ(seen[1].info.id, 3U);
}

// --- Taking ---

TEST_F(SnapshotCTest, a_snapshot_holds_the_memory_of_its_instant) {
  RandomMutator mutator(cpp(arena_), 1);
  for (int i = 0; i < 3; ++i) {
    mutator.steps(100);
    EXPECT_EQ(difference_to(arena_, store_, take(snapshotter_)), "");
  }
}

TEST_F(SnapshotCTest, an_id_that_nobody_wants_is_not_stored) {
  must_c(pagetide_snapshotter_take(snapshotter_.get(), nullptr));
  EXPECT_EQ(take(snapshotter_), 2U);
}

TEST_F(SnapshotCTest, a_second_snapshotter_of_an_arena_is_refused) {
  SnapshotterHandle second = create_snapshotter(arena_, store_);
  EXPECT_EQ(pagetide_snapshotter_take(second.get(), nullptr), PAGETIDE_BUSY);
  EXPECT_EQ(pagetide_snapshotter_rollback(second.get(), 1, nullptr), PAGETIDE_BUSY);
  snapshotter_.reset();
  second = create_snapshotter(arena_, store_);
  EXPECT_EQ(pagetide_snapshotter_take(second.get(), nullptr), PAGETIDE_OK);
}

TEST_F(SnapshotCTest, a_child_cannot_take_snapshots_and_can_end_everything) {
  take(snapshotter_);
  std::byte* block = filled_pages(arena_, 4, 1);
  EXPECT_EQ(run_in_child([&]() -> std::string {
              const int taken = pagetide_snapshotter_take(snapshotter_.get(), nullptr);
              if (taken != PAGETIDE_FORKED) return pagetide_error_name(taken);
              snapshotter_.reset();
              arena_.reset();
              store_.reset();
              return {};
            }),
            "");
  block[0] = std::byte{2};
  EXPECT_EQ(difference_to(arena_, store_, take(snapshotter_)), "");
}

TEST_F(SnapshotCTest, ending_keeps_errno) {
  errno = ESRCH;
  snapshotter_.reset();
  arena_.reset();
  store_.reset();
  EXPECT_EQ(errno, ESRCH);
}

// --- Options ---

TEST(SnapshotterCOptions, have_the_defaults_of_the_cpp_api) {
  const pagetide_snapshotter_options options = default_snapshotter_options();
  EXPECT_EQ(options.size, sizeof options);
  EXPECT_EQ(options.pause, nullptr);
  EXPECT_EQ(options.resume, nullptr);
  EXPECT_EQ(options.context, nullptr);
  EXPECT_EQ(options.staging_bytes, SnapshotterOptions().staging_bytes);
  EXPECT_EQ(options.safepoints, nullptr);
  EXPECT_EQ(options.safepoint_limit_ms, 1000U);
}

TEST(SnapshotterCStructs, have_the_sizes_that_programs_were_compiled_with) {
  EXPECT_EQ(sizeof(pagetide_snapshotter_options), 56U);
  EXPECT_EQ(sizeof(pagetide_rollback_stats), 32U);
  EXPECT_EQ(sizeof(pagetide_snapshot_info), 128U);
  EXPECT_THAT(
      (std::vector<int>{PAGETIDE_STORE_CREATE_OR_WRITE, PAGETIDE_STORE_WRITE, PAGETIDE_STORE_READ}),
      ElementsAre(0, 1, 2));
}

TEST_F(SnapshotCTest, options_of_a_newer_program_work_while_it_sets_nothing_unknown) {
  snapshotter_.reset();
  NewerOptions<pagetide_snapshotter_options> options;
  std::memset(&options, 0x5a, sizeof options);
  must_c(pagetide_snapshotter_options_init(&options.known, sizeof options));
  EXPECT_EQ(take(create_snapshotter(arena_, store_, options.known)), 1U);
  options.added[0] = 1;
  pagetide_snapshotter* snapshotter = nullptr;
  EXPECT_EQ(pagetide_snapshotter_create(arena_.get(), store_.get(), &options.known, &snapshotter),
            PAGETIDE_UNSUPPORTED);
  EXPECT_THAT(last_message(), HasSubstr("the snapshotter's options set something"));
  EXPECT_EQ(snapshotter, nullptr);
}

TEST_F(SnapshotCTest, options_of_an_older_program_are_read_to_their_end_and_no_further) {
  snapshotter_.reset();
  pagetide_snapshotter_options options;
  std::memset(&options, 0x5a, sizeof options);
  must_c(pagetide_snapshotter_options_init(&options, sizeof(std::size_t)));
  EXPECT_NE(options.pause, nullptr);
  EXPECT_EQ(take(create_snapshotter(arena_, store_, options)), 1U);
}

TEST_F(SnapshotCTest, options_with_a_size_that_was_never_set_are_refused) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1025}, SIZE_MAX}) {
    pagetide_snapshotter_options options = default_snapshotter_options();
    EXPECT_EQ(pagetide_snapshotter_options_init(&options, size), PAGETIDE_INVALID_ARGUMENT);
    options.size = size;
    pagetide_snapshotter* snapshotter = nullptr;
    EXPECT_EQ(pagetide_snapshotter_create(arena_.get(), store_.get(), &options, &snapshotter),
              PAGETIDE_INVALID_ARGUMENT);
    EXPECT_THAT(last_message(), HasSubstr("set it to sizeof(pagetide_snapshotter_options)."));
    EXPECT_EQ(snapshotter, nullptr);
  }
}

TEST_F(SnapshotCTest, one_callback_without_the_other_is_refused) {
  const auto nothing = [](void*) {};
  pagetide_snapshotter* snapshotter = nullptr;
  pagetide_snapshotter_options options = default_snapshotter_options();
  options.pause = nothing;
  EXPECT_EQ(pagetide_snapshotter_create(arena_.get(), store_.get(), &options, &snapshotter),
            PAGETIDE_INVALID_ARGUMENT);
  options.pause = nullptr;
  options.resume = nothing;
  EXPECT_EQ(pagetide_snapshotter_create(arena_.get(), store_.get(), &options, &snapshotter),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), HasSubstr("belong together"));
  EXPECT_EQ(snapshotter, nullptr);
}

// Writes down what it is called for. `at_resume` is called in resume().
struct Writers {
  std::string calls;
  std::function<void()> at_resume = [] {};

  pagetide_snapshotter_options options() {
    pagetide_snapshotter_options options = default_snapshotter_options();
    options.pause = [](void* self) { static_cast<Writers*>(self)->calls += "pause "; };
    options.resume = [](void* self) {
      static_cast<Writers*>(self)->calls += "resume ";
      static_cast<Writers*>(self)->at_resume();
    };
    options.context = this;
    return options;
  }
};

TEST_F(SnapshotCTest, writers_are_held_and_let_go_once) {
  snapshotter_.reset();
  Writers writers;
  const SnapshotterHandle snapshotter = create_snapshotter(arena_, store_, writers.options());
  EXPECT_EQ(writers.calls, "");
  take(snapshotter);
  EXPECT_EQ(writers.calls, "pause resume ");
  must_c(pagetide_snapshotter_rollback(snapshotter.get(), 1, nullptr));
  EXPECT_EQ(writers.calls, "pause resume pause resume ");
}

class SnapshotCSafepointsTest : public SnapshotCTest {
 protected:
  SnapshotCSafepointsTest() {
    must_c(pagetide_safepoints_create(&points_));
    snapshotter_.reset();
    options_.safepoints = points_;
    options_.safepoint_limit_ms = 10;
  }
  ~SnapshotCSafepointsTest() override {
    snapshotter_.reset();
    pagetide_safepoints_destroy(points_);
  }
  pagetide_safepoints* points_ = nullptr;
  pagetide_snapshotter_options options_ = default_snapshotter_options();
};

TEST_F(SnapshotCSafepointsTest, a_thread_that_is_late_is_named) {
  snapshotter_ = create_snapshotter(arena_, store_, options_);
  take(snapshotter_);
  std::atomic<int> step = 0;
  std::thread thread([&] {
    pagetide_mutator* mutator = nullptr;
    must_c(pagetide_mutator_create(points_, "tortoise", &mutator));
    step = 1;
    while (step != 2) std::this_thread::yield();
    pagetide_mutator_destroy(mutator);
  });
  while (step != 1) std::this_thread::yield();
  EXPECT_EQ(pagetide_snapshotter_take(snapshotter_.get(), nullptr), PAGETIDE_TIMED_OUT);
  EXPECT_THAT(last_message(), HasSubstr("within 10 ms: 'tortoise'"));
  EXPECT_EQ(pagetide_snapshotter_rollback(snapshotter_.get(), 1, nullptr), PAGETIDE_TIMED_OUT);
  step = 2;
  thread.join();
  EXPECT_EQ(take(snapshotter_), 2U);
}

TEST_F(SnapshotCSafepointsTest, callbacks_beside_them_are_refused) {
  options_.pause = options_.resume = [](void*) {};
  pagetide_snapshotter* snapshotter = nullptr;
  EXPECT_EQ(pagetide_snapshotter_create(arena_.get(), store_.get(), &options_, &snapshotter),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), HasSubstr("not by both"));
}

// What exceeds it is in the segment's file when writers are let go.
TEST_F(SnapshotCTest, the_bound_of_staging_memory_is_passed_on) {
  filled_pages(arena_, 64, 1);
  const auto pages_at_resume = [&](std::size_t staging_bytes) {
    snapshotter_.reset();
    std::uintmax_t bytes = 0;
    Writers writers;
    writers.at_resume = [&] {
      for (const auto& entry : std::filesystem::directory_iterator(path_)) {
        if (entry.path().extension() == ".segment") bytes = entry.file_size();
      }
    };
    pagetide_snapshotter_options options = writers.options();
    options.staging_bytes = staging_bytes;
    snapshotter_ = create_snapshotter(arena_, store_, options);
    const pagetide_snapshot_id id = take(snapshotter_);
    EXPECT_EQ(difference_to(arena_, store_, id), "");
    snapshotter_.reset();
    return bytes / page_size();
  };
  EXPECT_GE(pages_at_resume(8 * page_size()), 48U);
}

TEST_F(SnapshotCTest, nothing_is_written_while_staging_memory_suffices) {
  snapshotter_.reset();
  filled_pages(arena_, 64, 1);
  bool written = false;
  Writers writers;
  writers.at_resume = [&] { written = std::filesystem::exists(path_ + "/000000000001.segment"); };
  take(create_snapshotter(arena_, store_, writers.options()));
  EXPECT_FALSE(written);
  EXPECT_TRUE(std::filesystem::exists(path_ + "/000000000001.segment"));
}

// --- Rollback ---

TEST_F(SnapshotCTest, a_rollback_puts_the_memory_back) {
  RandomMutator mutator(cpp(arena_), 1);
  mutator.steps(100);
  const pagetide_snapshot_id first = take(snapshotter_);
  const ArenaImage then = image_of(cpp(arena_));
  std::byte* block = filled_pages(arena_, 40, 1);
  take(snapshotter_);
  block[0] = std::byte{2};
  must_c(pagetide_snapshotter_rollback(snapshotter_.get(), first, nullptr));
  EXPECT_EQ(difference(then, image_of(cpp(arena_))), "");
  EXPECT_TRUE(cpp(arena_).heap().check());
  EXPECT_EQ(must(store_->store.info(SnapshotId{take(snapshotter_)})).parent.value, first);
}

TEST_F(SnapshotCTest, a_rollback_tells_what_it_did) {
  std::byte* block = filled_pages(arena_, 8, 1);
  std::memset(block + 5 * page_size(), 0, page_size());
  const pagetide_snapshot_id id = take(snapshotter_);
  std::memset(block, 2, 3 * page_size());
  block[5 * page_size()] = std::byte{3};
  pagetide_rollback_stats stats;
  stats.size = sizeof stats;
  must_c(pagetide_snapshotter_rollback(snapshotter_.get(), id, &stats));
  EXPECT_EQ(stats.size, sizeof stats);
  EXPECT_EQ(stats.restored_pages, 4U);
  EXPECT_EQ(stats.zero_pages, 1U);
  EXPECT_GT(stats.stop_ns, 0U);
}

TEST_F(SnapshotCTest, a_rollback_whose_statistics_have_no_size_is_not_done) {
  std::byte* block = filled_pages(arena_, 1, 1);
  const pagetide_snapshot_id id = take(snapshotter_);
  block[0] = std::byte{2};
  pagetide_rollback_stats stats{};
  EXPECT_EQ(pagetide_snapshotter_rollback(snapshotter_.get(), id, &stats),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(block[0], std::byte{2});
}

TEST_F(SnapshotCTest, a_rollback_to_what_is_not_there_is_an_error) {
  take(snapshotter_);
  for (const pagetide_snapshot_id id : {pagetide_snapshot_id{0}, pagetide_snapshot_id{2}}) {
    EXPECT_EQ(pagetide_snapshotter_rollback(snapshotter_.get(), id, nullptr), PAGETIDE_NOT_FOUND);
  }
  EXPECT_THAT(last_message(), HasSubstr("has no snapshot 2"));
}

// --- Opening ---

TEST_F(SnapshotCTest, an_arena_that_is_opened_is_the_arena_that_it_was) {
  std::byte* block = filled_pages(arena_, 8, 7);
  must_c(pagetide_arena_set_root(arena_.get(), "block", "bytes", block, 8 * page_size()));
  RandomMutator(cpp(arena_), 1).steps(100);
  const ArenaImage then = image_of(cpp(arena_));
  const pagetide_snapshot_id id = take(snapshotter_);
  snapshotter_.reset();
  arena_.reset();
  arena_ = open_arena(store_, id);
  EXPECT_EQ(difference(then, image_of(cpp(arena_))), "");
  EXPECT_STREQ(pagetide_arena_name(arena_.get()), "c");
  EXPECT_EQ(pagetide_arena_find_root(arena_.get(), "block", "bytes", 8 * page_size()), block);
  pagetide_arena_deallocate(arena_.get(), block);
  snapshotter_ = create_snapshotter(arena_, store_);
  const pagetide_snapshot_id next = take(snapshotter_);
  EXPECT_EQ(must(store_->store.info(SnapshotId{next})).parent.value, id);
  EXPECT_EQ(difference_to(arena_, store_, next), "");
}

TEST_F(SnapshotCTest, an_arena_is_opened_as_the_options_say_and_where_it_was) {
  const ByteRange range = cpp(arena_).range();
  const pagetide_snapshot_id id = take(snapshotter_);
  snapshotter_.reset();
  arena_.reset();
  pagetide_arena_options options = small_arena("not looked at");
  options.reserve_bytes = 1;
  options.base = 3;
  options.clear = PAGETIDE_CLEAR_NEVER;
  options.prefill = PAGETIDE_PREFILL_NONE;
  options.backend = PAGETIDE_BACKEND_COMPARE;
  options.holds_code_addresses = 1;
  arena_ = open_arena(store_, id, options);
  EXPECT_EQ(cpp(arena_).name(), "c");
  EXPECT_EQ(cpp(arena_).range(), range);
  EXPECT_EQ(cpp(arena_).heap().clear_policy(), ClearPolicy::never);
  EXPECT_EQ(cpp(arena_).region().prefill_policy(), Prefill::none);
  EXPECT_EQ(cpp(arena_).tracker().backend(), BackendKind::compare);
  EXPECT_TRUE(cpp(arena_).heap().holds_code_addresses());
}

TEST_F(SnapshotCTest, an_arena_that_is_opened_adapts_as_the_options_say) {
  const pagetide_snapshot_id id = take(snapshotter_);
  snapshotter_.reset();
  for (const int adapt : {0, 1}) {
    arena_.reset();
    pagetide_arena_options options = small_arena();
    options.adapt_to_hot_pages = adapt;
    arena_ = open_arena(store_, id, options);
    EXPECT_EQ(adapts_to_hot_pages(arena_), adapt == 1);
  }
}

TEST_F(SnapshotCTest, an_arena_cannot_be_opened_where_it_is_already) {
  const pagetide_snapshot_id id = take(snapshotter_);
  pagetide_arena* arena = nullptr;
  EXPECT_EQ(pagetide_store_open_arena(store_.get(), id, nullptr, &arena), PAGETIDE_ADDRESS_TAKEN);
  EXPECT_EQ(pagetide_store_open_arena(store_.get(), 9, nullptr, &arena), PAGETIDE_NOT_FOUND);
  pagetide_arena_options options = small_arena();
  options.size = 0;
  EXPECT_EQ(pagetide_store_open_arena(store_.get(), id, &options, &arena),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(arena, nullptr);
}

// Makes a snapshot's manifest that of another build of the program.
void change_build(const std::string& manifest_path) {
  std::fstream manifest(manifest_path, std::ios::in | std::ios::out | std::ios::binary);
  char header[512];
  manifest.read(header, sizeof(header));
  header[96] = static_cast<char>(header[96] ^ 1);
  const std::uint64_t checksum = hash64(header, 504);
  std::memcpy(header + 504, &checksum, sizeof(checksum));
  manifest.seekp(0);
  manifest.write(header, sizeof(header));
}

TEST_F(SnapshotCTest, code_addresses_of_another_program_are_refused_unless_ignored) {
  snapshotter_.reset();
  pagetide_arena_options options = small_arena();
  options.holds_code_addresses = 1;
  arena_ = create_arena(options);
  take(create_snapshotter(arena_, store_));
  arena_.reset();
  change_build(path_ + "/000000000001.manifest");
  pagetide_arena* arena = nullptr;
  EXPECT_EQ(pagetide_store_open_arena(store_.get(), 1, nullptr, &arena),
            PAGETIDE_IDENTITY_MISMATCH);
  options = small_arena();
  options.ignore_program_identity = 1;
  arena_ = open_arena(store_, 1, options);
  EXPECT_TRUE(cpp(arena_).heap().holds_code_addresses());
}

TEST_F(SnapshotCTest, free_memory_of_a_past_under_never_is_cleared) {
  snapshotter_.reset();
  pagetide_arena_options options = small_arena();
  options.clear = PAGETIDE_CLEAR_NEVER;
  arena_ = create_arena(options);
  (void)pagetide_arena_allocate(arena_.get(), 64);  // keeps the span
  auto* secret = static_cast<char*>(pagetide_arena_allocate(arena_.get(), 64));
  std::strcpy(secret, "a secret");
  pagetide_arena_deallocate(arena_.get(), secret);
  take(create_snapshotter(arena_, store_));
  arena_.reset();
  options.clear = PAGETIDE_CLEAR_ON_FREE;
  arena_ = open_arena(store_, 1, options);
  ASSERT_STREQ(secret, "a secret");
  must_c(pagetide_arena_clear_free_memory(arena_.get()));
  EXPECT_STREQ(secret, "");
  take(create_snapshotter(arena_, store_));
  std::vector<Seen> seen;
  must_c(pagetide_store_snapshots(store_.get(), remember, &seen));
  EXPECT_EQ(seen[0].info.free_bytes_are_zero, 0);
  EXPECT_EQ(seen[1].info.free_bytes_are_zero, 1);
}

}  // namespace
}  // namespace pagetide
