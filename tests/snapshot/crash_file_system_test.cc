#include "tests/support/crash_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <set>
#include <string_view>
#include <thread>

#include "pagetide/base/page_range.h"

// The rules of the crash contract (snapshot/file_system.h), each shown on CrashFileSystem. What
// may go either way must be seen going either way, or the crash tests of the store would be
// weaker than they look.

namespace pagetide {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr std::uint64_t kSeeds = 500;
const std::string kNone = "(none)";

void append(File& file, std::string_view content) {
  const auto appended = file.append(content.data(), content.size());
  ASSERT_TRUE(appended) << appended.error().message();
}

// Creates the file without syncing anything.
std::unique_ptr<File> write(FileSystem& fs, const std::string& path, std::string_view content) {
  auto file = fs.create(path, WriteMode::buffered);
  EXPECT_TRUE(file) << file.error().message();
  append(**file, content);
  return *std::move(file);
}

// Creates the file and makes it and its entry durable.
void write_durable(FileSystem& fs, const std::string& path, std::string_view content) {
  ASSERT_TRUE(write(fs, path, content)->sync());
  ASSERT_TRUE(fs.sync_directory(parent_directory(path)));
}

std::string read(FileSystem& fs, const std::string& path) {
  const auto file = fs.open_read(path);
  if (!file) return kNone;
  std::string content((*file)->size().value(), '?');
  EXPECT_EQ((*file)->read_at(0, content.data(), content.size()).value(), content.size());
  return content;
}

// What read() gives for each path, joined, after a power failure that loses everything.
std::string after_losing_all(const CrashFileSystem& fs, const std::vector<std::string>& paths) {
  const auto left = fs.after_crash(LossPolicy::drop_all());
  std::string result;
  for (const std::string& path : paths) result += (result.empty() ? "" : " ") + read(*left, path);
  return result;
}

// The same for every seed, without repetition.
std::set<std::string> all_outcomes(const CrashFileSystem& fs,
                                   const std::vector<std::string>& paths) {
  std::set<std::string> outcomes;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto left = fs.after_crash(LossPolicy::keep_random(seed));
    std::string result;
    for (const std::string& path : paths) result += (result.empty() ? "" : " ") + read(*left, path);
    outcomes.insert(result);
  }
  return outcomes;
}

std::string pages_of(char c, std::size_t pages) {
  return std::string(pages * page_size(), c);
}

// File content.

TEST(CrashFileSystem, UnsyncedContentIsLost) {
  CrashFileSystem fs;
  write_durable(fs, "f", "kept");
  const auto file = fs.create("g", WriteMode::buffered).value();
  ASSERT_TRUE(fs.sync_directory("."));
  append(*file, "first");
  ASSERT_TRUE(file->sync());
  append(*file, " second");
  EXPECT_EQ(read(fs, "g"), "first second");
  EXPECT_EQ(after_losing_all(fs, {"f", "g"}), "kept first");
}

TEST(CrashFileSystem, SyncedStateSurvivesEveryCrash) {
  CrashFileSystem fs;
  ASSERT_TRUE(fs.create_directory("d"));
  ASSERT_TRUE(fs.sync_directory("."));
  write_durable(fs, "d/f", pages_of('x', 5) + "tail");
  write_durable(fs, "d/g", "content");
  ASSERT_TRUE(fs.rename("d/g", "d/h"));
  ASSERT_TRUE(fs.sync_directory("d"));
  const std::string state = pages_of('x', 5) + "tail (none) content";
  EXPECT_EQ(after_losing_all(fs, {"d/f", "d/g", "d/h"}), state);
  EXPECT_THAT(all_outcomes(fs, {"d/f", "d/g", "d/h"}), ElementsAre(state));
}

TEST(CrashFileSystem, DurableEntryWithoutContentIsEmpty) {
  CrashFileSystem fs;
  const auto file = write(fs, "f", "content");
  ASSERT_TRUE(fs.sync_directory("."));
  EXPECT_EQ(after_losing_all(fs, {"f"}), "");
}

