// The example as its users run it: to its end, killed at all kinds of moments, as an unprivileged
// user, and with wrong input.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "examples/package_index/session.h"
#include "tests/examples/sample_input.h"
#include "tests/support/must.h"
#include "tests/support/run_program.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace package_index {
namespace {

using pagetide::must;
using pagetide::RunOptions;
using pagetide::SnapshotId;
using pagetide::Store;
using pagetide::StoreMode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kRounds = 3;
// A commit is 13 changes of files: segment (create, header, pages, sync), manifest (create,
// content, sync), directory, root (create, content, sync, rename), directory.
constexpr std::uint64_t kFileOperations = 13;
// A new store is 8: its directory, the lock, the root (5) and the directory above.
constexpr std::uint64_t kOpeningFileOperations = 8;

bool is_soak() {
  return std::getenv("PAGETIDE_SOAK") != nullptr;
}

bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

// How a program ended, and what it wrote to standard output and then to standard error.
struct RunResult {
  int exit_code = -1;
  int signal = 0;
  std::string output;
};
RunResult run_command(const std::vector<std::string>& command, const RunOptions& options = {}) {
  const pagetide::RunResult result = pagetide::run_program(command, options);
  return {result.exit_code, result.signal, result.out + result.err};
}

class PackageIndexTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    suite_directory_ = new pagetide::TemporaryDirectory();
    const std::size_t records = is_sanitized() ? 600 : 3000;
    input_ = write_sample_input(suite_directory_->file("input"), records,
                                is_soak() ? SIZE_MAX : records);
    std::printf("input: %s\n", input_.origin.c_str());
  }
  static void TearDownTestSuite() {
    delete suite_directory_;
    suite_directory_ = nullptr;
  }

  static std::string input() { return suite_directory_->file("input"); }
  std::string store() const { return directory_.file("store"); }
  static std::size_t snapshot_every() { return input_.records / 6 + 1; }
  // Snapshots of a run from the beginning to the end.
  static std::size_t snapshots_in_all() { return input_.records / snapshot_every() + 1 + kRounds; }

  // The example over the sample input and this test's store, but for what the options say.
  std::vector<std::string> command(const std::vector<std::string>& options = {}) const {
    std::vector<std::string> words = {PACKAGE_INDEX_PATH, "--store", store()};
    const auto add_default = [&](const std::string& option, const std::string& value) {
      if (std::find(options.begin(), options.end(), option) != options.end()) return;
      words.insert(words.end(), {option, value});
    };
    add_default("--input", input());
    add_default("--rounds", std::to_string(kRounds));
    add_default("--snapshot-every", std::to_string(snapshot_every()));
    words.insert(words.end(), options.begin(), options.end());
    return words;
  }
  RunResult run(const std::vector<std::string>& more = {}) const {
    return run_command(command(more));
  }

  // The newest snapshot; nothing when none was committed yet.
  std::optional<SnapshotId> newest() const {
    auto opened = Store::open(store(), {StoreMode::read});
    if (!opened) return std::nullopt;
    auto id = opened->latest();
    return id ? std::optional(*id) : std::nullopt;
  }

  // Everything that must hold of a store whose writer may have died at any moment: it verifies,
  // its newest snapshot opens, and the index in that is what the input gives up to there.
  // Returns what does not hold.
  static std::string problem_of(const std::string& path, const std::string& input_path) {
    auto opened = Store::open(path, {StoreMode::read});
    if (!opened) return opened.error().message();
    auto report = pagetide::verify(*opened);
    if (!report) return report.error().message();
    if (!report->sound()) return report->problems.front().message();
    auto id = opened->latest();
    if (!id) return id.error().message();
    auto index = open_index(*opened, *id);
    if (!index) return index.error().message();
    if (auto checked = index->arena.heap().check(); !checked) return checked.error().message();
    auto replay = Replay::read(input_path, *index->progress);
    if (!replay) return replay.error().message();
    const auto found = differences(*index->graph, replay->at(*index->progress));
    return found.empty() ? std::string() : found.front();
  }

  // The last snapshot that the program said it had committed; 0 when it said nothing.
  static std::uint64_t last_reported(const std::string& output) {
    static const std::regex kRow(R"re(^ +(\d+)  .* ms +\d+ ms$)re");
    std::istringstream lines(output);
    std::uint64_t last = 0;
    for (std::string line; std::getline(lines, line);) {
      std::smatch match;
      if (std::regex_match(line, match, kRow)) last = std::stoull(match[1]);
    }
    return last;
  }

  // After a kill: nothing that was there or was reported is lost, and what is there is right.
  void expect_survived(std::uint64_t before, const std::string& output) const {
    const std::uint64_t reported = std::max(before, last_reported(output));
    const std::uint64_t found = newest().value_or(SnapshotId{0}).value;
    EXPECT_GE(found, reported) << output;
    EXPECT_LE(found, reported + 1) << output;  // committed, but dead before it could say so
    if (found == 0) return;
    EXPECT_EQ(problem_of(store(), input()), "") << output;
  }

  static inline pagetide::TemporaryDirectory* suite_directory_ = nullptr;
  static inline SampleInput input_;
  pagetide::TemporaryDirectory directory_;
};

