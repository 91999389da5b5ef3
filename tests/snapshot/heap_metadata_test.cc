// The heap's metadata in snapshots: what is put back is what was there, and a record costs what has
// changed.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/allocator/heap_change_log.h"
#include "pagetide/base/hash.h"
#include "pagetide/snapshot/heap_draft.h"
#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/snapshot/store_impl.h"
#include "pagetide/snapshot/verify.h"
#include "tests/support/crash_file_system.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;
using layout::kSpanBytes;

// Every byte of a region before its data, but the run-time page.
using Metadata = std::vector<std::byte>;

Metadata metadata_of(const Arena& arena) {
  const layout::Geometry& g = arena.heap().geometry();
  Metadata bytes(arena.range().data(), arena.range().data() + g.data_offset);
  std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(g.runtime_offset), page_size(),
              std::byte{0});
  return bytes;
}

Metadata metadata_of(Store& store, SnapshotId id) {
  const std::uint64_t reserve = must(store.info(id)).reserve_bytes;
  Metadata bytes(must(layout::geometry_for(reserve)).data_offset);
  must(store.read_metadata(id, [&](PageRange pages, std::span<const std::byte> content) {
    std::memcpy(bytes.data() + pages.first * page_size(), content.data(), content.size());
    return Result<void>();
  }));
  return bytes;
}

// "" or where they differ first.
std::string difference(const Metadata& expected, const Metadata& found) {
  if (expected == found) return {};
  const auto at = std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
  return "the metadata differs at byte " + std::to_string(at.first - expected.begin());
}

class HeapMetadataTest : public ::testing::Test {
 protected:
  std::uint64_t record_bytes(SnapshotId id) { return must(store_.info(id)).heap_state_bytes; }
  Arena new_arena(ClearPolicy clear = ClearPolicy::on_free) {
    return must(Arena::create({.name = "state", .reserve_bytes = 64_MiB, .clear = clear}));
  }

  CrashFileSystem files_;
  Store store_ = must(Store::open("store", {.files = &files_}));
};

// --- what a record costs ---

TEST_F(HeapMetadataTest, a_take_that_changed_nothing_has_a_record_of_216_bytes) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  for (int i = 0; i < 5000; ++i) must(arena.allocate(100));
  must(snapshotter.take());
  EXPECT_EQ(record_bytes(must(snapshotter.take())), 216U);
}

TEST_F(HeapMetadataTest, what_is_allocated_and_freed_again_costs_nothing) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  must(arena.allocate(64));
  must(snapshotter.take());
  arena.deallocate(must(arena.allocate(64)));
  EXPECT_EQ(record_bytes(must(snapshotter.take())), 216U);
}

TEST_F(HeapMetadataTest, one_allocation_costs_one_word) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  must(arena.allocate(64));
  must(snapshotter.take());
  must(arena.allocate(64));
  const SnapshotId id = must(snapshotter.take());
  EXPECT_LE(record_bytes(id), 216U + 10);
  EXPECT_GT(record_bytes(id), 216U);
  EXPECT_EQ(must(store_.info(id)).reported_pages, 0U);
}

// The line in which slots are handed out is noted; the other one is when the block is freed.
TEST_F(HeapMetadataTest, a_free_in_another_line_of_a_span_that_is_in_use_is_recorded) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  std::vector<void*> blocks(kSpanBytes / 16);
  for (void*& block : blocks) block = must(arena.allocate(16));
  must(snapshotter.take());
  arena.deallocate(blocks.front());
  ASSERT_EQ(must(arena.allocate(16)), blocks.front());
  arena.deallocate(blocks.back());
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(difference(metadata_of(arena), metadata_of(store_, id)), "");
}

TEST_F(HeapMetadataTest, a_root_costs_its_entry) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  void* block = must(arena.allocate(64));
  must(snapshotter.take());
  must(arena.roots().insert({"root", block, 1, 64}));
  EXPECT_EQ(record_bytes(must(snapshotter.take())), 216U + 1 + 64);
}

// Counted, not timed: what is copied while writers are held is what was logged, however large the
// heap is.
TEST_F(HeapMetadataTest, what_is_copied_in_the_stop_follows_the_changes) {
  Arena arena = must(Arena::create({.name = "large", .reserve_bytes = 1_GiB}));
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 2000 * kSpanBytes / 8192; ++i) {
    blocks.push_back(must(arena.allocate(8192)));
  }
  HeapDraft draft = must(HeapDraft::create(arena.heap().geometry().span_count));
  const auto captured_lines = [&] {
    arena.heap().settle();
    draft.capture(arena.heap().metadata(), arena.heap().changes(), false);
    must(arena.tracker().collect(arena.region().watch(), CollectMode::take));
    return draft.captured_lines();
  };
  EXPECT_GE(captured_lines(), 2000U);
  EXPECT_EQ(captured_lines(), 0U);
  // Each in a span of its own.
  for (std::size_t i = 0; i < 50; ++i) arena.deallocate(blocks[i * 80]);
  EXPECT_EQ(captured_lines(), 50U);
}

