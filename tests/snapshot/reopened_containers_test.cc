// Containers with pagetide::allocator in an arena, opened by programs that begin anew.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/run_program.h"
#include "tests/support/temporary_directory.h"

namespace pagetide {
namespace {

using ::testing::HasSubstr;

class ReopenedContainers : public testing::Test {
 protected:
  RunResult run(const std::string& verb) const {
    RunResult result = run_program({REOPENED_CONTAINERS_PATH, directory_.file("store"), verb});
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    return result;
  }

  // The rest of the line that begins with `name`.
  static std::string value_of(const std::string& name, const RunResult& result) {
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with(name + " ")) return line.substr(name.size() + 1);
    }
    return "none in " + result.out;
  }

 private:
  TemporaryDirectory directory_;
};

TEST_F(ReopenedContainers, grow_over_processes) {
  for (int i = 1; i <= 4; ++i) {
    EXPECT_THAT(run("grow").out, HasSubstr(std::to_string(1000 * i) + " numbers\n"));
  }
}

// The first two facts are what makes these tests mean something.
TEST_F(ReopenedContainers, find_the_arenas_resource_though_its_heap_is_elsewhere) {
  std::set<std::string> heaps;
  std::set<std::string> resources;
  for (int i = 0; i < 3; ++i) {
    const RunResult result = run("grow");
    heaps.insert(value_of("heap", result));
    resources.insert(value_of("resource", result));
  }
  EXPECT_EQ(resources.size(), 1U);
  EXPECT_EQ(heaps.size(), 3U);
}

TEST_F(ReopenedContainers, free_what_other_processes_allocated) {
  run("grow");
  EXPECT_GT(std::stoul(value_of("live blocks", run("grow"))), 1000U);
  EXPECT_EQ(value_of("live blocks", run("empty")), "0");
}

}  // namespace
}  // namespace pagetide