TEST_F(PackageIndexTest, runs_from_the_beginning_to_the_end) {
  const RunResult result = run({"--query", "no-such-package"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("is empty; building the index from " + input()));
  EXPECT_THAT(result.output, HasSubstr("compared with a fresh parse: all "));
  EXPECT_THAT(result.output, HasSubstr("no problem"));
  EXPECT_THAT(result.output, HasSubstr("rollback in place:"));
  EXPECT_THAT(result.output, HasSubstr("both times compared with a fresh parse: equal"));
  EXPECT_THAT(result.output, HasSubstr("no-such-package: the index has no such package"));
  EXPECT_EQ(newest(), SnapshotId{snapshots_in_all()});
  EXPECT_EQ(last_reported(result.output), snapshots_in_all());
  EXPECT_EQ(problem_of(store(), input()), "");
}

TEST_F(PackageIndexTest, a_later_run_adds_only_what_is_missing) {
  ASSERT_EQ(run().exit_code, 0);
  const auto before = newest();
  const RunResult again = run();
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("reopened snapshot"));
  EXPECT_EQ(newest(), before);

  const RunResult more_rounds = run({"--rounds", std::to_string(kRounds + 2)});
  EXPECT_EQ(more_rounds.exit_code, 0) << more_rounds.output;
  EXPECT_EQ(newest(), SnapshotId{before->value + 2});
  EXPECT_EQ(problem_of(store(), input()), "");
}

TEST_F(PackageIndexTest, writes_little_for_a_round_of_updates) {
  ASSERT_EQ(run().exit_code, 0);
  Store opened = must(Store::open(store(), {StoreMode::read}));
  const auto last = must(opened.info(must(opened.latest())));
  EXPECT_GT(last.changed_pages, 0U);
  EXPECT_LT(last.changed_pages * last.page_bytes, last.heap_bytes / 2);
}

TEST_F(PackageIndexTest, answers_before_it_opens_any_input) {
  const RunResult killed = run({"--kill-at", "commit:3:5"});
  ASSERT_EQ(killed.signal, SIGKILL) << killed.output;

  const RunResult answered =
      run({"--input", "/nonexistent/input", "--queries-only", "--query", "libc6"});
  EXPECT_EQ(answered.exit_code, 0) << answered.output;
  EXPECT_THAT(answered.output, HasSubstr("reopened snapshot 2 of "));
  EXPECT_THAT(answered.output, HasSubstr("packages that name libc6"));

  // Without --queries-only the same answers come first, and then the input is missed.
  const RunResult failed = run({"--input", "/nonexistent/input"});
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_THAT(failed.output, HasSubstr("packages that name libc6"));
  EXPECT_THAT(failed.output, HasSubstr("cannot open the package index /nonexistent/input"));
}