TEST_F(HeapMetadataTest, nothing_is_logged_after_a_take_a_rollback_or_opening) {
  Arena arena = new_arena();
  std::optional<Snapshotter> snapshotter(std::in_place, arena, store_);
  const auto is_empty = [](const HeapChangeLog& log) {
    bool empty = true;
    log.for_each([&](std::size_t, std::uint8_t, bool) { empty = false; });
    log.for_each_root([&](std::size_t) { empty = false; });
    return empty;
  };
  const auto change = [&] {
    must(arena.roots().set({"root", must(arena.allocate(500)), 1, 500}));
    EXPECT_FALSE(is_empty(arena.heap().changes()));
  };
  change();
  const SnapshotId first = must(snapshotter->take());
  EXPECT_TRUE(is_empty(arena.heap().changes()));
  change();
  must(snapshotter->rollback(first));
  EXPECT_TRUE(is_empty(arena.heap().changes()));
  change();
  const SnapshotId second = must(snapshotter->take());
  change();
  must(snapshotter->rollback(first));
  EXPECT_TRUE(is_empty(arena.heap().changes()));
  snapshotter.reset();
  { const Arena ending = std::move(arena); }
  const Arena again = must(store_.open_arena(second));
  EXPECT_TRUE(is_empty(again.heap().changes()));
}

// --- what becomes of changes that a snapshot could not take ---

