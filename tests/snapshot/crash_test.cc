// Power failures at every operation of commits, through the file system seam. The last test
// forgets each sync in turn and expects these very checks to notice.

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <optional>

#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/snapshot/verify.h"
#include "tests/support/arena_image.h"
#include "tests/support/crash_file_system.h"
#include "tests/support/must.h"
#include "tests/support/test_scale.h"

namespace pagetide {
namespace {

using namespace literals;

// Not "/store": a relative path has its parent directory in "." like a user's.
const std::string kPath = "data/store";

// What a program was told before its machine crashed.
struct Told {
  bool opened = false;
  std::map<SnapshotId, ArenaImage> committed;
  SnapshotId newest;
};

// Opens a store and commits a few snapshots with a rollback in between, until an error.
Told run_program(CrashFileSystem& files, int commits) {
  Told told;
  auto store = Store::open(kPath, {.files = &files});
  if (!store) return told;
  told.opened = true;
  Arena arena = must(Arena::create({.name = "crash", .reserve_bytes = 32_MiB}));
  auto* block = static_cast<std::byte*>(must(arena.allocate(24 * page_size())));
  Snapshotter snapshotter(arena, *store);
  for (int i = 0; i < commits; ++i) {
    for (std::size_t page = 0; page < 24; page += static_cast<std::size_t>(i) + 1) {
      std::memset(block + page * page_size(), i + 1, page_size() / 2);
    }
    if (i == 2) std::memset(block, 0, 2 * page_size());
    auto id = snapshotter.take();
    if (!id) return told;
    told.newest = *id;
    told.committed[*id] = image_of(arena);
    if (i == 1 && !snapshotter.rollback({1})) return told;
  }
  return told;
}

// What is wrong with a store after a crash; "" when it keeps its promise. The disk may be used on
// afterwards, so this also takes a further snapshot.
std::string broken_promise(CrashFileSystem& files, const Told& told) {
  if (!told.opened) {
    // Nothing was promised but that starting again works.
    auto again = Store::open(kPath, {.files = &files});
    return again ? "" : "cannot start again: " + again.error().message();
  }
  auto store = Store::open(kPath, {.mode = StoreMode::write, .files = &files});
  if (!store) return "cannot open: " + store.error().message();
  auto report = verify(*store);
  if (!report) return "cannot verify: " + report.error().message();
  if (!report->sound()) return "not sound: " + report->problems.front().message();
  for (const auto& [id, image] : told.committed) {
    auto found = image_of(*store, id);
    if (!found) return "a committed snapshot is gone: " + found.error().message();
    if (const std::string wrong = difference(image, *found); !wrong.empty()) return wrong;
  }
  auto latest = store->latest();
  if (!latest) return told.committed.empty() ? "" : "no latest: " + latest.error().message();
  if (*latest < told.newest) return "the newest reported snapshot is not the latest";

  auto arena = store->open_arena(*latest);
  if (!arena) return "cannot open the arena: " + arena.error().message();
  if (auto healthy = arena->heap().check(); !healthy) return healthy.error().message();
  Snapshotter snapshotter(*arena, *store);
  std::memset(must(arena->allocate(5000)), 1, 5000);
  auto next = snapshotter.take();
  if (!next) return "cannot go on: " + next.error().message();
  auto found = image_of(*store, *next);
  if (!found) return found.error().message();
  return difference(image_of(*arena), *found);
}

struct CrashPoint {
  std::size_t operation;
  CrashTiming timing;
};

// Runs the program up to a crash and checks what a machine finds, once with everything unsynced
// lost and `seeds` times with a random part of it kept.
std::string check_crash(CrashPoint point, int commits, std::size_t seeds, std::uint64_t first_seed,
                        std::optional<std::size_t> ignored_sync) {
  CrashFileSystem files;
  must(files.create_directory("data"));
  must(files.sync_directory("."));
  const std::size_t base_operations = files.operations().size();
  if (ignored_sync) files.ignore_sync(files.sync_count() + *ignored_sync);
  files.crash_at(base_operations + point.operation, point.timing);
  const Told told = run_program(files, commits);
  const auto dropped = files.after_crash(LossPolicy::drop_all());
  if (std::string wrong = broken_promise(*dropped, told); !wrong.empty())
    return wrong + " (all lost)";
  for (std::size_t i = 0; i < seeds; ++i) {
    const auto kept = files.after_crash(LossPolicy::keep_random(first_seed + i));
    if (std::string wrong = broken_promise(*kept, told); !wrong.empty()) {
      return wrong + " (part kept, seed " + std::to_string(first_seed + i) + ")";
    }
  }
  return "";
}

struct Extent {
  std::size_t operations;
  std::size_t syncs;
  std::vector<std::string> names;
};

Extent measure(int commits) {
  CrashFileSystem files;
  must(files.create_directory("data"));
  must(files.sync_directory("."));
  const std::size_t operations = files.operations().size();
  const std::size_t syncs = files.sync_count();
  const Told told = run_program(files, commits);
  EXPECT_EQ(told.committed.size(), static_cast<std::size_t>(commits));
  auto names = files.operations();
  names.erase(names.begin(), names.begin() + static_cast<long>(operations));
  return {names.size(), files.sync_count() - syncs, names};
}

TEST(Crash, at_every_operation_nothing_reported_is_lost) {
  constexpr int kCommits = 4;
  const std::uint64_t seed = test_seed();
  const Extent extent = measure(kCommits);
  const std::size_t seeds = scaled(4);
  for (std::size_t operation = 0; operation <= extent.operations; ++operation) {
    for (const CrashTiming timing : {CrashTiming::before, CrashTiming::after}) {
      ASSERT_EQ(check_crash({operation, timing}, kCommits, seeds, seed, std::nullopt), "")
          << (timing == CrashTiming::before ? "before" : "after") << " operation " << operation
          << ": " << (operation < extent.operations ? extent.names[operation] : "the end")
          << ", seed " << seed;
    }
  }
  std::printf("%zu operations, %zu syncs, %zu disks checked\n", extent.operations, extent.syncs,
              (extent.operations + 1) * 2 * (seeds + 1));
}

// Killed while the machine goes on: everything written is there, synced or not.
TEST(Crash, a_kill_at_every_operation_loses_nothing_reported) {
  constexpr int kCommits = 4;
  const Extent extent = measure(kCommits);
  for (std::size_t operation = 0; operation <= extent.operations; ++operation) {
    CrashFileSystem files;
    must(files.create_directory("data"));
    files.crash_at(files.operations().size() + operation);
    const Told told = run_program(files, kCommits);
    const auto found = files.clone();
    ASSERT_EQ(broken_promise(*found, told), "") << "operation " << operation;
  }
}

// The oracle of the tests above: without any one of its syncs the store breaks its promise at
// some crash, and the checks see it.
TEST(Crash, every_sync_is_needed) {
  constexpr int kCommits = 2;
  // What a forgotten sync would have made durable is lost at one of the next operations, or is
  // made durable by a later sync.
  constexpr std::size_t kWithin = 14;
  const Extent extent = measure(kCommits);
  const std::uint64_t seed = test_seed();
  std::size_t sync = 0;
  for (std::size_t at = 0; at < extent.operations; ++at) {
    if (extent.names[at].rfind("sync", 0) != 0) continue;
    bool noticed = false;
    const std::size_t last = std::min(at + kWithin, extent.operations);
    for (std::size_t operation = at + 1; operation <= last && !noticed; ++operation) {
      noticed = !check_crash({operation, CrashTiming::before}, kCommits, 24, seed, sync).empty();
    }
    EXPECT_TRUE(noticed) << "forgetting sync " << sync << " (" << extent.names[at]
                         << ") harms nothing";
    ++sync;
  }
  EXPECT_EQ(sync, extent.syncs);
  EXPECT_EQ(sync, 3U + 5U * kCommits);
}

}  // namespace
}  // namespace pagetide