TEST_F(PackageIndexTest, goes_on_where_the_snapshot_stands) {
  ASSERT_EQ(run({"--kill-at", "commit:3:5"}).signal, SIGKILL);
  const RunResult result = run();
  EXPECT_EQ(result.exit_code, 0) << result.output;
  const std::string done = grouped(2 * snapshot_every());
  EXPECT_THAT(result.output,
              HasSubstr("the first " + done + " records of " + input() + " are all in the heap"));
  EXPECT_EQ(newest(), SnapshotId{snapshots_in_all()});

  ASSERT_EQ(run({"--rounds", "9", "--kill-at", "commit:2:12"}).signal, SIGKILL);
  const RunResult in_rounds = run({"--rounds", "9"});
  EXPECT_EQ(in_rounds.exit_code, 0) << in_rounds.output;
  EXPECT_THAT(in_rounds.output, HasSubstr("round " + std::to_string(kRounds + 2) + ":"));
  EXPECT_EQ(newest(), SnapshotId{snapshots_in_all() + 9 - kRounds});
}

TEST_F(PackageIndexTest, survives_a_kill_at_each_step_of_a_commit) {
  // Small runs, each from the beginning, killed while the store is made or in one of the first
  // two commits.
  const std::vector<std::string> small = {"--limit", "200",      "--snapshot-every",
                                          "80",      "--rounds", "1"};
  for (std::uint64_t commit = 0; commit <= 2; ++commit) {
    std::uint64_t step = 1;
    for (bool was_killed = true; was_killed; ++step) {
      std::filesystem::remove_all(store());
      std::vector<std::string> options = small;
      const std::string at = "commit:" + std::to_string(commit) + ":" + std::to_string(step);
      options.insert(options.end(), {"--kill-at", at});
      const RunResult result = run(options);
      was_killed = result.signal == SIGKILL;
      EXPECT_EQ(result.exit_code, was_killed ? -1 : 0) << at << "\n" << result.output;
      expect_survived(0, result.output);
      const RunResult completed = run(small);
      EXPECT_EQ(completed.exit_code, 0) << at << "\n" << completed.output;
    }
    // The last step was past the end, where nothing kills.
    const std::uint64_t steps = step - 2;
    EXPECT_EQ(steps, commit == 0 ? kOpeningFileOperations : kFileOperations);
  }
}

// A random moment in one of three ways: after a number of records and updates, inside a commit,
// or from outside at any time.
RunResult run_to_random_kill(std::mt19937_64& random, std::chrono::microseconds whole_run,
                             std::size_t operations, std::size_t commits,
                             std::vector<std::string> command, std::string& moment) {
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  RunOptions options;
  switch (below(3)) {
    case 0:
      moment = std::to_string(1 + below(operations));
      command.insert(command.end(), {"--kill-at", moment});
      break;
    case 1:
      moment = "commit:" + std::to_string(1 + below(commits)) + ":" +
               std::to_string(1 + below(kFileOperations));
      command.insert(command.end(), {"--kill-at", moment});
      break;
    default: {
      const std::chrono::microseconds wait(below(static_cast<std::uint64_t>(whole_run.count())));
      moment = std::to_string(wait.count()) + " us";
      options.on_start = [wait](pid_t pid) {
        std::this_thread::sleep_for(wait);
        ::kill(pid, SIGKILL);  // harmless when it has ended: nobody has waited for it yet
      };
    }
  }
  return run_command(command, options);
}

