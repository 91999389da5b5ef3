// SQLite in an arena: the example as its users run it, and its parts. SQLite's settings are those
// of a process, so that each test of a part runs in a child.

#include "examples/sqlite_memory/database.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "examples/sqlite_memory/bank.h"
#include "examples/sqlite_memory/sqlite_setup.h"
#include "examples/sqlite_memory/static_pointers.h"
#include "pagetide/pagetide.hpp"
#include "tests/support/child_process.h"
#include "tests/support/must.h"
#include "tests/support/run_program.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_scale.h"

namespace sqlite_memory {
namespace {

using pagetide::must;
using pagetide::run_in_child;
using pagetide::run_program;
using pagetide::RunOptions;
using pagetide::RunResult;
using pagetide::scaled;
using pagetide::SnapshotInfo;
using pagetide::Store;
using pagetide::StoreMode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Json = nlohmann::json;

class SqliteMemoryTest : public ::testing::Test {
 protected:
  std::string store() const { return directory_.file("store"); }
  RunResult run(const std::vector<std::string>& more, const RunOptions& options = {}) const {
    std::vector<std::string> command = {SQLITE_MEMORY_PATH, "--store", store()};
    command.insert(command.end(), more.begin(), more.end());
    return run_program(command, options);
  }
  // The document of a run that went well.
  Json run_json(std::vector<std::string> more, const RunOptions& options = {}) const {
    more.emplace_back("--json");
    const RunResult result = run(more, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out, nullptr, false);
  }

