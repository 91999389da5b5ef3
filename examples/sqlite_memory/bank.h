#pragma once

#include <sqlite3.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "pagetide/pagetide.hpp"

namespace sqlite_memory {

// What the program runs on SQLite: accounts, transfers between them, notes with long texts. What a
// transaction does depends on the seed and on its number alone, so that a database after so many
// transactions is always the same, by whatever way it got there.

enum class BankStatement : std::uint8_t {
  begin,
  commit,
  roll_back,
  set_savepoint,
  undo_savepoint,
  drop_savepoint,
  add_account,
  transfer,
  put_note,
  rename,
  forget_transfers,
  rank_payers,
};
constexpr std::size_t kBankStatements = 12;

// All that the program itself remembers of the database, and as a root of the arena rolled back
// with it: no handle outlives what it is the handle of.
struct BankState {
  sqlite3* connection = nullptr;
  std::array<sqlite3_stmt*, kBankStatements> statements{};
  std::uint64_t seed = 0;
  std::uint64_t accounts = 0;
  std::uint64_t transactions = 0;  // done, whether committed or not
};

// Opens the database and puts the accounts in. On failure `state` can be closed.
pagetide::Result<void> open_bank(BankState& state, std::uint64_t seed, std::uint64_t accounts);
void close_bank(BankState& state);

// The next transaction, whole.
pagetide::Result<void> run_transaction(BankState& state);

// check_integrity(), and that no money has come or gone.
pagetide::Result<void> check_bank(const BankState& state);

}  // namespace sqlite_memory