TEST(CrashFileSystem, DurableEntryWithoutContentMayHoldAnything) {
  CrashFileSystem fs;
  const auto file = write(fs, "f", "content");
  ASSERT_TRUE(fs.sync_directory("."));
  const auto outcomes = all_outcomes(fs, {"f"});
  EXPECT_THAT(outcomes, Contains("content"));
  EXPECT_THAT(outcomes, Contains(""));
  EXPECT_THAT(outcomes, Contains(std::string(7, '\0')));
  EXPECT_GT(outcomes.size(), 10U) << "no garbage";
  EXPECT_THAT(outcomes, Not(Contains(kNone)));
}

TEST(CrashFileSystem, SyncedPrefixIsIntactWhateverHappensToTheRest) {
  CrashFileSystem fs;
  const auto file = fs.create("f", WriteMode::buffered).value();
  ASSERT_TRUE(fs.sync_directory("."));
  const std::string synced = pages_of('s', 1) + "half a page";
  append(*file, synced);
  ASSERT_TRUE(file->sync());
  append(*file, pages_of('u', 3));
  const auto outcomes = all_outcomes(fs, {"f"});
  EXPECT_GT(outcomes.size(), 10U);
  for (const std::string& outcome : outcomes) EXPECT_EQ(outcome.substr(0, synced.size()), synced);
}

TEST(CrashFileSystem, UnsyncedPagesAreKeptOrLostOneByOne) {
  CrashFileSystem fs;
  const auto file = fs.create("f", WriteMode::buffered).value();
  ASSERT_TRUE(fs.sync_directory("."));
  const std::string whole = pages_of('a', 1) + pages_of('b', 1) + pages_of('c', 1) + "tail";
  append(*file, whole);
  // What became of each page: kept, zero, garbage or missing (too short a file).
  std::set<std::string> fates;
  for (const std::string& outcome : all_outcomes(fs, {"f"})) {
    std::string fate;
    for (std::size_t at = 0; at < whole.size(); at += page_size()) {
      const std::string page = outcome.substr(std::min(at, outcome.size()), page_size());
      const std::string wanted = whole.substr(at, page_size());
      fate += page.empty()                             ? '-'
              : page == wanted                         ? 'k'
              : page == std::string(page.size(), '\0') ? '0'
                                                       : 'g';
      EXPECT_TRUE(page.empty() || page.size() == wanted.size());
    }
    fates.insert(fate);
  }
  EXPECT_THAT(fates, ::testing::IsSupersetOf({"kkkk", "k0kk", "0kkk", "kgkk", "k---", "kk--",
                                              "kkk-", "----", "0000", "kk00"}));
}

TEST(CrashFileSystem, TruncationByCreateMayBeUndone) {
  CrashFileSystem fs;
  write_durable(fs, "f", "old");
  const auto file = write(fs, "f", "new");
  EXPECT_EQ(read(fs, "f"), "new");
  EXPECT_EQ(after_losing_all(fs, {"f"}), "old");
  const auto outcomes = all_outcomes(fs, {"f"});
  EXPECT_THAT(outcomes, Contains("old"));
  EXPECT_THAT(outcomes, Contains("new"));
  EXPECT_THAT(outcomes, Contains(""));
  ASSERT_TRUE(file->sync());
  EXPECT_EQ(after_losing_all(fs, {"f"}), "new");
}

// Directory entries.

TEST(CrashFileSystem, SyncOfContentLeavesTheEntryUnsynced) {
  CrashFileSystem fs;
  ASSERT_TRUE(write(fs, "f", "content")->sync());
  EXPECT_EQ(after_losing_all(fs, {"f"}), kNone);
  EXPECT_THAT(all_outcomes(fs, {"f"}), ElementsAre(kNone, "content"));
}

TEST(CrashFileSystem, NewDirectoryNeedsASyncOfItsParent) {
  CrashFileSystem fs;
  ASSERT_TRUE(fs.create_directory("d"));
  write_durable(fs, "d/f", "content");
  EXPECT_EQ(after_losing_all(fs, {"d/f"}), kNone);
  EXPECT_THAT(all_outcomes(fs, {"d/f"}), ElementsAre(kNone, "content"));
  ASSERT_TRUE(fs.sync_directory("."));
  EXPECT_EQ(after_losing_all(fs, {"d/f"}), "content");
}

