#include "examples/sqlite_memory/bank.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "examples/sqlite_memory/database.h"

namespace sqlite_memory {

using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::propagate;
using pagetide::Result;

namespace {

constexpr std::int64_t kFirstBalance = 1000;
constexpr std::uint64_t kLongestNote = 12'000;  // bytes; over several pages
constexpr std::int64_t kTransfersKept = 4000;
// Every so many transactions.
constexpr std::uint64_t kSchemaChangeEvery = 37;
constexpr std::uint64_t kVacuumEvery = 251;

constexpr const char* kSchema =
    "CREATE TABLE accounts(id INTEGER PRIMARY KEY, owner TEXT NOT NULL,"
    "  balance INTEGER NOT NULL CHECK(balance >= 0));"
    "CREATE INDEX accounts_by_owner ON accounts(owner);"
    "CREATE TABLE transfers(id INTEGER PRIMARY KEY,"
    "  payer INTEGER NOT NULL REFERENCES accounts, payee INTEGER NOT NULL REFERENCES accounts,"
    "  amount INTEGER NOT NULL, made INTEGER NOT NULL);"
    "CREATE INDEX transfers_by_payer ON transfers(payer, made);"
    "CREATE INDEX transfers_by_payee ON transfers(payee);"
    "CREATE INDEX transfers_by_time ON transfers(made);"
    "CREATE TABLE notes(account INTEGER PRIMARY KEY REFERENCES accounts, body BLOB NOT NULL);"
    "CREATE TRIGGER pay AFTER INSERT ON transfers BEGIN"
    "  UPDATE accounts SET balance = balance + new.amount WHERE id = new.payee;"
    "  UPDATE accounts SET balance = balance - new.amount WHERE id = new.payer;"
    "END;";

// In the order of BankStatement.
constexpr std::array<const char*, kBankStatements> kStatements = {
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT second_thoughts",
    "ROLLBACK TO second_thoughts",
    "RELEASE second_thoughts",
    "INSERT INTO accounts(owner, balance) VALUES(?, ?)",
    "INSERT INTO transfers(payer, payee, amount, made) VALUES(?, ?, ?, ?)",
    "INSERT OR REPLACE INTO notes(account, body) VALUES(?, ?)",
    "UPDATE accounts SET owner = ? WHERE id = ?",
    "DELETE FROM transfers WHERE made < ?",
    // Sorts and groups what no index has in order.
    "SELECT owner, sum(amount) AS paid FROM transfers JOIN accounts ON payer = accounts.id"
    "  WHERE made > ? GROUP BY owner ORDER BY paid DESC, owner LIMIT 10",
};

// splitmix64.
class Lots {
 public:
  Lots(std::uint64_t seed, std::uint64_t number)
      : state_(seed ^ (number * 0xd1342543de82ef95ULL)) {}

  std::uint64_t draw() {
    state_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t lot = state_;
    lot = (lot ^ (lot >> 30)) * 0xbf58476d1ce4e5b9ULL;
    lot = (lot ^ (lot >> 27)) * 0x94d049bb133111ebULL;
    return lot ^ (lot >> 31);
  }
  std::uint64_t below(std::uint64_t limit) { return draw() % limit; }
  // One in so many times.
  bool one_in(std::uint64_t times) { return below(times) == 0; }

 private:
  std::uint64_t state_;
};

// The work of one transaction.
class Transaction {
 public:
  explicit Transaction(BankState& state)
      : state_(state), number_(state.transactions), lots_(state.seed, number_) {}

  Result<void> run() {
    if (auto r = plain(BankStatement::begin); !r) return r;
    const std::uint64_t changes = 1 + lots_.below(6);
    for (std::uint64_t i = 0; i < changes; ++i) {
      if (auto r = change(); !r) return r;
    }
    if (number_ % kSchemaChangeEvery == 0) {
      if (auto r = change_schema(); !r) return r;
    }
    return plain(lots_.one_in(10) ? BankStatement::roll_back : BankStatement::commit);
  }

 private:
  sqlite3_stmt* statement(BankStatement which) const {
    return state_.statements[static_cast<std::size_t>(which)];
  }

  Result<void> run_to_end(Execution& execution) {
    for (;;) {
      auto outcome = execution.step();
      if (!outcome) return propagate(outcome);
      if (*outcome != Execution::Outcome::row) return {};
    }
  }

  Result<void> plain(BankStatement which) {
    Execution execution(statement(which));
    return run_to_end(execution);
  }

  std::int64_t any_account() { return 1 + static_cast<std::int64_t>(lots_.below(state_.accounts)); }

  Result<void> change() {
    const std::uint64_t lot = lots_.below(100);
    if (lot < 50) return transfer();
    if (lot < 70) return put_note();
    if (lot < 80) return rename();
    if (lot < 88) return think_twice();
    if (lot < 94) return forget_transfers();
    return rank_payers();
  }

