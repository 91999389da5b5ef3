// A database that is rolled back in place. See --help.

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "examples/sqlite_memory/bank.h"
#include "examples/sqlite_memory/database.h"
#include "examples/sqlite_memory/options.h"
#include "examples/sqlite_memory/report.h"
#include "examples/sqlite_memory/session.h"
#include "examples/sqlite_memory/sqlite_setup.h"
#include "pagetide/pagetide.hpp"

namespace sqlite_memory {
namespace {

using pagetide::ErrorCode;
using pagetide::propagate;
using pagetide::Result;
using pagetide::Store;

Result<Store> new_store(const std::string& path) {
  // The store makes its own directory, for its owner alone; "a/b" and "a/b/" both lie in "a".
  const auto parent = (std::filesystem::absolute(path) / "").parent_path().parent_path();
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) {
    return pagetide::system_failure(fmt::format("create the directory {}", parent.string()),
                                    error.value(), "Name another place with --store.");
  }
  auto store = Store::open(path);
  if (!store) return store;
  auto latest = store->latest();
  if (!latest && latest.error().code() == ErrorCode::not_found) return store;
  if (!latest) return propagate(latest);
  return pagetide::failure(
      ErrorCode::already_exists,
      fmt::format(
          "{} holds snapshots already, and a database in memory is only good in the process "
          "that made it. Remove it, or name another place with --store.",
          path));
}

// Closes before the arena goes.
class Bank {
 public:
  explicit Bank(BankState& state) : state_(state) {}
  Bank(const Bank&) = delete;
  Bank& operator=(const Bank&) = delete;
  ~Bank() { close_bank(state_); }

 private:
  BankState& state_;
};

Result<void> run(const Options& options) {
  auto store = new_store(options.store);
  if (!store) return propagate(store);
  auto arena =
      pagetide::Arena::create({.name = "SQLite database", .reserve_bytes = options.reserve_bytes});
  if (!arena) return propagate(arena);
  if (auto r = set_up_sqlite(*arena); !r) return r;
  auto state = arena->find_or_construct<BankState>("bank");
  if (!state) return propagate(state);
  const Bank bank(**state);
  if (auto r = open_bank(**state, options.seed, options.accounts); !r) return r;

  Report report(options);
  report.begin(*arena);
  Session session(options, *store, *arena, **state);
  for (std::uint64_t i = 0; i < options.rounds; ++i) {
    auto round = session.run_round();
    if (!round) return propagate(round);
    report.round(*round);
  }
  auto last = session.end();
  if (!last) return propagate(last);
  report.end(*last, session.transactions(), arena->heap().stats().heap_bytes);
  return {};
}

Result<void> run_plain(const Options& options) {
  if (auto r = set_up_sqlite_without_arena(); !r) return r;
  BankState state;
  const Bank bank(state);
  if (auto r = open_bank(state, options.seed, options.accounts); !r) return r;
  while (state.transactions < *options.plain) {
    if (auto r = run_transaction(state); !r) return r;
  }
  if (auto r = check_bank(state); !r) return r;
  auto hash = content_hash(state.connection);
  if (!hash) return propagate(hash);
  Report(options).plain({state.transactions, *hash});
  return {};
}

}  // namespace
}  // namespace sqlite_memory

int main(int argc, char** argv) {
  int status = 0;
  const auto options = sqlite_memory::parse_options(argc, argv, &status);
  if (!options) return status;
  const auto result =
      options->plain ? sqlite_memory::run_plain(*options) : sqlite_memory::run(*options);
  if (result) return 0;
  fmt::print(stderr, "sqlite_memory: {}\n", result.error().message());
  return sqlite_memory::kExitFailure;
}