TEST(CrashFileSystem, RenameMayBeUndoneOrHalfDone) {
  CrashFileSystem fs;
  write_durable(fs, "a", "content");
  ASSERT_TRUE(fs.rename("a", "b"));
  EXPECT_EQ(after_losing_all(fs, {"a", "b"}), "content (none)");
  EXPECT_THAT(all_outcomes(fs, {"a", "b"}),
              ElementsAre("(none) content", "content (none)", "content content"));
  ASSERT_TRUE(fs.sync_directory("."));
  EXPECT_EQ(after_losing_all(fs, {"a", "b"}), "(none) content");
}

TEST(CrashFileSystem, RenameReplacesAtomically) {
  CrashFileSystem fs;
  write_durable(fs, "current", "old");
  ASSERT_TRUE(write(fs, "temporary", "new")->sync());
  ASSERT_TRUE(fs.rename("temporary", "current"));
  EXPECT_EQ(after_losing_all(fs, {"temporary", "current"}), "(none) old");
  EXPECT_THAT(all_outcomes(fs, {"temporary", "current"}),
              ElementsAre("(none) new", "(none) old", "new new", "new old"));
}

TEST(CrashFileSystem, RenameBeforeTheContentIsSyncedMayShowAnEmptyFile) {
  CrashFileSystem fs;
  write_durable(fs, "current", "old");
  const auto file = write(fs, "temporary", "new");
  ASSERT_TRUE(fs.rename("temporary", "current"));
  ASSERT_TRUE(fs.sync_directory("."));
  EXPECT_EQ(after_losing_all(fs, {"current"}), "");
}

TEST(CrashFileSystem, DurableFileIsNeverLostByRenames) {
  CrashFileSystem fs;
  write_durable(fs, "a", "A");
  write_durable(fs, "x", "X");
  ASSERT_TRUE(fs.rename("a", "b"));
  ASSERT_TRUE(fs.rename("b", "c"));
  ASSERT_TRUE(fs.rename("x", "b"));
  const auto outcomes = all_outcomes(fs, {"a", "b", "c", "x"});
  EXPECT_GT(outcomes.size(), 8U);
  for (const std::string& outcome : outcomes) {
    EXPECT_THAT(outcome, HasSubstr("A"));
    EXPECT_THAT(outcome, HasSubstr("X"));
  }
}

TEST(CrashFileSystem, RenameIntoAnotherDirectoryDoesNotLoseTheFile) {
  CrashFileSystem fs;
  ASSERT_TRUE(fs.create_directory("d"));
  ASSERT_TRUE(fs.create_directory("e"));
  ASSERT_TRUE(fs.sync_directory("."));
  write_durable(fs, "d/f", "content");
  ASSERT_TRUE(fs.rename("d/f", "e/g"));
  EXPECT_THAT(all_outcomes(fs, {"d/f", "e/g"}),
              ElementsAre("(none) content", "content (none)", "content content"));
  ASSERT_TRUE(fs.sync_directory("d"));
  EXPECT_EQ(after_losing_all(fs, {"d/f", "e/g"}), "(none) content");
  EXPECT_THAT(all_outcomes(fs, {"d/f", "e/g"}), ElementsAre("(none) content"));
}

TEST(CrashFileSystem, DirectoryNeverHasTwoNames) {
  CrashFileSystem fs;
  ASSERT_TRUE(fs.create_directory("d"));
  ASSERT_TRUE(fs.sync_directory("."));
  write_durable(fs, "d/f", "content");
  ASSERT_TRUE(fs.rename("d", "e"));
  EXPECT_EQ(after_losing_all(fs, {"d/f", "e/f"}), "content (none)");
  EXPECT_THAT(all_outcomes(fs, {"d/f", "e/f"}), ElementsAre("(none) content", "content (none)"));
  ASSERT_TRUE(fs.create_directory("other"));
  EXPECT_EQ(fs.rename("e", "other/e").error().system_errno(), EXDEV);
}