TEST_F(PackageIndexTest, survives_a_kill_at_random_moments) {
  std::mt19937_64 random(pagetide::test_seed());
  const auto started = std::chrono::steady_clock::now();
  ASSERT_EQ(run().exit_code, 0);
  const auto whole_run = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - started);
  std::filesystem::remove_all(store());

  const std::size_t wanted = is_soak() ? 200 : 20;
  std::size_t kills = 0;
  std::size_t runs = 0;
  while (kills < wanted && !HasFailure()) {
    ++runs;
    const std::uint64_t before = newest().value_or(SnapshotId{0}).value;
    std::string moment;
    const RunResult result =
        run_to_random_kill(random, whole_run, input_.records + input_.records / 50,
                           snapshots_in_all(), command(), moment);
    SCOPED_TRACE("killed at " + moment);
    if (result.signal == SIGKILL) {
      ++kills;
      // Not for having taken a minute.
      EXPECT_TRUE(moment.ends_with(" us") || result.output.find("killing") != std::string::npos);
      expect_survived(before, result.output);
      if (random() % 2 == 0) continue;  // the next run goes on, and may be killed as well
      const RunResult completed = run();
      EXPECT_EQ(completed.exit_code, 0) << completed.output;
      EXPECT_THAT(completed.output, HasSubstr("compared with a fresh parse: all "));
    } else {
      EXPECT_EQ(result.exit_code, 0) << result.output;
    }
    EXPECT_EQ(problem_of(store(), input()), "");
    std::filesystem::remove_all(store());
  }
  std::printf("%zu kills in %zu runs\n", kills, runs);
}

TEST_F(PackageIndexTest, runs_as_an_unprivileged_user) {
  if (::geteuid() != 0) {
    // Then all the other tests do. What is left is to see that the store is this user's alone.
    ASSERT_EQ(run().exit_code, 0);
  } else {
    const std::string program = directory_.file("package_index");
    std::filesystem::copy_file(PACKAGE_INDEX_PATH, program);
    std::filesystem::copy_file(PAGETIDE_LIBRARY_PATH, directory_.file(PAGETIDE_LIBRARY_NAME));
    std::filesystem::copy_file(input(), directory_.file("input"));
    const passwd* nobody = ::getpwnam("nobody");
    ASSERT_NE(nobody, nullptr);
    ASSERT_EQ(::chown(directory_.path().c_str(), nobody->pw_uid, nobody->pw_gid), 0);

    const auto run_as_nobody = [&](std::vector<std::string> more) {
      more.insert(more.end(), {"--input", directory_.file("input")});
      std::vector<std::string> words = command(more);
      words.front() = program;
      words.insert(words.begin(), {"setpriv", "--reuid", std::to_string(nobody->pw_uid), "--regid",
                                   std::to_string(nobody->pw_gid), "--clear-groups"});
      return run_command(words, {.environment = {{"LD_LIBRARY_PATH", directory_.path()}},
                                 .directory = directory_.path()});
    };
    const RunResult killed = run_as_nobody({"--kill-at", "commit:4:3"});
    ASSERT_EQ(killed.signal, SIGKILL) << killed.output;
    const RunResult result = run_as_nobody({});
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("reopened snapshot 3 of "));
    struct stat status {};
    ASSERT_EQ(::stat(store().c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, nobody->pw_uid);
  }
  EXPECT_EQ(newest(), SnapshotId{snapshots_in_all()});
  EXPECT_EQ(problem_of(store(), input()), "");
}

TEST_F(PackageIndexTest, notices_that_the_input_changed) {
  ASSERT_EQ(run({"--kill-at", "commit:3:5"}).signal, SIGKILL);
  const std::string changed = directory_.file("changed");
  {
    std::ifstream from(input());
    std::ofstream to(changed);
    bool done = false;
    for (std::string line; std::getline(from, line);) {
      if (!done && line.starts_with("Version: ")) {
        line += "~";
        done = true;
      }
      to << line << '\n';
    }
    ASSERT_TRUE(done);
  }
  const RunResult in_load = run({"--input", changed});
  EXPECT_EQ(in_load.exit_code, 1);
  EXPECT_THAT(in_load.output, HasSubstr("its records differ. The package lists were refreshed"));

  ASSERT_EQ(run().exit_code, 0);
  const RunResult at_the_end = run({"--input", changed});
  EXPECT_EQ(at_the_end.exit_code, 1);
  EXPECT_THAT(at_the_end.output, HasSubstr("its records differ"));

  std::ofstream(changed) << "Package: only\nVersion: 1\n\n";
  EXPECT_THAT(run({"--input", changed}).output, HasSubstr("it has fewer records"));

  std::filesystem::copy_file(input(), changed, std::filesystem::copy_options::overwrite_existing);
  std::ofstream(changed, std::ios::app) << "\nPackage: one-more\nVersion: 1\n\n";
  EXPECT_THAT(run({"--input", changed}).output, HasSubstr("it has more records"));
}

