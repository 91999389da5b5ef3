#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/snapshot/snapshotter.h"
#include "tests/support/arena_image.h"
#include "tests/support/must.h"
#include "tests/support/random_mutator.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"
#include "tests/support/untouched_free.h"

// What ClearPolicy::on_free promises: a secret that was freed before a snapshot saw it is nowhere,
// neither in the memory of the arena nor in the store. And ClearPolicy::deferred: it is in no
// snapshot in which it is free, whatever it is in.

namespace pagetide {
namespace {

using namespace literals;

using Secret = std::array<char, 24>;

// Different in each test, so that it is nowhere else in this process's files either.
Secret new_secret() {
  std::mt19937_64 random(std::random_device{}());
  Secret secret;
  for (char& c : secret) c = static_cast<char>(random() % 255 + 1);
  return secret;
}

bool holds(std::span<const char> bytes, const Secret& secret) {
  return ::memmem(bytes.data(), bytes.size(), secret.data(), secret.size()) != nullptr;
}

bool region_holds(const Arena& arena, const Secret& secret) {
  const UsedRanges used = arena.heap().used_ranges();
  return std::any_of(used.span().begin(), used.span().end(), [&](const ByteRange& range) {
    return holds({reinterpret_cast<const char*>(range.data()), range.size}, secret);
  });
}

bool store_holds(const std::string& directory, const Secret& secret) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::vector<char> bytes(entry.file_size());
    std::ifstream(entry.path(), std::ios::binary)
        .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (holds(bytes, secret)) return true;
  }
  return false;
}

// Where the secret lies, and the size of its block.
struct Place {
  const char* name;
  std::size_t bytes;
  std::size_t offset;
};

class SecretTest : public testing::TestWithParam<Place> {
 protected:
  // An arena with neighbours on both sides of the block, so that neither it nor its span is given
  // back as a whole; the secret is planted, freed, and snapshots are taken.
  void plant_and_free(Arena& arena, Snapshotter& snapshotter) {
    RandomMutator(arena, test_seed()).steps(300);
    must(arena.allocate(GetParam().bytes));
    auto* block = static_cast<char*>(must(arena.allocate(GetParam().bytes)));
    must(arena.allocate(GetParam().bytes));
    must(snapshotter.take());
    std::memset(block, 'x', GetParam().bytes);
    std::copy(secret_.begin(), secret_.end(), block + GetParam().offset);
    ASSERT_TRUE(region_holds(arena, secret_));
    arena.deallocate(block);
    must(snapshotter.take());
  }
  std::string directory() const { return directory_.file("store"); }

  const Secret secret_ = new_secret();
  TemporaryDirectory directory_;
  Store store_ = must(Store::open(directory_.file("store")));
};

constexpr std::size_t kPage = 4096;

