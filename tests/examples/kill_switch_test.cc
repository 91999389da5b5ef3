#include "examples/package_index/kill_switch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/must.h"
#include "tests/support/temporary_directory.h"

namespace package_index {
namespace {

using pagetide::must;
using pagetide::run_in_child;
using pagetide::WriteMode;
using ::testing::HasSubstr;

TEST(ParseKillPoint, reads_a_number_of_operations) {
  const KillPoint point = must(parse_kill_point("1234"));
  EXPECT_EQ(point.at, KillPoint::At::operation);
  EXPECT_EQ(point.operation, 1234U);
}

TEST(ParseKillPoint, reads_a_place_in_a_commit) {
  const KillPoint point = must(parse_kill_point("commit:4:12"));
  EXPECT_EQ(point.at, KillPoint::At::file_operation);
  EXPECT_EQ(point.commit, 4U);
  EXPECT_EQ(point.file_operation, 12U);
}

TEST(ParseKillPoint, refuses_everything_else) {
  for (const char* text :
       {"", "0", "-1", "1x", " 1", "commit", "commit:", "commit:1", "commit:1:", "commit::1",
        "commit:1:0", "commit:1:2:3", "commit:a:1", "99999999999999999999"}) {
    const auto point = parse_kill_point(text);
    ASSERT_FALSE(point) << text;
    EXPECT_THAT(point.error().message(), HasSubstr("commit:S:OP"));
  }
}

TEST(KillSwitch, kills_after_the_operation) {
  EXPECT_EQ(run_in_child([] {
              KillSwitch kill_switch(must(parse_kill_point("3")));
              kill_switch.operation_applied();
              kill_switch.operation_applied();
              return std::string("alive");
            }),
            "alive");
  EXPECT_EQ(run_in_child([] {
              KillSwitch kill_switch(must(parse_kill_point("3")));
              for (int i = 0; i < 3; ++i) kill_switch.operation_applied();
              return std::string("alive");
            }),
            "killed by SIGKILL");
}

// In a child: some changes of files in the first commit, with the switch set to this point.
std::string change_files(const std::string& directory, const std::string& point) {
  KillSwitch kill_switch(must(parse_kill_point(point)));
  KillingFileSystem files(pagetide::posix_file_system(), kill_switch);
  kill_switch.commit_begins();
  {
    auto file = must(files.create(directory + "/a", WriteMode::buffered));  // 1
    const std::string content(10 * 65536, 'x');
    must(file->append(content.data(), content.size()));  // 2
    must(file->sync());                                  // 3
  }
  must(files.rename(directory + "/a", directory + "/b"));  // 4
  must(files.sync_directory(directory));                   // 5
  must(files.remove(directory + "/b"));                    // 6
  must(files.create_directory(directory + "/c"));          // 7
  must(files.lock(directory + "/l"));                      // 8
  return "alive";
}

class KillingFileSystemTest : public ::testing::Test {
 protected:
  std::string run(const std::string& point) {
    return run_in_child([&] { return change_files(directory_.path(), point); });
  }
  std::vector<std::string> names() {
    auto names = must(pagetide::posix_file_system().list(directory_.path()));
    std::sort(names.begin(), names.end());
    return names;
  }

  pagetide::TemporaryDirectory directory_;
};

TEST_F(KillingFileSystemTest, kills_before_each_change_of_a_file) {
  for (int operation = 1; operation <= 8; ++operation) {
    EXPECT_EQ(run("commit:1:" + std::to_string(operation)), "killed by SIGKILL") << operation;
    std::filesystem::remove(directory_.file("c"));
  }
  EXPECT_EQ(run("commit:1:9"), "alive");
  std::filesystem::remove(directory_.file("c"));
  EXPECT_EQ(run("commit:2:1"), "alive");
}

TEST_F(KillingFileSystemTest, leaves_what_was_done_before) {
  ASSERT_EQ(run("commit:1:1"), "killed by SIGKILL");
  EXPECT_THAT(names(), ::testing::IsEmpty());
  ASSERT_EQ(run("commit:1:4"), "killed by SIGKILL");
  EXPECT_THAT(names(), ::testing::ElementsAre("a"));
  ASSERT_EQ(run("commit:1:5"), "killed by SIGKILL");
  EXPECT_THAT(names(), ::testing::ElementsAre("b"));
}

TEST_F(KillingFileSystemTest, leaves_half_of_an_append) {
  ASSERT_EQ(run("commit:1:2"), "killed by SIGKILL");
  EXPECT_EQ(std::filesystem::file_size(directory_.file("a")), 5 * 65536U);
}

}  // namespace
}  // namespace package_index