TEST_F(HeapMetadataTest, changes_of_a_failed_take_are_in_the_next_one) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  void* kept = must(arena.allocate(200));
  void* freed = must(arena.allocate(300'000));
  must(arena.roots().insert({"kept", kept, 1, 200}));
  must(snapshotter.take());
  arena.deallocate(freed);
  must(arena.roots().erase("kept"));
  for (int i = 0; i < 50; ++i) must(arena.allocate(3000));
  files_.fail_at(files_.operations().size() + 2, EIO);
  ASSERT_FALSE(snapshotter.take().has_value());
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(difference(metadata_of(arena), metadata_of(store_, id)), "");
}

TEST_F(HeapMetadataTest, a_failed_take_into_a_second_store_leaves_the_first_ones_log) {
  Arena arena = new_arena();
  void* block = must(arena.allocate(200));
  void* large = must(arena.allocate(300'000));
  must(Snapshotter(arena, store_).take());
  // What becomes zero is in no full record.
  arena.deallocate(block);
  arena.deallocate(large);
  CrashFileSystem others;
  Store second = must(Store::open("second", {.files = &others}));
  others.fail_at(others.operations().size() + 2, EIO);
  ASSERT_FALSE(Snapshotter(arena, second).take().has_value());
  const SnapshotId id = must(Snapshotter(arena, store_).take());
  EXPECT_EQ(must(store_.info(id)).parent.value, 1U);
  EXPECT_EQ(difference(metadata_of(arena), metadata_of(store_, id)), "");
}

TEST_F(HeapMetadataTest, a_failed_rollback_leaves_the_log) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  std::memset(must(arena.allocate(100'000)), 1, 100'000);
  const SnapshotId first = must(snapshotter.take());
  std::memset(must(arena.allocate(100'000)), 1, 100'000);
  must(snapshotter.take());
  for (int i = 0; i < 50; ++i) std::memset(must(arena.allocate(3000)), 1, 3000);
  const std::string segment = "store/000000000001.segment";
  ASSERT_TRUE(files_.flip_bit(segment, *files_.file_size(segment) - 1, 3));
  // So that the page is read again.
  arena.heap().for_each_allocation(
      [](void* block, std::size_t size) { std::memset(block, 2, size); });
  const Metadata before = metadata_of(arena);
  ASSERT_FALSE(snapshotter.rollback(first).has_value());
  EXPECT_EQ(difference(before, metadata_of(arena)), "");
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(difference(metadata_of(arena), metadata_of(store_, id)), "");
}

// --- stores of their own ---

TEST_F(HeapMetadataTest, a_second_store_gets_all_of_it) {
  Arena arena = new_arena();
  for (int i = 0; i < 300; ++i) must(arena.allocate(16 + static_cast<std::size_t>(i) * 20));
  must(Snapshotter(arena, store_).take());
  Store second = must(Store::open("second", {.files = &files_}));
  const SnapshotId id = must(Snapshotter(arena, second).take());
  EXPECT_EQ(difference(metadata_of(arena), metadata_of(second, id)), "");
}

TEST_F(HeapMetadataTest, a_rollback_to_another_store_puts_all_of_it_back) {
  Arena arena = new_arena();
  std::vector<void*> blocks;
  for (int i = 0; i < 300; ++i) blocks.push_back(must(arena.allocate(500)));
  Store second = must(Store::open("second", {.files = &files_}));
  const SnapshotId target = must(Snapshotter(arena, second).take());
  const Metadata then = metadata_of(arena);
  for (std::size_t i = 0; i < 300; i += 2) arena.deallocate(blocks[i]);
  must(arena.allocate(500'000));
  // The log begins anew here; the second store knows nothing of it.
  must(Snapshotter(arena, store_).take());
  must(Snapshotter(arena, second).rollback(target));
  EXPECT_EQ(difference(then, metadata_of(arena)), "");
  EXPECT_TRUE(arena.heap().check().has_value());
}

// --- records that are not sound ---

class HeapRecordInStoreTest : public ::testing::Test {
 protected:
  HeapRecordInStoreTest() {
    Arena arena = must(Arena::create({.name = "forged", .reserve_bytes = 32_MiB}));
    for (std::size_t i = 1; i < 200; ++i) {
      std::memset(must(arena.allocate(i * 30)), 1, i * 30);
    }
    must(arena.allocate(200'000));
    must(Snapshotter(arena, *store_).take());
  }

  std::string file() { return directory_.file("store") + "/000000000001.manifest"; }
  std::vector<std::byte> read() { return must(store_->impl().read_file("000000000001.manifest")); }
  void write(const std::vector<std::byte>& bytes) {
    std::ofstream(file(), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

  TemporaryDirectory directory_;
  std::optional<Store> store_ = must(Store::open(directory_.file("store")));
};

TEST_F(HeapRecordInStoreTest, damage_is_named_as_the_records) {
  std::vector<std::byte> bytes = read();
  bytes[bytes.size() - 20] ^= std::byte{4};
  write(bytes);
  const auto image = store_->read_metadata(
      {1}, [](PageRange, std::span<const std::byte>) { return Result<void>(); });
  ASSERT_FALSE(image.has_value());
  EXPECT_EQ(image.error().code(), ErrorCode::damaged);
  EXPECT_NE(image.error().message().find("the checksum of its heap record does not match"),
            std::string::npos)
      << image.error().message();
  EXPECT_FALSE(must(verify(*store_)).sound());
}

// All checksums are right, as somebody who means harm would make them.
TEST_F(HeapRecordInStoreTest, forged_content_is_an_error_or_some_heap_and_never_a_crash) {
  RandomSource random;
  const std::vector<std::byte> genuine = read();
  const auto& root = store_->impl().root;
  std::size_t opened = 0;
  for (std::size_t round = 0; round < scaled(300); ++round) {
    auto manifest = must(format::decode_manifest(genuine, root.uuid, 1, root.seed, file()));
    auto& record = manifest.heap_delta;
    for (std::size_t i = random.between(1, 8); i > 0; --i) {
      // The superblock, and what comes behind it.
      const std::size_t at =
          random.one_in(3) ? random.between(40, 207) : random.between(208, record.size() - 9);
      record[at] = static_cast<std::byte>(random.one_in(3) ? 0xff : random.next());
    }
    const std::uint64_t checksum = hash64(record.data(), record.size() - 8);
    std::memcpy(record.data() + record.size() - 8, &checksum, 8);
    if (random.one_in(2)) manifest.header.flags |= format::kFreeBytesMasked;
    write(format::encode(manifest, root.seed));
    (void)store_->read_image({1},
                             [](PageRange, std::span<const std::byte>) { return Result<void>(); });
    (void)verify(*store_);
    if (auto arena = store_->open_arena({1})) {
      ++opened;
      (void)arena->heap().check();
    }
  }
  std::printf("%zu opened\n", opened);
}

// --- everything at once ---

// Random use of an arena, whose blocks are found again by the heap's own walk.
class Mutator {
 public:
  explicit Mutator(RandomSource& random) : random_(random) {}

  void begin(Arena& arena) {
    arena_ = &arena;
    blocks_.clear();
    arena.heap().for_each_allocation([&](void* block, std::size_t) { blocks_.push_back(block); });
  }
  void steps(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) step();
    if (random_.one_in(3)) free_in_another_thread();
  }

 private:
  void step() {
    if (random_.one_in(12)) return change_a_root();
    if (blocks_.empty() || random_.below(5) < 3) return allocate();
    arena_->deallocate(take_block());
  }
  void allocate() {
    const std::size_t kind = random_.below(20);
    const std::size_t limit = kind < 12 ? 300 : kind < 19 ? 30'000 : 400'000;
    const std::size_t bytes = random_.between(1, limit);
    auto block = arena_->allocate(bytes);
    if (!block) return;
    std::memset(*block, static_cast<int>(random_.between(1, 255)),
                std::min<std::size_t>(bytes, 64));
    blocks_.push_back(*block);
  }
  void* take_block() {
    std::swap(blocks_[random_.below(blocks_.size())], blocks_.back());
    void* block = blocks_.back();
    blocks_.pop_back();
    return block;
  }
  void change_a_root() {
    const std::string name = "root " + std::to_string(random_.below(20));
    if (blocks_.empty() || random_.one_in(3)) {
      (void)arena_->roots().erase(name);
    } else {
      must(arena_->roots().set({name, blocks_[random_.below(blocks_.size())], random_.next(), 1}));
    }
  }
  // Not taken in before the next snapshot.
  void free_in_another_thread() {
    std::vector<void*> doomed;
    for (std::size_t i = random_.below(30); i > 0 && !blocks_.empty(); --i) {
      doomed.push_back(take_block());
    }
    std::thread([&] {
      for (void* block : doomed) arena_->deallocate(block);
    }).join();
  }

  RandomSource& random_;
  Arena* arena_ = nullptr;
  std::vector<void*> blocks_;
};

ClearPolicy any_policy(RandomSource& random) {
  constexpr std::array kPolicies = {ClearPolicy::on_free, ClearPolicy::never,
                                    ClearPolicy::deferred};
  return kPolicies.at(random.below(kPolicies.size()));
}

// Takes, failing takes, rollbacks and reopening, from and to two stores.
void random_history(RandomSource& random) {
  struct Place {
    CrashFileSystem files;
    std::optional<Store> store;
    std::map<SnapshotId, Metadata> reference;
  };
  std::array<Place, 2> places;
  for (Place& place : places) {
    place.store.emplace(must(Store::open("store", {.files = &place.files})));
  }
  std::optional<Arena> arena = must(
      Arena::create({.name = "history", .reserve_bytes = 64_MiB, .clear = any_policy(random)}));
  Mutator mutator(random);
  mutator.begin(*arena);
  for (int step = 0; step < 60; ++step) {
    mutator.steps(random.below(150));
    Place& place = places.at(random.one_in(4) ? 1U : 0U);
    const std::size_t what = place.reference.empty() ? 0 : random.below(8);
    if (what <= 3) {
      Snapshotter snapshotter(*arena, *place.store);
      if (random.one_in(5)) {
        place.files.fail_at(place.files.operations().size() + random.between(1, 4), EIO);
        const auto failed = snapshotter.take();
        ASSERT_FALSE(failed.has_value());
        mutator.steps(random.below(20));
      }
      const SnapshotId id = must(snapshotter.take());
      place.reference[id] = metadata_of(*arena);
      ASSERT_EQ(difference(place.reference[id], metadata_of(*place.store, id)), "")
          << "snapshot " << id.value;
      continue;
    }
    const auto target =
        std::next(place.reference.begin(), static_cast<long>(random.below(place.reference.size())));
    if (what <= 5) {
      must(Snapshotter(*arena, *place.store).rollback(target->first));
    } else {
      arena.reset();
      arena = must(place.store->open_arena(target->first, {.clear = any_policy(random)}));
    }
    ASSERT_EQ(difference(target->second, metadata_of(*arena)), "") << "step " << step;
    ASSERT_TRUE(arena->heap().check().has_value());
    mutator.begin(*arena);
  }
  for (Place& place : places) {
    for (const auto& [id, metadata] : place.reference) {
      ASSERT_EQ(difference(metadata, metadata_of(*place.store, id)), "") << "snapshot " << id.value;
    }
    EXPECT_TRUE(must(verify(*place.store)).sound());
  }
}

TEST(HeapMetadataHistory, random_histories_match_copies_taken_at_each_stop) {
  RandomSource random;
  for (std::size_t i = 0; i < scaled(8); ++i) {
    SCOPED_TRACE("seed " + std::to_string(random.seed()) + " history " + std::to_string(i));
    random_history(random);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// A chain of small changes gets full records, and they say what the chain says.
TEST_F(HeapMetadataTest, full_records_of_a_long_chain_equal_the_metadata) {
  Arena arena = new_arena();
  Snapshotter snapshotter(arena, store_);
  RandomSource random;
  Mutator mutator(random);
  mutator.begin(arena);
  std::size_t full = 0;
  for (int i = 0; i < 80; ++i) {
    mutator.steps(10);
    const SnapshotId id = must(snapshotter.take());
    full += i > 0 && must(store_.info(id)).has_full_index ? 1U : 0U;
    ASSERT_EQ(difference(metadata_of(arena), metadata_of(store_, id)), "") << "snapshot " << i;
  }
  EXPECT_GE(full, 2U);
  EXPECT_TRUE(must(verify(store_)).sound());
}

}  // namespace
}  // namespace pagetide