constexpr std::array kPlaces = {
    Place{"a_small_slot", 100, 40},
    Place{"a_slot_of_several_pages", 20'000, kPage - 10},
    Place{"the_end_of_the_largest_slot", 32'768, 32'744},
    Place{"a_large_block", 300'000, 200'000},
};

std::string place_name(const testing::TestParamInfo<Place>& place) {
  return place.param.name;
}

INSTANTIATE_TEST_SUITE_P(in, SecretTest, testing::ValuesIn(kPlaces), place_name);

TEST_P(SecretTest, is_nowhere_after_it_was_freed_under_on_free) {
  Arena arena = must(Arena::create({.reserve_bytes = 256_MiB, .clear = ClearPolicy::on_free}));
  Snapshotter snapshotter(arena, store_);
  plant_and_free(arena, snapshotter);
  EXPECT_FALSE(region_holds(arena, secret_));
  EXPECT_FALSE(store_holds(directory(), secret_));
}

// So that the test above can fail: what is searched is where a secret would be.
// Not in a large block: spans that become free are zero under never too.
class KeptSecretTest : public SecretTest {};

INSTANTIATE_TEST_SUITE_P(in, KeptSecretTest, testing::Values(kPlaces[0], kPlaces[1], kPlaces[2]),
                         place_name);

TEST_P(KeptSecretTest, is_in_the_region_and_the_store_under_never) {
  Arena arena = must(Arena::create({.reserve_bytes = 256_MiB, .clear = ClearPolicy::never}));
  Snapshotter snapshotter(arena, store_);
  plant_and_free(arena, snapshotter);
  EXPECT_TRUE(region_holds(arena, secret_));
  EXPECT_TRUE(store_holds(directory(), secret_));
}

// The whole process: the copies that a snapshotter made while the secret was alive are gone too.
bool process_holds(const Secret& secret, const char* except) {
  std::ifstream maps("/proc/self/maps");
  std::ifstream memory("/proc/self/mem", std::ios::binary);
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    std::string permissions;
    fields >> std::hex >> begin >> dash >> end >> permissions;
    // Private writable memory; the stack has the search's own variables.
    if (!permissions.starts_with("rw") || line.find("[stack]") != std::string::npos) continue;
    if (const auto at = reinterpret_cast<std::uintptr_t>(except); at >= begin && at < end) continue;
    constexpr std::size_t kStep = 1_MiB;
    std::vector<char> bytes(kStep + sizeof(Secret));
    for (std::uintptr_t from = begin; from < end; from += kStep) {
      const std::size_t size = std::min<std::size_t>(bytes.size(), end - from);
      memory.clear();
      memory.seekg(static_cast<std::streamoff>(from));
      if (!memory.read(bytes.data(), static_cast<std::streamsize>(size))) break;
      if (holds({bytes.data(), size}, secret)) return true;
      std::fill(bytes.begin(), bytes.end(), '\0');  // not to find it in here
    }
  }
  return false;
}

TEST(SecretInProcessTest, copies_of_it_do_not_outlive_the_snapshot_of_it) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  PAGETIDE_SKIP("a sanitizer keeps what was freed, and copies of what was written");
#endif
  // The secret itself lies on the heap of the C library, which is passed over.
  const TemporaryDirectory directory;
  Store store = must(Store::open(directory.file("store")));
  Arena arena = must(Arena::create({.reserve_bytes = 64_MiB, .clear = ClearPolicy::on_free}));
  Snapshotter snapshotter(arena, store);
  const auto secret = std::make_unique<Secret>(new_secret());
  auto* block = static_cast<char*>(must(arena.allocate(100)));
  std::copy(secret->begin(), secret->end(), block);
  must(snapshotter.take());
  EXPECT_TRUE(store_holds(directory.file("store"), *secret));
  arena.deallocate(block);
  const auto* heap = reinterpret_cast<const char*>(secret.get());
  EXPECT_FALSE(process_holds(*secret, heap));
}

// An arena with a past under never keeps it, until that is cleared.
TEST(SecretOfThePastTest, is_gone_once_free_memory_is_cleared) {
  const Secret secret = new_secret();
  const TemporaryDirectory directory;
  SnapshotId id;
  {
    Store store = must(Store::open(directory.file("never")));
    Arena arena = must(Arena::create({.reserve_bytes = 64_MiB, .clear = ClearPolicy::never}));
    Snapshotter snapshotter(arena, store);
    must(arena.allocate(1000));
    auto* block = static_cast<char*>(must(arena.allocate(1000)));
    std::copy(secret.begin(), secret.end(), block + 500);
    arena.deallocate(block);
    id = must(snapshotter.take());
  }
  Store old = must(Store::open(directory.file("never")));
  Arena arena = must(old.open_arena(id, {.clear = ClearPolicy::on_free}));
  ASSERT_TRUE(region_holds(arena, secret));
  must(arena.heap().clear_free_memory());
  EXPECT_FALSE(region_holds(arena, secret));
  Store next = must(Store::open(directory.file("on_free")));
  Snapshotter snapshotter(arena, next);
  const SnapshotId cleared = must(snapshotter.take());
  EXPECT_FALSE(store_holds(directory.file("on_free"), secret));
  EXPECT_TRUE(must(next.info(cleared)).free_bytes_are_zero);
}

