#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "examples/sqlite_memory/options.h"
#include "examples/sqlite_memory/session.h"

namespace sqlite_memory {

// What the program tells on standard output: a table that grows as the rounds go by, or one JSON
// document at the end.
class Report {
 public:
  explicit Report(const Options& options) : options_(options) {}

  void begin(const pagetide::Arena& arena);
  void round(const Round& round);
  void end(const Moment& last, std::uint64_t transactions_run, std::size_t heap_bytes);
  // Of a run without an arena.
  void plain(const Moment& last);

 private:
  bool is_silent() const { return options_.quiet || options_.json; }
  void line(const std::string& text) const;
  void print_json() const;

  const Options& options_;
  std::uint64_t rounds_ = 0;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::object();
};

}  // namespace sqlite_memory
