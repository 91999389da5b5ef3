#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "pagetide/pagetide.hpp"

namespace sqlite_memory {

// out_of_memory, damaged, busy, or system_failure for the rest, with what SQLite says of its last
// call on the connection.
tl::unexpected<pagetide::Error> sqlite_failure(sqlite3* connection, std::string_view what);

// A database in memory, and nothing of it in files.
pagetide::Result<sqlite3*> open_in_memory();

// Statements whose rows nobody wants.
pagetide::Result<void> execute(sqlite3* connection, const char* sql);

// One run of a prepared statement: bind, step, and reset at the end of the scope. Nothing stays
// bound: what is bound may lie outside the heap, and must not be pointed to from a snapshot.
class Execution {
 public:
  explicit Execution(sqlite3_stmt* statement) : statement_(statement) {}
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;
  ~Execution() {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }

  Execution& bind(std::int64_t value);
  // They live until the end of the execution.
  Execution& bind(std::string_view text);
  Execution& bind(std::span<const std::byte> blob);

  // Whether there is a row. A constraint that does not hold is an answer, too.
  enum class Outcome : std::uint8_t { row, done, constraint };
  pagetide::Result<Outcome> step();

 private:
  sqlite3_stmt* statement_;
  int bound_ = 0;
  int bind_status_ = SQLITE_OK;
};

// A statement of its own scope.
class Query {
 public:
  static pagetide::Result<Query> prepare(sqlite3* connection, const std::string& sql);
  Query(Query&& other) noexcept : statement_(other.statement_) { other.statement_ = nullptr; }
  Query& operator=(Query&&) = delete;
  ~Query() { sqlite3_finalize(statement_); }

  // Whether there is one more row.
  pagetide::Result<bool> next();
  sqlite3_stmt* row() const { return statement_; }

 private:
  explicit Query(sqlite3_stmt* statement) : statement_(statement) {}
  sqlite3_stmt* statement_;
};

// Why no snapshot should be taken now, nor a rollback be made: an open transaction, or a statement
// between its first row and its last. Both would come back as they are here, but whoever was in the
// middle of them would not. Empty: nothing is open.
std::string why_not_at_rest(sqlite3* connection);

// Of everything in the database: schema, root pages, and all columns of all rows, in order.
pagetide::Result<std::uint64_t> content_hash(sqlite3* connection);

// SQLite's own check of every page, index and constraint: fails with `damaged`.
pagetide::Result<void> check_integrity(sqlite3* connection);

}  // namespace sqlite_memory