TEST(CrashFileSystem, RemovalMayBeUndone) {
  CrashFileSystem fs;
  write_durable(fs, "f", "content");
  ASSERT_TRUE(fs.remove("f"));
  EXPECT_EQ(after_losing_all(fs, {"f"}), "content");
  EXPECT_THAT(all_outcomes(fs, {"f"}), ElementsAre(kNone, "content"));
  ASSERT_TRUE(fs.sync_directory("."));
  EXPECT_EQ(after_losing_all(fs, {"f"}), kNone);
}

TEST(CrashFileSystem, NameUsedAgainShowsTheOldOrTheNewFile) {
  CrashFileSystem fs;
  write_durable(fs, "f", "old");
  ASSERT_TRUE(fs.remove("f"));
  ASSERT_TRUE(write(fs, "f", "new")->sync());
  EXPECT_EQ(after_losing_all(fs, {"f"}), "old");
  EXPECT_THAT(all_outcomes(fs, {"f"}), ElementsAre(kNone, "new", "old"));
}

TEST(CrashFileSystem, EntriesAreKeptOrLostIndependently) {
  CrashFileSystem fs;
  ASSERT_TRUE(write(fs, "a", "A")->sync());
  ASSERT_TRUE(write(fs, "b", "B")->sync());
  EXPECT_THAT(all_outcomes(fs, {"a", "b"}),
              ElementsAre("(none) (none)", "(none) B", "A (none)", "A B"));
}

TEST(CrashFileSystem, SyncDirectoryIsForThatDirectoryOnly) {
  CrashFileSystem fs;
  ASSERT_TRUE(fs.create_directory("d"));
  ASSERT_TRUE(fs.create_directory("e"));
  ASSERT_TRUE(fs.sync_directory("."));
  ASSERT_TRUE(write(fs, "d/f", "D")->sync());
  ASSERT_TRUE(write(fs, "e/f", "E")->sync());
  ASSERT_TRUE(fs.sync_directory("e"));
  EXPECT_EQ(after_losing_all(fs, {"d/f", "e/f"}), "(none) E");
}

TEST(CrashFileSystem, TheSameSeedGivesTheSameDisk) {
  CrashFileSystem fs;
  const auto file = write(fs, "f", pages_of('x', 20));
  for (const char* name : {"a", "b", "c", "d", "e"}) write(fs, name, name);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto once = fs.after_crash(LossPolicy::keep_random(seed));
    const auto again = fs.after_crash(LossPolicy::keep_random(seed));
    ASSERT_EQ(once->file_names(), again->file_names());
    for (const std::string& name : once->file_names())
      EXPECT_EQ(read(*once, name), read(*again, name));
  }
}

TEST(CrashFileSystem, WhatACrashLeftIsDurable) {
  CrashFileSystem fs;
  const auto file = write(fs, "f", pages_of('x', 3));
  write(fs, "g", "content");
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto left = fs.after_crash(LossPolicy::keep_random(seed));
    const std::string found = read(*left, "f") + " " + read(*left, "g");
    EXPECT_EQ(after_losing_all(*left, {"f", "g"}), found);
    EXPECT_THAT(all_outcomes(*left, {"f", "g"}), ElementsAre(found));
  }
}

// Crashing.

TEST(CrashFileSystem, CrashBeforeAnOperation) {
  CrashFileSystem fs;
  write_durable(fs, "a", "content");  // operations 0 to 3
  fs.crash_at(4);
  EXPECT_FALSE(fs.crashed());
  const auto renamed = fs.rename("a", "b");
  ASSERT_FALSE(renamed);
  EXPECT_EQ(renamed.error().code(), ErrorCode::system_failure);
  EXPECT_EQ(renamed.error().message(), "simulated crash");
  EXPECT_TRUE(fs.crashed());
  EXPECT_THAT(fs.file_names(), ElementsAre("a"));
}