// --- under ClearPolicy::deferred, where freed bytes stay in memory for a while ---

// The secret was live in snapshot 1 and is free in snapshot 2; its bytes are where they were.
class DeferredSecretTest : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 512;

  DeferredSecretTest() {
    for (char*& block : blocks_) block = static_cast<char*>(must(arena_.allocate(kBytes)));
    std::copy(secret_.begin(), secret_.end(), blocks_[3] + 100);
    must(snapshotter_->take());
    free_untouched(arena_, blocks_[3]);
  }
  SnapshotId take() { return must(snapshotter_->take()); }
  // What `pagetide export` writes.
  bool image_holds(SnapshotId id) {
    bool found = false;
    must(store_.read_image(id, [&](PageRange, std::span<const std::byte> content) {
      found =
          found || holds({reinterpret_cast<const char*>(content.data()), content.size()}, secret_);
      return Result<void>();
    }));
    return found;
  }
  bool file_holds(const std::string& name) {
    std::ifstream file(directory_.file("store") + "/" + name, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    const std::string bytes = content.str();
    return holds({bytes.data(), bytes.size()}, secret_);
  }
  // The arena of a snapshot; the one that took it is gone.
  Arena reopened(SnapshotId id) {
    snapshotter_.reset();
    { const Arena ending = std::move(arena_); }
    return must(store_.open_arena(id, {.clear = ClearPolicy::deferred}));
  }

  const Secret secret_ = new_secret();
  TemporaryDirectory directory_;
  Store store_ = must(Store::open(directory_.file("store")));
  Arena arena_ = must(Arena::create({.reserve_bytes = 64_MiB, .clear = ClearPolicy::deferred}));
  std::optional<Snapshotter> snapshotter_{std::in_place, arena_, store_};
  std::array<char*, 8> blocks_{};  // one page of slots
};

TEST_F(DeferredSecretTest, is_in_the_first_segment_and_not_in_the_second_when_its_page_is_dirtied) {
  *blocks_[5] = 1;
  take();
  EXPECT_TRUE(region_holds(arena_, secret_)) << "else nothing was masked";
  EXPECT_TRUE(file_holds("000000000001.segment"));
  EXPECT_FALSE(file_holds("000000000002.segment"));
  EXPECT_TRUE(image_holds({1}));
  EXPECT_FALSE(image_holds({2}));
}

TEST_F(DeferredSecretTest, is_in_the_first_segment_and_not_in_the_second_image_when_it_is_not) {
  take();
  EXPECT_TRUE(region_holds(arena_, secret_)) << "else nothing was masked";
  EXPECT_TRUE(file_holds("000000000001.segment"));
  EXPECT_FALSE(std::filesystem::exists(directory_.file("store") + "/000000000002.segment"));
  EXPECT_TRUE(image_holds({1}));
  EXPECT_FALSE(image_holds({2}));
}

TEST_F(DeferredSecretTest, comes_back_with_the_first_snapshot_and_not_with_the_second) {
  take();
  {
    const Arena second = reopened({2});
    EXPECT_FALSE(region_holds(second, secret_));
  }
  const Arena first = must(store_.open_arena({1}, {.clear = ClearPolicy::deferred}));
  EXPECT_TRUE(region_holds(first, secret_));
}

// The page is not what the store has for it: the next snapshot must not refer to that.
TEST_F(DeferredSecretTest, stays_away_when_its_slot_is_handed_out_again_after_opening) {
  take();
  Arena second = reopened({2});
  Snapshotter snapshotter(second, store_);
  for (std::size_t i = 0; i < 2 * layout::kSpanBytes / kBytes; ++i) must(second.allocate(kBytes));
  const SnapshotId id = must(snapshotter.take());
  EXPECT_FALSE(image_holds(id));
  EXPECT_EQ(difference(image_of(second), must(image_of(store_, id))), "");
}

