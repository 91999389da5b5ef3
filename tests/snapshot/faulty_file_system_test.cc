#include "tests/support/faulty_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "tests/support/crash_file_system.h"

namespace pagetide {
namespace {

using ::testing::ElementsAre;

// One operation of each kind. Ends early where one fails; returns how many worked.
std::size_t run_scenario(FileSystem& fs, const std::string& root) {
  const std::string file_path = root + "/d/f";
  if (!fs.create_directory(root + "/d")) return 0;
  const auto lock = fs.lock(root + "/d/lock");
  if (!lock) return 1;
  auto file = fs.create(file_path, WriteMode::buffered);
  if (!file) return 2;
  if (!(*file)->append("content", 7)) return 3;
  if (!(*file)->sync()) return 4;
  if (!fs.rename(file_path, root + "/d/g")) return 5;
  if (!fs.sync_directory(root + "/d")) return 6;
  if (!fs.remove(root + "/d/g")) return 7;
  return 8;
}
constexpr std::size_t kScenarioOperations = 8;

TEST(FaultyFileSystem, SeesTheOperationsOfCrashFileSystem) {
  CrashFileSystem inner;
  std::vector<std::string> seen;
  FaultyFileSystem fs(inner, [&](std::size_t operation, std::string_view what) {
    EXPECT_EQ(operation, seen.size());
    seen.emplace_back(what);
    return Result<void>();
  });
  ASSERT_EQ(run_scenario(fs, ""), kScenarioOperations);
  ASSERT_TRUE(fs.create("/direct", WriteMode::direct_if_possible));
  EXPECT_EQ(seen, inner.operations());
  EXPECT_EQ(seen.size(), kScenarioOperations + 1);
}

TEST(FaultyFileSystem, FailsWithoutDoingTheOperation) {
  for (std::size_t fault = 0; fault < kScenarioOperations; ++fault) {
    CrashFileSystem inner;
    FaultyFileSystem fs(inner, [&](std::size_t operation, std::string_view what) -> Result<void> {
      if (operation == fault) return system_failure(what, EIO);
      return {};
    });
    EXPECT_EQ(run_scenario(fs, ""), fault);
    EXPECT_EQ(inner.operations().size(), fault);
  }
}

TEST(FaultyFileSystem, HandsTheErrorOfTheHookOn) {
  CrashFileSystem inner;
  FaultyFileSystem fs(inner, [](std::size_t, std::string_view what) -> Result<void> {
    return system_failure(what, ENOSPC);
  });
  const auto created = fs.create("f", WriteMode::buffered);
  ASSERT_FALSE(created);
  EXPECT_EQ(created.error().code(), ErrorCode::no_space);
  EXPECT_EQ(created.error().message(), "cannot create 'f': No space left on device");
}

TEST(FaultyFileSystem, FilesMayOutliveIt) {
  CrashFileSystem inner;
  std::size_t operations = 0;
  std::unique_ptr<File> file;
  {
    FaultyFileSystem fs(inner, [&](std::size_t, std::string_view) {
      ++operations;
      return Result<void>();
    });
    file = fs.create("f", WriteMode::buffered).value();
  }
  EXPECT_TRUE(file->append("x", 1));
  EXPECT_EQ(operations, 2U);
}

// What a process that is killed before each operation leaves on the real file system.
TEST(FaultyFileSystem, KillsAProcessBetweenTwoOperations) {
  for (std::size_t fatal = 0; fatal < kScenarioOperations; ++fatal) {
    std::string root = std::filesystem::temp_directory_path() / "pagetide-test-XXXXXX";
    ASSERT_NE(::mkdtemp(root.data()), nullptr);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FaultyFileSystem fs(posix_file_system(), [&](std::size_t operation, std::string_view) {
        if (operation == fatal) ::kill(::getpid(), SIGKILL);
        return Result<void>();
      });
      run_scenario(fs, root);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    const std::filesystem::path directory = root + "/d";
    EXPECT_EQ(std::filesystem::exists(directory), fatal > 0);
    EXPECT_EQ(std::filesystem::exists(directory / "lock"), fatal > 1);
    EXPECT_EQ(std::filesystem::exists(directory / "f"), fatal > 2 && fatal <= 5);
    EXPECT_EQ(std::filesystem::exists(directory / "g"), fatal > 5);
    if (std::filesystem::exists(directory / "f")) {
      EXPECT_EQ(std::filesystem::file_size(directory / "f"), fatal > 3 ? 7U : 0U);
    }
    std::filesystem::remove_all(root);
  }
}

}  // namespace
}  // namespace pagetide