TEST(CrashFileSystem, CrashAfterAnOperation) {
  CrashFileSystem fs;
  write_durable(fs, "a", "content");
  fs.crash_at(4, CrashTiming::after);
  EXPECT_FALSE(fs.rename("a", "b"));
  EXPECT_TRUE(fs.crashed());
  EXPECT_THAT(fs.file_names(), ElementsAre("b"));
}

TEST(CrashFileSystem, CrashAtAPastOperationIsACrashBeforeTheNext) {
  CrashFileSystem fs;
  write_durable(fs, "a", "content");
  fs.crash_at(0, CrashTiming::after);
  EXPECT_FALSE(fs.rename("a", "b"));
  EXPECT_TRUE(fs.crashed());
  EXPECT_THAT(fs.file_names(), ElementsAre("a"));
}

TEST(CrashFileSystem, NothingWorksAfterACrash) {
  CrashFileSystem fs;
  write_durable(fs, "f", "content");
  const auto writer = fs.create("g", WriteMode::buffered).value();
  const auto reader = fs.open_read("f").value();
  fs.crash_at(5);
  char c = 'x';
  EXPECT_FALSE(writer->append(&c, 1));
  EXPECT_FALSE(writer->append(&c, 1));
  EXPECT_FALSE(writer->sync());
  EXPECT_FALSE(reader->read_at(0, &c, 1));
  EXPECT_FALSE(reader->size());
  EXPECT_FALSE(fs.create("h", WriteMode::buffered));
  EXPECT_FALSE(fs.create_directory("d"));
  EXPECT_FALSE(fs.open_read("f"));
  EXPECT_FALSE(fs.rename("f", "h"));
  EXPECT_FALSE(fs.remove("f"));
  EXPECT_FALSE(fs.sync_directory("."));
  EXPECT_FALSE(fs.list("."));
  EXPECT_FALSE(fs.lock("lock"));
  EXPECT_EQ(fs.operations().size(), 6U);
  EXPECT_THAT(fs.file_names(), ElementsAre("f", "g"));
  EXPECT_EQ(fs.file_size("g"), 0U);
}

TEST(CrashFileSystem, OperationsAreRecorded) {
  CrashFileSystem fs;
  ASSERT_TRUE(fs.create_directory("d"));
  const auto lock = fs.lock("d/lock");
  const auto file = fs.create("d/f", WriteMode::buffered).value();
  append(*file, "abc");
  ASSERT_TRUE(file->sync());
  static_cast<void>(fs.create("d/g", WriteMode::direct_if_possible));
  ASSERT_TRUE(fs.rename("d/f", "d/h"));
  ASSERT_TRUE(fs.remove("d/h"));
  ASSERT_TRUE(fs.sync_directory("d"));
  static_cast<void>(fs.list("d"));  // reads do not count
  static_cast<void>(fs.open_read("d/g"));
  EXPECT_THAT(fs.operations(),
              ElementsAre("create directory 'd'", "lock 'd/lock'", "create 'd/f'",
                          "append 3 bytes to 'd/f'", "sync 'd/f'", "create 'd/g' (direct)",
                          "rename 'd/f' to 'd/h'", "remove 'd/h'", "sync directory 'd'"));
  EXPECT_EQ(fs.sync_count(), 2U);
}

// Failing operations.

TEST(CrashFileSystem, FailedOperationHasNoEffectAndTheNextWorks) {
  CrashFileSystem fs;
  write_durable(fs, "f", "content");
  const std::vector<std::function<Result<void>()>> operations{
      [&] { return fs.create_directory("d"); },
      [&] { return fs.rename("f", "g"); },
      [&] { return fs.remove("f"); },
      [&] { return fs.sync_directory("."); },
      [&]() -> Result<void> {
        auto file = fs.create("h", WriteMode::buffered);
        if (!file) return propagate(file);
        return {};
      },
      [&]() -> Result<void> {
        auto lock = fs.lock("lock");
        if (!lock) return propagate(lock);
        return {};
      }};
  for (const auto& operation : operations) {
    fs.fail_at(fs.operations().size(), ENOSPC);
    const auto failed = operation();
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), ErrorCode::no_space);
    EXPECT_EQ(failed.error().system_errno(), ENOSPC);
    EXPECT_THAT(fs.list(".").value(), ElementsAre("f"));
  }
  EXPECT_TRUE(fs.rename("f", "g"));
}

