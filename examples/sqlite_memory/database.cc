#include "examples/sqlite_memory/database.h"

#include <fmt/format.h>

#include <vector>

namespace sqlite_memory {

using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::propagate;
using pagetide::Result;

namespace {

ErrorCode code_of(int status) {
  switch (status & 0xff) {
    case SQLITE_NOMEM:
      return ErrorCode::out_of_memory;
    case SQLITE_CORRUPT:
      return ErrorCode::damaged;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return ErrorCode::busy;
    default:
      return ErrorCode::system_failure;
  }
}

// FNV-1a.
class ContentHash {
 public:
  void add(const void* bytes, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i) {
      hash_ = (hash_ ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3ULL;
    }
  }
  void add(std::uint64_t number) { add(&number, sizeof(number)); }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

// Type and length go in front, so that no two rows look alike.
void add_column(ContentHash& hash, sqlite3_stmt* row, int column) {
  const int type = sqlite3_column_type(row, column);
  hash.add(static_cast<std::uint64_t>(type));
  switch (type) {
    case SQLITE_INTEGER:
      return hash.add(static_cast<std::uint64_t>(sqlite3_column_int64(row, column)));
    case SQLITE_FLOAT: {
      const double number = sqlite3_column_double(row, column);
      return hash.add(&number, sizeof(number));
    }
    case SQLITE_TEXT:
    case SQLITE_BLOB: {
      const void* bytes = sqlite3_column_blob(row, column);
      const auto size = static_cast<std::size_t>(sqlite3_column_bytes(row, column));
      hash.add(size);
      return hash.add(bytes, size);
    }
    default:
      return;
  }
}

Result<void> add_rows(ContentHash& hash, sqlite3* connection, const std::string& sql) {
  auto query = Query::prepare(connection, sql);
  if (!query) return propagate(query);
  for (;;) {
    auto more = query->next();
    if (!more) return propagate(more);
    if (!*more) return {};
    hash.add(std::uint64_t{1});
    const int columns = sqlite3_column_count(query->row());
    for (int column = 0; column < columns; ++column) add_column(hash, query->row(), column);
  }
}

Result<std::vector<std::string>> table_names(sqlite3* connection) {
  auto query = Query::prepare(connection,
                              "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name");
  if (!query) return propagate(query);
  std::vector<std::string> names;
  for (;;) {
    auto more = query->next();
    if (!more) return propagate(more);
    if (!*more) return names;
    names.emplace_back(reinterpret_cast<const char*>(sqlite3_column_text(query->row(), 0)));
  }
}

}  // namespace

tl::unexpected<pagetide::Error> sqlite_failure(sqlite3* connection, std::string_view what) {
  const int status = sqlite3_extended_errcode(connection);
  if (code_of(status) == ErrorCode::out_of_memory) {
    return failure(ErrorCode::out_of_memory,
                   fmt::format("cannot {}: the arena is full. Give it more with --reserve, or the "
                               "database fewer --accounts.",
                               what));
  }
  return failure(code_of(status), fmt::format("cannot {}: SQLite says '{}' ({}).", what,
                                              sqlite3_errmsg(connection), status));
}

Result<sqlite3*> open_in_memory() {
  sqlite3* connection = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  if (sqlite3_open_v2(":memory:", &connection, flags, nullptr) != SQLITE_OK) {
    auto failed = sqlite_failure(connection, "open a database in memory");
    sqlite3_close(connection);
    return failed;
  }
  if (auto r = execute(connection, "PRAGMA temp_store = MEMORY; PRAGMA foreign_keys = ON"); !r) {
    sqlite3_close(connection);
    return propagate(r);
  }
  return connection;
}

Result<void> execute(sqlite3* connection, const char* sql) {
  if (sqlite3_exec(connection, sql, nullptr, nullptr, nullptr) == SQLITE_OK) return {};
  return sqlite_failure(connection, fmt::format("run '{}'", sql));
}

Execution& Execution::bind(std::int64_t value) {
  bind_status_ |= sqlite3_bind_int64(statement_, ++bound_, value);
  return *this;
}

Execution& Execution::bind(std::string_view text) {
  bind_status_ |= sqlite3_bind_text(statement_, ++bound_, text.data(),
                                    static_cast<int>(text.size()), SQLITE_STATIC);
  return *this;
}

Execution& Execution::bind(std::span<const std::byte> blob) {
  bind_status_ |= sqlite3_bind_blob(statement_, ++bound_, blob.data(),
                                    static_cast<int>(blob.size()), SQLITE_STATIC);
  return *this;
}

Result<Execution::Outcome> Execution::step() {
  const int status = bind_status_ == SQLITE_OK ? sqlite3_step(statement_) : bind_status_;
  if (status == SQLITE_ROW) return Outcome::row;
  if (status == SQLITE_DONE) return Outcome::done;
  if (status == SQLITE_CONSTRAINT) return Outcome::constraint;
  return sqlite_failure(sqlite3_db_handle(statement_),
                        fmt::format("run '{}'", sqlite3_sql(statement_)));
}

Result<Query> Query::prepare(sqlite3* connection, const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v2(connection, sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) {
    return sqlite_failure(connection, fmt::format("prepare '{}'", sql));
  }
  return Query(statement);
}

Result<bool> Query::next() {
  const int status = sqlite3_step(statement_);
  if (status == SQLITE_ROW || status == SQLITE_DONE) return status == SQLITE_ROW;
  return sqlite_failure(sqlite3_db_handle(statement_),
                        fmt::format("run '{}'", sqlite3_sql(statement_)));
}

std::string why_not_at_rest(sqlite3* connection) {
  if (sqlite3_get_autocommit(connection) == 0) return "a transaction is open";
  for (sqlite3_stmt* statement = sqlite3_next_stmt(connection, nullptr); statement != nullptr;
       statement = sqlite3_next_stmt(connection, statement)) {
    if (sqlite3_stmt_busy(statement) == 0) continue;
    return fmt::format("the statement '{}' is open", sqlite3_sql(statement));
  }
  return {};
}

Result<std::uint64_t> content_hash(sqlite3* connection) {
  ContentHash hash;
  if (auto r = add_rows(hash, connection,
                        "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema "
                        "ORDER BY type, name");
      !r) {
    return propagate(r);
  }
  auto tables = table_names(connection);
  if (!tables) return propagate(tables);
  for (const std::string& table : *tables) {
    hash.add(table.data(), table.size());
    const std::string sql = fmt::format("SELECT rowid, * FROM \"{}\" ORDER BY rowid", table);
    if (auto r = add_rows(hash, connection, sql); !r) return propagate(r);
  }
  return hash.value();
}

Result<void> check_integrity(sqlite3* connection) {
  std::string problems;
  for (const char* pragma : {"PRAGMA integrity_check", "PRAGMA foreign_key_check"}) {
    auto query = Query::prepare(connection, pragma);
    if (!query) return propagate(query);
    for (;;) {
      auto more = query->next();
      if (!more) return propagate(more);
      if (!*more) break;
      const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(query->row(), 0));
      const std::string line = text == nullptr ? "a row without text" : text;
      if (line != "ok") problems += fmt::format("\n  {}: {}", pragma, line);
    }
  }
  if (problems.empty()) return {};
  return failure(ErrorCode::damaged, "the database is damaged:" + problems);
}

}  // namespace sqlite_memory
