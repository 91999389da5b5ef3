// Bad input: whatever is wrong with a store's files, the answer is an error that names the file,
// or the right data. Never a crash, never a wrong image.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/snapshot/verify.h"
#include "tests/support/arena_image.h"
#include "tests/support/crash_file_system.h"
#include "tests/support/must.h"
#include "tests/support/random_mutator.h"

namespace pagetide {
namespace {

using namespace literals;

const std::string kPath = "store";

class Damage : public ::testing::Test {
 protected:
  void SetUp() override {
    Store store = must(Store::open(kPath, {.files = &files_}));
    Arena arena = must(Arena::create({.name = "damage", .reserve_bytes = 32_MiB}));
    Snapshotter snapshotter(arena, store);
    RandomMutator mutator(arena, 2);
    for (int i = 0; i < 3; ++i) {
      mutator.steps(20);
      const SnapshotId id = must(snapshotter.take());
      images_[id] = image_of(arena);
    }
    for (const std::string& name : files_.file_names()) {
      if (name != "store/lock") names_.push_back(name);
    }
    ASSERT_EQ(names_.size(), 7U);  // root, three manifests, three segments
  }

  // What the damage did: every snapshot either opens as it was or fails with a message that names
  // a file; verify finds it. Returns how many snapshots are lost.
  std::size_t lost_snapshots(FileSystem& files, const std::string& damaged_name, bool* found) {
    *found = false;
    auto store = Store::open(kPath, {.mode = StoreMode::read, .files = &files});
    if (!store) {
      *found = true;
      EXPECT_NE(store.error().message().find(kPath), std::string::npos) << store.error().message();
      return images_.size();
    }
    std::size_t lost = 0;
    for (const auto& [id, image] : images_) {
      auto read = image_of(*store, id);
      auto arena = store->open_arena(id);
      EXPECT_EQ(read.has_value(), arena.has_value());
      if (read) {
        EXPECT_EQ(difference(image, *read), "")
            << "a wrong restore after damage to " << damaged_name;
        EXPECT_EQ(difference(image, image_of(*arena)), "");
        continue;
      }
      ++lost;
      EXPECT_NE(read.error().message().find(damaged_name), std::string::npos)
          << read.error().message();
    }
    auto report = verify(*store);
    *found = !report || !report->sound();
    if (report) {
      EXPECT_EQ(report->unusable.size(), lost) << damaged_name;
    }
    return lost;
  }

  CrashFileSystem files_;
  std::map<SnapshotId, ArenaImage> images_;
  std::vector<std::string> names_;
};

TEST_F(Damage, the_undamaged_store_is_sound) {
  bool found = true;
  EXPECT_EQ(lost_snapshots(files_, "nothing", &found), 0U);
  EXPECT_FALSE(found);
}

TEST_F(Damage, one_flipped_bit_anywhere_is_found) {
  for (const std::string& name : names_) {
    const std::uint64_t size = *files_.file_size(name);
    // Every byte of the small records, then one in each half KiB.
    for (std::uint64_t offset = 0; offset < size; offset += size < 600 ? 1 : 512) {
      const std::uint64_t byte =
          std::min(size - 1, size < 600 ? offset : offset + offset / 512 % 512);
      const auto disk = files_.clone();
      ASSERT_TRUE(disk->flip_bit(name, byte, static_cast<unsigned>(offset % 8)));
      bool found = false;
      lost_snapshots(*disk, name, &found);
      ASSERT_TRUE(found) << name << " byte " << byte;
    }
  }
}

TEST_F(Damage, a_file_cut_short_at_every_4_kib_is_found) {
  for (const std::string& name : names_) {
    const std::uint64_t size = *files_.file_size(name);
    for (std::uint64_t length = 0; length < size; length += 4_KiB) {
      const auto disk = files_.clone();
      ASSERT_TRUE(disk->truncate(name, length));
      bool found = false;
      lost_snapshots(*disk, name, &found);
      ASSERT_TRUE(found) << name << " cut to " << length;
    }
    const auto disk = files_.clone();
    ASSERT_TRUE(disk->truncate(name, size - 1));
    bool found = false;
    lost_snapshots(*disk, name, &found);
    ASSERT_TRUE(found) << name << " without its last byte";
  }
}

TEST_F(Damage, a_missing_file_is_named) {
  for (const std::string& name : names_) {
    const auto disk = files_.clone();
    must(disk->remove(name));
    bool found = false;
    lost_snapshots(*disk, name, &found);
    ASSERT_TRUE(found) << name;
  }
}

// A damaged part loses only what needs it.
TEST_F(Damage, damage_to_the_newest_segment_leaves_older_snapshots) {
  ASSERT_TRUE(files_.flip_bit("store/000000000003.segment", 5000, 1));
  bool found = false;
  EXPECT_EQ(lost_snapshots(files_, "store/000000000003.segment", &found), 1U);
}

TEST_F(Damage, verify_names_every_damaged_page) {
  ASSERT_TRUE(files_.flip_bit("store/000000000001.segment", page_size() * 2 + 7, 1));
  ASSERT_TRUE(files_.flip_bit("store/000000000001.segment", page_size() * 3 + 9, 1));
  Store store = must(Store::open(kPath, {.mode = StoreMode::read, .files = &files_}));
  const VerifyReport report = must(verify(store));
  ASSERT_EQ(report.problems.size(), 2U);
  EXPECT_NE(report.problems[0].message().find("the checksum of page 1 (byte " +
                                              std::to_string(2 * page_size()) + ") does not match"),
            std::string::npos)
      << report.problems[0].message();
}

}  // namespace
}  // namespace pagetide