TEST(CrashFileSystem, AppendWithoutSpaceLeavesHalf) {
  CrashFileSystem fs;
  const auto file = fs.create("f", WriteMode::buffered).value();
  fs.fail_at(1, ENOSPC);
  const auto appended = file->append("12345678", 8);
  ASSERT_FALSE(appended);
  EXPECT_EQ(appended.error().code(), ErrorCode::no_space);
  EXPECT_THAT(appended.error().message(), HasSubstr("append 8 bytes to 'f'"));
  EXPECT_EQ(read(fs, "f"), "1234");
  append(*file, "abc");
  EXPECT_EQ(read(fs, "f"), "1234abc");
}

TEST(CrashFileSystem, AppendWithAnotherFailureLeavesNothing) {
  CrashFileSystem fs;
  const auto file = fs.create("f", WriteMode::buffered).value();
  fs.fail_at(1, EIO);
  const auto appended = file->append("12345678", 8);
  ASSERT_FALSE(appended);
  EXPECT_EQ(appended.error().system_errno(), EIO);
  EXPECT_EQ(read(fs, "f"), "");
}

TEST(CrashFileSystem, FailedSyncLosesTheContentAndTheNextSyncDoesNotTell) {
  CrashFileSystem fs;
  const auto file = fs.create("f", WriteMode::buffered).value();
  ASSERT_TRUE(fs.sync_directory("."));
  append(*file, "synced");
  ASSERT_TRUE(file->sync());
  append(*file, "lost");
  fs.fail_at(fs.operations().size(), EIO);
  ASSERT_FALSE(file->sync());
  ASSERT_TRUE(file->sync());
  EXPECT_EQ(read(fs, "f"), std::string("synced\0\0\0\0", 10));
  EXPECT_EQ(after_losing_all(fs, {"f"}), std::string("synced\0\0\0\0", 10));
}

TEST(CrashFileSystem, FailedSyncDirectorySyncsNothing) {
  CrashFileSystem fs;
  ASSERT_TRUE(write(fs, "f", "content")->sync());
  fs.fail_at(fs.operations().size(), EIO);
  ASSERT_FALSE(fs.sync_directory("."));
  EXPECT_EQ(after_losing_all(fs, {"f"}), kNone);
}

TEST(CrashFileSystem, IgnoredSyncSucceedsWithoutEffect) {
  CrashFileSystem fs;
  fs.ignore_sync(0);
  fs.ignore_sync(3);
  const auto file = fs.create("f", WriteMode::buffered).value();
  append(*file, "content");
  ASSERT_TRUE(file->sync());            // 0
  ASSERT_TRUE(fs.sync_directory("."));  // 1
  EXPECT_EQ(after_losing_all(fs, {"f"}), "");
  ASSERT_TRUE(file->sync());  // 2
  EXPECT_EQ(after_losing_all(fs, {"f"}), "content");
  ASSERT_TRUE(fs.rename("f", "g"));
  ASSERT_TRUE(fs.sync_directory("."));  // 3
  EXPECT_EQ(after_losing_all(fs, {"f"}), "content");
  EXPECT_EQ(fs.sync_count(), 4U);
}

TEST(CrashFileSystem, CapacityIsSharedByAllFiles) {
  CrashFileSystem fs;
  fs.capacity_bytes(10);
  const auto f = write(fs, "f", "123456");
  const auto g = fs.create("g", WriteMode::buffered).value();
  const auto appended = g->append("abcdef", 6);
  ASSERT_FALSE(appended);
  EXPECT_EQ(appended.error().code(), ErrorCode::no_space);
  EXPECT_EQ(read(fs, "g"), "abcd");
  EXPECT_FALSE(fs.clone()->create("h", WriteMode::buffered).value()->append("x", 1));
  ASSERT_TRUE(fs.remove("f"));
  append(*g, "efghij");
  EXPECT_EQ(read(fs, "g"), "abcdefghij");
}