TEST_F(PackageIndexTest, says_what_is_wrong_with_its_input) {
  const std::string file = directory_.file("wrong");
  std::ofstream(file) << "";
  const RunResult empty = run({"--input", file});
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_THAT(empty.output, HasSubstr("has no package in it. Fetch the package lists as root with "
                                      "`apt-get update`"));

  std::ofstream(file) << "#!/bin/sh\necho hello\n";
  const RunResult script = run({"--input", file});
  EXPECT_EQ(script.exit_code, 1);
  EXPECT_THAT(script.output, HasSubstr("line 1: '#!/bin/sh' is no line of a package index"));
}

TEST_F(PackageIndexTest, says_when_apt_cache_is_missing) {
  const RunResult result = run_command({PACKAGE_INDEX_PATH, "--store", store()},
                                       {.environment = {{"PATH", "/nonexistent"}}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("cannot run apt-cache"));
  EXPECT_THAT(result.output, HasSubstr("--input FILE"));
}

TEST_F(PackageIndexTest, refuses_the_store_of_another_program) {
  {
    auto arena = must(pagetide::Arena::create({.name = "other", .reserve_bytes = 1 << 26}));
    Store other = must(Store::open(store()));
    must(pagetide::Snapshotter(arena, other).take());
  }
  const RunResult result = run();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("holds the arena 'other' of another program"));
  EXPECT_EQ(newest(), SnapshotId{1});
}

TEST_F(PackageIndexTest, leaves_a_full_heap_with_its_last_snapshot) {
  const RunResult full = run({"--reserve", "1MiB", "--snapshot-every", "50"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.output, HasSubstr("Begin a new store with a larger --reserve"));
  EXPECT_EQ(newest(), SnapshotId{last_reported(full.output)});
  EXPECT_EQ(problem_of(store(), input()), "");
}

TEST_F(PackageIndexTest, tells_wrong_usage_by_its_exit_status) {
  EXPECT_EQ(run({"--kill-at", "soon"}).exit_code, 2);
  EXPECT_EQ(run({"--kill-at", "commit:1:0"}).exit_code, 2);
  EXPECT_EQ(run({"--snapshot-every", "0"}).exit_code, 2);
  EXPECT_EQ(run({"--no-such-option"}).exit_code, 2);
  EXPECT_EQ(run({"--help"}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(store()));
}

TEST_F(PackageIndexTest, says_nothing_when_quiet) {
  const RunResult result = run({"--quiet", "--limit", "100"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, IsEmpty());
}

TEST(FirstProgram, remembers_over_processes) {
  const pagetide::TemporaryDirectory directory;
  const RunOptions there = {.directory = directory.path()};
  const RunResult first = run_command({FIRST_PROGRAM_PATH, "pear", "apple", "pear"}, there);
  EXPECT_EQ(first.exit_code, 0);
  EXPECT_EQ(first.output, "apple 1\npear 2\nsnapshot 1\n");
  const RunResult second = run_command({FIRST_PROGRAM_PATH, "apple", "fig"}, there);
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_EQ(second.output, "apple 2\nfig 1\npear 2\nsnapshot 2\n");
}

}  // namespace
}  // namespace package_index