  // Of a payer who has too little nothing changes: SQLite takes the trigger's first update back.
  Result<void> transfer() {
    Execution execution(statement(BankStatement::transfer));
    execution.bind(any_account()).bind(any_account());
    execution.bind(static_cast<std::int64_t>(1 + lots_.below(400)));
    execution.bind(static_cast<std::int64_t>(number_));
    return run_to_end(execution);
  }

  Result<void> put_note() {
    std::vector<std::byte> body(lots_.below(kLongestNote));
    for (std::byte& byte : body) byte = static_cast<std::byte>(lots_.draw());
    Execution execution(statement(BankStatement::put_note));
    execution.bind(any_account()).bind(body);
    return run_to_end(execution);
  }

  Result<void> rename() {
    const std::string owner = fmt::format("owner {:x}", lots_.draw() >> lots_.below(60));
    Execution execution(statement(BankStatement::rename));
    execution.bind(std::string_view(owner)).bind(any_account());
    return run_to_end(execution);
  }

  Result<void> think_twice() {
    if (auto r = plain(BankStatement::set_savepoint); !r) return r;
    if (auto r = transfer(); !r) return r;
    if (auto r = put_note(); !r) return r;
    if (auto r = plain(BankStatement::undo_savepoint); !r) return r;
    return plain(BankStatement::drop_savepoint);
  }

  Result<void> forget_transfers() {
    Execution execution(statement(BankStatement::forget_transfers));
    execution.bind(static_cast<std::int64_t>(number_) - kTransfersKept);
    return run_to_end(execution);
  }

  Result<void> rank_payers() {
    Execution execution(statement(BankStatement::rank_payers));
    execution.bind(static_cast<std::int64_t>(number_) - 300);
    return run_to_end(execution);
  }

  // All statements are compiled anew after it, when they run next.
  Result<void> change_schema() {
    const std::string sql = fmt::format(
        "DROP TABLE IF EXISTS rich; CREATE TABLE rich AS SELECT id, owner, balance FROM accounts"
        " WHERE balance > {} ORDER BY balance DESC, id LIMIT 50; CREATE INDEX rich_by_owner ON "
        "rich(owner)",
        kFirstBalance);
    return execute(state_.connection, sql.c_str());
  }

  BankState& state_;
  std::uint64_t number_;
  Lots lots_;
};

Result<void> add_accounts(BankState& state) {
  if (auto r = execute(state.connection, "BEGIN"); !r) return r;
  for (std::uint64_t i = 0; i < state.accounts; ++i) {
    const std::string owner = fmt::format("owner {}", i);
    Execution execution(state.statements[static_cast<std::size_t>(BankStatement::add_account)]);
    execution.bind(std::string_view(owner)).bind(kFirstBalance);
    auto outcome = execution.step();
    if (!outcome) return propagate(outcome);
  }
  return execute(state.connection, "COMMIT");
}

}  // namespace

Result<void> open_bank(BankState& state, std::uint64_t seed, std::uint64_t accounts) {
  state.seed = seed;
  state.accounts = accounts;
  auto connection = open_in_memory();
  if (!connection) return propagate(connection);
  state.connection = *connection;
  if (auto r = execute(state.connection, kSchema); !r) return r;
  for (std::size_t i = 0; i < kBankStatements; ++i) {
    if (sqlite3_prepare_v3(state.connection, kStatements[i], -1, SQLITE_PREPARE_PERSISTENT,
                           &state.statements[i], nullptr) != SQLITE_OK) {
      return sqlite_failure(state.connection, fmt::format("prepare '{}'", kStatements[i]));
    }
  }
  return add_accounts(state);
}

void close_bank(BankState& state) {
  for (sqlite3_stmt*& statement : state.statements) {
    sqlite3_finalize(statement);
    statement = nullptr;
  }
  sqlite3_close(state.connection);
  state.connection = nullptr;
}

Result<void> run_transaction(BankState& state) {
  if (auto r = Transaction(state).run(); !r) return r;
  ++state.transactions;
  if (state.transactions % kVacuumEvery == 0) return execute(state.connection, "VACUUM");
  return {};
}

Result<void> check_bank(const BankState& state) {
  if (auto r = check_integrity(state.connection); !r) return r;
  auto query = Query::prepare(state.connection, "SELECT sum(balance) FROM accounts");
  if (!query) return propagate(query);
  auto row = query->next();
  if (!row) return propagate(row);
  const std::int64_t found = sqlite3_column_int64(query->row(), 0);
  const std::int64_t expected = kFirstBalance * static_cast<std::int64_t>(state.accounts);
  if (found == expected) return {};
  return failure(ErrorCode::damaged,
                 fmt::format("the accounts hold {} in all, not {}.", found, expected));
}

}  // namespace sqlite_memory