TEST(CrashFileSystem, DirectAppendMustBeWholeAlignedPages) {
  CrashFileSystem fs;
  const auto file = fs.create("f", WriteMode::direct_if_possible).value();
  const std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(page_size(), 2 * page_size())), &std::free);
  std::fill_n(memory.get(), 2 * page_size(), 'x');
  EXPECT_TRUE(file->append(memory.get(), 2 * page_size()));
  EXPECT_EQ(file->append(memory.get() + 512, page_size()).error().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(file->append(memory.get(), 100).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(file->size().value(), 2 * page_size());
}

// Locks, copies, damage.

TEST(CrashFileSystem, CrashReleasesLocks) {
  CrashFileSystem fs;
  const auto held = fs.lock("lock");
  ASSERT_TRUE(held);
  ASSERT_TRUE(fs.sync_directory("."));
  EXPECT_EQ(fs.lock("lock").error().code(), ErrorCode::busy);
  EXPECT_TRUE(fs.after_crash(LossPolicy::drop_all())->lock("lock"));
  EXPECT_TRUE(fs.clone()->lock("lock"));
  EXPECT_EQ(fs.lock("lock").error().code(), ErrorCode::busy);
}

TEST(CrashFileSystem, CloneKeepsWhatIsUnsyncedAndIsIndependent) {
  CrashFileSystem fs;
  write_durable(fs, "f", "durable");
  write(fs, "g", "unsynced");
  fs.crash_at(100);
  const auto copy = fs.clone();
  EXPECT_THAT(copy->operations(), IsEmpty());
  EXPECT_EQ(copy->sync_count(), 0U);
  EXPECT_EQ(read(*copy, "g"), "unsynced");
  EXPECT_EQ(after_losing_all(*copy, {"f", "g"}), "durable (none)");
  EXPECT_THAT(all_outcomes(*copy, {"g"}), Contains("unsynced"));
  ASSERT_TRUE(copy->remove("f"));
  write_durable(*copy, "h", "in the copy only");
  EXPECT_THAT(fs.file_names(), ElementsAre("f", "g"));
  EXPECT_THAT(copy->file_names(), ElementsAre("g", "h"));
}

TEST(CrashFileSystem, DamageIsDurable) {
  CrashFileSystem fs;
  write_durable(fs, "f", "ABC");
  EXPECT_TRUE(fs.flip_bit("f", 1, 5));
  EXPECT_EQ(read(fs, "f"), "AbC");
  EXPECT_EQ(after_losing_all(fs, {"f"}), "AbC");
  EXPECT_TRUE(fs.truncate("f", 2));
  EXPECT_EQ(fs.file_size("f"), 2U);
  EXPECT_EQ(after_losing_all(fs, {"f"}), "Ab");
}

TEST(CrashFileSystem, ImpossibleDamageIsRefused) {
  CrashFileSystem fs;
  ASSERT_TRUE(fs.create_directory("d"));
  write_durable(fs, "f", "ABC");
  EXPECT_FALSE(fs.flip_bit("x", 0, 0));
  EXPECT_FALSE(fs.flip_bit("f", 3, 0));
  EXPECT_FALSE(fs.flip_bit("f", 0, 8));
  EXPECT_FALSE(fs.truncate("f", 4));
  EXPECT_FALSE(fs.truncate("x", 0));
  EXPECT_FALSE(fs.file_size("d"));
  EXPECT_EQ(read(fs, "f"), "ABC");
}

TEST(CrashFileSystem, FilesAndLocksMayOutliveIt) {
  auto fs = std::make_unique<CrashFileSystem>();
  auto lock = fs->lock("lock");
  const auto file = write(*fs, "f", "content");
  fs.reset();
  append(*file, " and more");
  EXPECT_TRUE(file->sync());
  EXPECT_EQ(file->size().value(), 16U);
  lock->reset();
}

TEST(CrashFileSystem, PathsAreNormalised) {
  CrashFileSystem fs;
  ASSERT_TRUE(fs.create_directory("/d/"));
  write(fs, "d//./f", "content");
  EXPECT_EQ(read(fs, "/d/../d/f"), "content");
  EXPECT_THAT(fs.file_names(), ElementsAre("d/f"));
  EXPECT_EQ(fs.create_directory("/").error().code(), ErrorCode::already_exists);
  EXPECT_EQ(fs.remove("/d/..").error().system_errno(), ENOTEMPTY);
}

TEST(CrashFileSystem, ThreadsMayUseItAtTheSameTime) {
  CrashFileSystem fs;
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kRounds = 100;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&fs, t] {
      const std::string name = "f" + std::to_string(t);
      for (std::size_t i = 0; i < kRounds; ++i) {
        const auto file = write(fs, name + "-new", std::to_string(i));
        EXPECT_TRUE(file->sync());
        EXPECT_TRUE(fs.rename(name + "-new", name));
        EXPECT_TRUE(fs.sync_directory("."));
        EXPECT_EQ(read(fs, name), std::to_string(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(fs.file_names(), ElementsAre("f0", "f1", "f2", "f3"));
  EXPECT_EQ(fs.operations().size(), kThreads * kRounds * 5);
  EXPECT_EQ(after_losing_all(fs, {"f0", "f1", "f2", "f3"}), "99 99 99 99");
}

// The model as a whole: replacing a file the textbook way survives a crash anywhere, and leaving
// out any of its syncs is noticed.

class ReplacingAFile : public ::testing::Test {
 protected:
  ReplacingAFile() { write_durable(initial_, "current", pages_of('o', 2)); }

  static void replace(FileSystem& fs) {
    const std::string content = pages_of('n', 2);
    auto file = fs.create("temporary", WriteMode::buffered);
    if (!file || !(*file)->append(content.data(), content.size()) || !(*file)->sync()) return;
    if (fs.rename("temporary", "current")) static_cast<void>(fs.sync_directory("."));
  }

  // What "current" holds after a crash at every operation and at the end, for some seeds. Also
  // whether the replacement, once done, was still there ("done: ...").
  std::set<std::string> outcomes(std::optional<std::size_t> ignored_sync) const {
    constexpr std::size_t kOperations = 5;
    std::set<std::string> result;
    for (std::size_t crash = 0; crash <= kOperations; ++crash) {
      for (const CrashTiming timing : {CrashTiming::before, CrashTiming::after}) {
        const auto fs = initial_.clone();
        if (ignored_sync) fs->ignore_sync(*ignored_sync);
        fs->crash_at(crash, timing);
        replace(*fs);
        EXPECT_EQ(fs->crashed(), crash < kOperations);
        EXPECT_EQ(fs->operations().size(), std::min(crash + 1, kOperations));
        for (std::uint64_t seed = 0; seed < 100; ++seed) {
          const auto left = fs->after_crash(LossPolicy::keep_random(seed));
          result.insert((fs->crashed() ? "" : "done: ") + describe(read(*left, "current")));
        }
        const auto left = fs->after_crash(LossPolicy::drop_all());
        result.insert((fs->crashed() ? "" : "done: ") + describe(read(*left, "current")));
      }
    }
    return result;
  }

  static std::string describe(const std::string& content) {
    if (content == pages_of('o', 2)) return "old";
    if (content == pages_of('n', 2)) return "new";
    return "broken";
  }

  CrashFileSystem initial_;
};

TEST_F(ReplacingAFile, SurvivesACrashAnywhere) {
  EXPECT_THAT(outcomes(std::nullopt), UnorderedElementsAre("old", "new", "done: new"));
}

TEST_F(ReplacingAFile, NeedsTheSyncOfTheContent) {
  EXPECT_THAT(outcomes(0), ::testing::AllOf(Contains("broken"), Contains("done: broken")));
}

TEST_F(ReplacingAFile, NeedsTheSyncOfTheDirectory) {
  EXPECT_THAT(outcomes(1), Contains("done: old"));
}

}  // namespace
}  // namespace pagetide
