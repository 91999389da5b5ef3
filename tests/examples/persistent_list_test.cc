// The C example of an arena as its users run it, and killed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/random_source.h"
#include "tests/support/run_program.h"
#include "tests/support/temporary_directory.h"

namespace pagetide {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class PersistentList : public testing::Test {
 protected:
  RunResult run(std::vector<std::string> words, const RunOptions& options = {}) const {
    words.insert(words.begin(), {PERSISTENT_LIST_PATH, directory_.file("store")});
    return run_program(words, options);
  }
  // What a run prints that only looks.
  std::string list() const {
    const RunResult result = run({});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }

 private:
  TemporaryDirectory directory_;
};

TEST_F(PersistentList, remembers_over_processes) {
  const RunResult first = run({"one", "two"});
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.out, "0 words:\none saved in snapshot 1\ntwo saved in snapshot 2\n");
  const RunResult second = run({"three", "-one"});
  EXPECT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.out, "2 words: one two\nthree saved in snapshot 3\n-one saved in snapshot 4\n");
  EXPECT_EQ(list(), "2 words: two three\n");
}

TEST_F(PersistentList, survives_a_kill_without_what_was_not_saved) {
  ASSERT_EQ(run({"one", "two"}).exit_code, 0);
  const RunResult killed = run({"three", "--crash", "four"});
  EXPECT_EQ(killed.signal, SIGKILL);
  EXPECT_EQ(killed.out, "2 words: one two\nthree saved in snapshot 3\n");
  EXPECT_EQ(list(), "3 words: one two three\n");
  EXPECT_EQ(run({"five"}).out, "3 words: one two three\nfive saved in snapshot 4\n");
}

// How many of the words a run reported as saved.
std::size_t saved_in(const std::string& out) {
  std::size_t saved = 0;
  for (std::size_t at = 0; (at = out.find(" saved in ", at)) != std::string::npos; ++at) ++saved;
  return saved;
}

// The line that lists the first `count` words of a long run.
std::string listed(std::size_t count) {
  std::ostringstream line;
  line << count << " words:";
  for (std::size_t i = 0; i < count; ++i) line << " word" << i;
  line << "\n";
  return line.str();
}

TEST_F(PersistentList, survives_kills_at_random_moments) {
  RandomSource random;
  constexpr std::size_t kWords = 2000;
  std::size_t done = 0;
  for (int kill = 0; kill < 8 && done < kWords; ++kill) {
    std::vector<std::string> words;
    for (std::size_t i = done; i < kWords; ++i) words.push_back("word" + std::to_string(i));
    const std::chrono::microseconds wait(random.below(100'000));
    const RunResult result =
        run(words, {.on_start = [&](pid_t pid) {
              std::this_thread::sleep_for(wait);
              ::kill(pid, SIGKILL);  // harmless when it has ended: nobody has waited for it yet
            }});
    ASSERT_TRUE(result.signal == SIGKILL || result.exit_code == 0) << result.err;
    // Committed, but dead before it could say so.
    const std::size_t reported = done + saved_in(result.out);
    const std::string now = list();
    ASSERT_TRUE(now == listed(reported) || now == listed(reported + 1)) << now;
    done = now == listed(reported) ? reported : reported + 1;
  }
}

TEST_F(PersistentList, says_what_is_wrong) {
  const RunResult unnamed = run_program({PERSISTENT_LIST_PATH});
  EXPECT_EQ(unnamed.exit_code, 2);
  EXPECT_THAT(unnamed.err, StartsWith("usage: "));
  const RunResult nowhere = run_program({PERSISTENT_LIST_PATH, "/nonexistent/store"});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_THAT(nowhere.err, StartsWith("persistent_list: cannot "));
  EXPECT_THAT(nowhere.err, HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace pagetide
