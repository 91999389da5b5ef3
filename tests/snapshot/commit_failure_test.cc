// Errors at every operation of a commit: a full disk, a failing disk. Nothing may be lost, and
// the next snapshot must hold everything.

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>

#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/snapshot/verify.h"
#include "tests/support/arena_image.h"
#include "tests/support/crash_file_system.h"
#include "tests/support/must.h"
#include "tests/support/random_mutator.h"

namespace pagetide {
namespace {

using namespace literals;

struct Program {
  explicit Program(BackendKind backend = BackendKind::automatic)
      : store(must(Store::open("store", {.files = &files}))),
        arena(must(Arena::create({.name = "fail", .reserve_bytes = 64_MiB, .backend = backend}))),
        mutator(arena, 11) {}

  CrashFileSystem files;
  Store store;
  Arena arena;
  RandomMutator mutator;
};

class CommitFailure : public ::testing::TestWithParam<int> {};

// Fails one operation of the second commit, for each in turn, and looks at everything.
TEST_P(CommitFailure, loses_nothing_and_the_next_delta_is_complete) {
  std::size_t operations = 1;
  for (std::size_t failing = 0; failing < operations; ++failing) {
    Program p;
    Snapshotter snapshotter(p.arena, p.store);
    p.mutator.steps(100);
    const SnapshotId first = must(snapshotter.take());
    const ArenaImage at_first = image_of(p.arena);
    p.mutator.steps(100);
    const std::size_t begin = p.files.operations().size();
    if (failing == 0) {
      // Measure how many operations there are to fail.
      Program probe;
      Snapshotter probe_snapshotter(probe.arena, probe.store);
      probe.mutator.steps(100);
      must(probe_snapshotter.take());
      probe.mutator.steps(100);
      const std::size_t before = probe.files.operations().size();
      must(probe_snapshotter.take());
      operations = probe.files.operations().size() - before;
      ASSERT_GE(operations, 10U);
    }
    p.files.fail_at(begin + failing, GetParam());
    auto failed = snapshotter.take();
    SCOPED_TRACE(p.files.operations()[begin + failing]);
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().system_errno(), GetParam());

    EXPECT_EQ(difference(at_first, must(image_of(p.store, first))), "");
    const SnapshotId next = must(snapshotter.take());
    EXPECT_EQ(must(p.store.info(next)).parent, first);
    EXPECT_EQ(difference(image_of(p.arena), must(image_of(p.store, next))), "");
    EXPECT_EQ(must(p.store.latest()), next);

    // And all of it after a crash right here.
    const auto disk = p.files.after_crash(LossPolicy::drop_all());
    Store again = must(Store::open("store", {.mode = StoreMode::write, .files = disk.get()}));
    const VerifyReport report = must(verify(again));
    EXPECT_TRUE(report.sound()) << report.problems.front().message();
    EXPECT_EQ(difference(image_of(p.arena), must(image_of(again, next))), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, CommitFailure, ::testing::Values(ENOSPC, EIO),
                         [](const auto& chosen) -> std::string {
                           return chosen.param == ENOSPC ? "disk_full" : "io_error";
                         });

TEST(CommitFailures, a_disk_that_fills_up_at_any_byte_loses_nothing) {
  for (std::uint64_t room = 0; room < 400'000; room += 37'000) {
    Program p;
    Snapshotter snapshotter(p.arena, p.store);
    p.mutator.steps(100);
    const SnapshotId first = must(snapshotter.take());
    p.mutator.steps(150);
    std::uint64_t used = 0;
    for (const std::string& name : p.files.file_names()) used += *p.files.file_size(name);
    p.files.capacity_bytes(used + room);
    auto second = snapshotter.take();
    if (!second) {
      EXPECT_EQ(second.error().code(), ErrorCode::no_space);
      p.files.capacity_bytes(UINT64_MAX);
      second = snapshotter.take();
    }
    EXPECT_EQ(must(p.store.info(must(second))).parent, first);
    EXPECT_EQ(difference(image_of(p.arena), must(image_of(p.store, *second))), "") << room;
    EXPECT_TRUE(must(verify(p.store)).sound());
  }
}

TEST(CommitFailures, a_failed_commit_leaves_no_file_behind) {
  Program p;
  Snapshotter snapshotter(p.arena, p.store);
  p.mutator.steps(100);
  must(snapshotter.take());
  const auto before = p.files.file_names();
  p.mutator.steps(100);
  p.files.fail_at(p.files.operations().size() + 2, ENOSPC);
  ASSERT_FALSE(snapshotter.take().has_value());
  EXPECT_EQ(p.files.file_names(), before);
}

// The epoch of a failed take is put back with the compare back end too, which forgets at take.
TEST(CommitFailures, dirt_is_put_back_without_userfaultfd) {
  Program p(BackendKind::compare);
  Snapshotter snapshotter(p.arena, p.store);
  p.mutator.steps(100);
  must(snapshotter.take());
  p.mutator.steps(100);
  p.files.fail_at(p.files.operations().size() + 3, EIO);
  ASSERT_FALSE(snapshotter.take().has_value());
  const SnapshotId next = must(snapshotter.take());
  EXPECT_EQ(difference(image_of(p.arena), must(image_of(p.store, next))), "");
}

TEST(CommitFailures, a_rollback_that_cannot_read_leaves_memory_alone) {
  Program p;
  Snapshotter snapshotter(p.arena, p.store);
  p.mutator.steps(200);
  const SnapshotId first = must(snapshotter.take());
  p.mutator.steps(200);
  must(snapshotter.take());
  p.mutator.steps(50);
  const ArenaImage before = image_of(p.arena);
  ASSERT_TRUE(p.files.flip_bit("store/000000000001.segment",
                               *p.files.file_size("store/000000000001.segment") - 1, 3));
  auto r = snapshotter.rollback(first);
  ASSERT_FALSE(r.has_value());
  EXPECT_EQ(r.error().code(), ErrorCode::damaged);
  EXPECT_EQ(difference(before, image_of(p.arena)), "");
  const SnapshotId next = must(snapshotter.take());
  EXPECT_EQ(must(p.store.info(next)).parent.value, 2U);
}

}  // namespace
}  // namespace pagetide