TEST_F(DeferredSecretTest, is_gone_after_a_rollback_to_the_second_and_back_after_one_to_the_first) {
  const SnapshotId second = take();
  *blocks_[5] = 1;
  must(snapshotter_->rollback(second));
  EXPECT_FALSE(region_holds(arena_, secret_));
  must(snapshotter_->rollback({1}));
  EXPECT_TRUE(region_holds(arena_, secret_));
}

// As after opening.
TEST_F(DeferredSecretTest, stays_away_when_its_slot_is_handed_out_again_after_a_rollback) {
  const SnapshotId second = take();
  *blocks_[5] = 1;
  must(snapshotter_->rollback(second));
  for (std::size_t i = 0; i < 2 * layout::kSpanBytes / kBytes; ++i) must(arena_.allocate(kBytes));
  const SnapshotId id = take();
  EXPECT_FALSE(image_holds(id));
  EXPECT_EQ(difference(image_of(arena_), must(image_of(store_, id))), "");
}

// A slot that is free in a snapshot is stored as zeros, whatever memory held. So going back to when
// it was in use and zero must not take equal pages for equal memory.
TEST_F(DeferredSecretTest, does_not_stay_in_a_slot_that_was_zero_before) {
  const SnapshotId before = take();
  auto* block = static_cast<char*>(must(arena_.allocate_zeroed(20'000)));
  const SnapshotId zero = take();
  const Secret other = new_secret();
  std::copy(other.begin(), other.end(), block + 5000);
  free_untouched(arena_, block);
  take();
  EXPECT_TRUE(region_holds(arena_, other)) << "else nothing was masked";
  must(snapshotter_->rollback(zero));
  EXPECT_FALSE(region_holds(arena_, other));
  must(snapshotter_->rollback(before));
}

// The heap of the first snapshot ends before the block: what was free in it lies behind the end
// then.
TEST_F(DeferredSecretTest, does_not_stay_behind_the_end_of_a_smaller_heap) {
  constexpr std::size_t kBlockBytes = 10 * layout::kSpanBytes;
  auto* block = static_cast<char*>(must(arena_.allocate_zeroed(kBlockBytes)));
  const SnapshotId zero = take();
  const Secret other = new_secret();
  std::copy(other.begin(), other.end(), block + kBlockBytes / 2);
  arena_.deallocate(block);
  take();
  ASSERT_TRUE(holds({block, kBlockBytes}, other)) << "else nothing was masked";
  must(snapshotter_->rollback({1}));
  EXPECT_FALSE(holds({block, kBlockBytes}, other));
  must(snapshotter_->rollback(zero));
  EXPECT_FALSE(holds({block, kBlockBytes}, other));
}

TEST_F(DeferredSecretTest, snapshots_say_that_free_bytes_are_masked) {
  const SnapshotInfo info = must(store_.info(take()));
  EXPECT_TRUE(info.free_bytes_masked);
  EXPECT_FALSE(info.free_bytes_are_zero);
}

// Every kernel keeps the promise.
TEST_P(SecretTest, is_nowhere_with_any_kernel) {
  for (const ClearKernel kernel : all_clear_kernels()) {
    if (!check_clear_kernel(kernel, cpu_features())) continue;
    must(force_clear_kernel(kernel));
    Arena arena = must(Arena::create({.reserve_bytes = 256_MiB, .clear = ClearPolicy::on_free}));
    auto* block = static_cast<char*>(must(arena.allocate(GetParam().bytes)));
    std::copy(secret_.begin(), secret_.end(), block + GetParam().offset);
    arena.deallocate(block);
    EXPECT_FALSE(region_holds(arena, secret_)) << clear_kernel_name(kernel);
  }
  must(force_clear_kernel(ClearKernel::automatic));
}

}  // namespace
}  // namespace pagetide