  pagetide::TemporaryDirectory directory_;
};

// What SQLite's own allocator gives after as many transactions.
std::string plain_hash(const Json& run) {
  const RunResult plain = run_program({SQLITE_MEMORY_PATH, "--json", "--plain",
                                       std::to_string(run["last"]["transactions"].get<int>()),
                                       "--accounts", std::to_string(run["accounts"].get<int>()),
                                       "--seed", std::to_string(run["seed"].get<std::uint64_t>())});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  return Json::parse(plain.out)["last"]["hash"];
}

TEST_F(SqliteMemoryTest, each_rollback_gives_the_content_noted_at_the_snapshot) {
  const Json run = run_json({"--rounds", "8", "--transactions", "40", "--accounts", "500"});
  ASSERT_THAT(run["rounds"], SizeIs(8));
  std::vector<Json> noted;
  std::size_t real_changes = 0;
  for (const Json& round : run["rounds"]) {
    noted.push_back(round["at"]);
    const auto target = round["rolled_back_to"].get<std::size_t>();
    ASSERT_LE(target, noted.size());
    EXPECT_EQ(round["to"], noted[target - 1]) << round;
    if (round["from"]["hash"] != round["to"]["hash"]) ++real_changes;
  }
  // The workload may have come just as far as where a rollback leads to, but not each time.
  EXPECT_GT(real_changes, 0U);
}

TEST_F(SqliteMemoryTest, survives_hundreds_of_rollbacks) {
  // More under ./dev soak by more runs: one that takes a minute is killed.
  const std::string rounds = std::to_string(std::min<std::size_t>(scaled(200), 200));
  const std::uint64_t seed = pagetide::test_seed();
  for (std::size_t i = 0; i < scaled(1); ++i) {
    std::filesystem::remove_all(store());
    const Json run = run_json({"--rounds", rounds, "--transactions", "5", "--accounts", "200",
                               "--seed", std::to_string(seed + i)});
    EXPECT_EQ(std::to_string(run["rounds"].size()), rounds);
    EXPECT_EQ(run["last"]["hash"], plain_hash(run));
  }
}

TEST_F(SqliteMemoryTest, after_all_rollbacks_the_database_is_that_of_a_run_without_any) {
  const Json run = run_json({"--rounds", "6", "--transactions", "60"});
  EXPECT_GT(run["transactions_run"], run["last"]["transactions"]);
  EXPECT_EQ(run["last"]["hash"], plain_hash(run));
}

TEST_F(SqliteMemoryTest, works_where_pages_are_compared) {
  const Json run = run_json({"--rounds", "4", "--transactions", "20", "--accounts", "200"},
                            {.environment = {{"PAGETIDE_DISABLE", "userfaultfd"}}});
  EXPECT_THAT(run["rounds"], SizeIs(4));
  EXPECT_EQ(run["last"]["hash"], plain_hash(run));
}

TEST_F(SqliteMemoryTest, leaves_a_sound_store_whose_snapshots_hold_code_addresses) {
  ASSERT_EQ(run({"--rounds", "3", "--accounts", "200"}).exit_code, 0);
  Store opened = must(Store::open(store(), {StoreMode::read}));
  EXPECT_TRUE(must(pagetide::verify(opened)).sound());
  const auto snapshots = opened.snapshots().snapshots;
  EXPECT_THAT(snapshots, SizeIs(3));
  for (const SnapshotInfo& info : snapshots) EXPECT_TRUE(info.holds_code_addresses);
}

TEST_F(SqliteMemoryTest, tells_people_what_it_did) {
  const RunResult result = run({"--rounds", "2", "--accounts", "200"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, StartsWith("SQLite 3."));
  EXPECT_THAT(result.out, HasSubstr("\n         2  "));
  EXPECT_THAT(result.out, HasSubstr("2 rollbacks, each with an intact database"));
}

TEST_F(SqliteMemoryTest, is_silent_when_asked_to_be) {
  const RunResult result = run({"--rounds", "1", "--accounts", "200", "--quiet"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out + result.err, "");
}

TEST_F(SqliteMemoryTest, refuses_a_store_with_snapshots) {
  ASSERT_EQ(run({"--rounds", "1", "--accounts", "200"}).exit_code, 0);
  const RunResult again = run({"--rounds", "1", "--accounts", "200"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("holds snapshots already"));
  EXPECT_THAT(again.err, HasSubstr("--store"));
}

TEST_F(SqliteMemoryTest, says_that_the_arena_is_too_small) {
  const RunResult result = run({"--reserve", "2MiB"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("the arena is full. Give it more with --reserve"));
}

TEST_F(SqliteMemoryTest, explains_itself) {
  const RunResult help = run_program({SQLITE_MEMORY_PATH, "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("Exit status: 0"));
  const RunResult wrong = run({"--rounds", "0"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--rounds"));
}

// --- its parts ---

// A bank in an arena of its own, in a child.
struct ArenaBank {
  pagetide::Arena arena = must(pagetide::Arena::create({.reserve_bytes = 256U << 20}));
  BankState* state = nullptr;

  void open() {
    state = must(arena.find_or_construct<BankState>("bank"));
    must(open_bank(*state, 1, 100));
  }
  void run(int transactions) const {
    for (int i = 0; i < transactions; ++i) must(run_transaction(*state));
  }
};

TEST(SqliteSetup, leaves_no_static_that_points_into_the_heap) {
  EXPECT_EQ(run_in_child([] {
              ArenaBank bank;
              must(set_up_sqlite(bank.arena));
              bank.open();
              bank.run(300);
              return describe(pointers_from_statics(bank.arena.range()));
            }),
            "");
}

TEST(SqliteSetup, without_it_statics_point_into_the_heap) {
  EXPECT_THAT(run_in_child([] {
                ArenaBank bank;
                must(set_up_sqlite(bank.arena));
                // What a program may do without a second thought: SQLite keeps a list.
                sqlite3_auto_extension([] {});
                return describe(pointers_from_statics(bank.arena.range()));
              }),
              HasSubstr(" points to 0x55"));
}

// A rollback to a snapshot after some more transactions: "", or how the content differs.
std::string roll_back_and_compare(ArenaBank& bank, const std::string& path) {
  Store store = must(Store::open(path));
  pagetide::Snapshotter snapshotter(bank.arena, store);
  bank.open();
  bank.run(50);
  const std::uint64_t noted = must(content_hash(bank.state->connection));
  const auto id = must(snapshotter.take());
  bank.run(50);
  must(snapshotter.rollback(id));
  const auto found = content_hash(bank.state->connection);
  if (!found) return found.error().message();
  return *found == noted ? "" : "another content";
}

TEST_F(SqliteMemoryTest, a_database_is_rolled_back_with_its_arena) {
  EXPECT_EQ(run_in_child([&] {
              ArenaBank bank;
              must(set_up_sqlite(bank.arena));
              return roll_back_and_compare(bank, store());
            }),
            "");
}

// Why there is no buffer for pages: it lies outside, and so does the list of what is free in it.
TEST_F(SqliteMemoryTest, a_page_cache_outside_the_arena_is_not_rolled_back) {
  constexpr int kLineBytes = 4096 + 512;
  constexpr int kLines = 4000;
  std::vector<std::byte> pages(std::size_t{kLineBytes} * kLines);
  EXPECT_NE(run_in_child([&] {
              ArenaBank bank;
              must(set_up_sqlite(bank.arena));
              sqlite3_shutdown();
              sqlite3_config(SQLITE_CONFIG_PAGECACHE, pages.data(), kLineBytes, kLines);
              return roll_back_and_compare(bank, store());
            }),
            "");
}

// "at rest", or why not.
std::string rest_after(const char* sql, int steps) {
  must(set_up_sqlite_without_arena());
  sqlite3* connection = must(open_in_memory());
  must(execute(connection, "CREATE TABLE t(a); INSERT INTO t VALUES(1), (2)"));
  auto query = must(Query::prepare(connection, sql));
  for (int i = 0; i < steps; ++i) (void)must(query.next());
  const std::string reason = why_not_at_rest(connection);
  return reason.empty() ? "at rest" : reason;
}

TEST(SqliteAtRest, is_a_connection_between_transactions_and_statements) {
  EXPECT_EQ(run_in_child([] { return rest_after("SELECT a FROM t", 0); }), "at rest");
  EXPECT_EQ(run_in_child([] { return rest_after("SELECT a FROM t", 3); }), "at rest");
}

TEST(SqliteAtRest, is_not_one_in_the_middle_of_a_statement) {
  EXPECT_EQ(run_in_child([] { return rest_after("SELECT a FROM t", 1); }),
            "the statement 'SELECT a FROM t' is open");
}

TEST(SqliteAtRest, is_not_one_in_a_transaction) {
  EXPECT_EQ(run_in_child([] { return rest_after("BEGIN", 1); }), "a transaction is open");
}

// How the hash differs from that of a table with one row: "", or "differs".
std::string hash_after(const char* sql) {
  must(set_up_sqlite_without_arena());
  sqlite3* connection = must(open_in_memory());
  must(execute(connection, "CREATE TABLE t(a, b); INSERT INTO t VALUES(1, x'00')"));
  const std::uint64_t before = must(content_hash(connection));
  must(execute(connection, sql));
  return must(content_hash(connection)) == before ? "" : "differs";
}

TEST(SqliteContentHash, is_the_same_for_the_same_content) {
  EXPECT_EQ(run_in_child([] {
              return hash_after(
                  "INSERT INTO t VALUES(2, 2); "
                  "DELETE FROM t WHERE a = 2");
            }),
            "");
}

TEST(SqliteContentHash, differs_with_anything_in_the_database) {
  for (const char* sql : {"UPDATE t SET b = x'01'", "UPDATE t SET b = '0'", "UPDATE t SET a = '1'",
                          "UPDATE t SET a = NULL", "INSERT INTO t VALUES(1, x'00')",
                          "UPDATE t SET rowid = 7", "DELETE FROM t", "CREATE INDEX i ON t(a)",
                          "CREATE TABLE u(a)", "ALTER TABLE t RENAME TO u"}) {
    EXPECT_EQ(run_in_child([&] { return hash_after(sql); }), "differs") << sql;
  }
}

TEST(SqliteIntegrity, finds_a_reference_to_nothing) {
  EXPECT_THAT(run_in_child([] {
                must(set_up_sqlite_without_arena());
                sqlite3* connection = must(open_in_memory());
                must(execute(connection,
                             "PRAGMA foreign_keys = OFF; CREATE TABLE t(id INTEGER PRIMARY KEY, "
                             "up REFERENCES t); INSERT INTO t VALUES(1, 9)"));
                const auto checked = check_integrity(connection);
                return checked ? std::string() : checked.error().message();
              }),
              HasSubstr("foreign_key_check: t"));
}

}  // namespace
}  // namespace sqlite_memory
