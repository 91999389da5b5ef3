#include "examples/sqlite_memory/report.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cstdio>

namespace sqlite_memory {

using Json = nlohmann::ordered_json;

namespace {

std::string hex(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

double milliseconds(std::uint64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

double mebibytes(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1U << 20);
}

Json json_of(const Moment& moment) {
  return {{"transactions", moment.transactions}, {"hash", hex(moment.hash)}};
}

Json json_of(const Round& round) {
  const auto& [taken, back] = round;
  return {{"snapshot", taken.info.id.value},
          {"at", json_of(taken.moment)},
          {"changed_pages", taken.info.changed_pages},
          {"stop_ns", taken.info.stop_ns},
          {"rolled_back_to", back.target.value},
          {"from", json_of(back.from)},
          {"to", json_of(back.to)},
          {"restored_pages", back.stats.restored_pages},
          {"rollback_stop_ns", back.stats.stop_ns},
          // Else there would be an error and no document.
          {"integrity", "ok"}};
}

}  // namespace

void Report::line(const std::string& text) const {
  if (is_silent()) return;
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void Report::print_json() const {
  if (options_.json) fmt::print("{}\n", json_.dump(2));
}

void Report::begin(const pagetide::Arena& arena) {
  json_ = {{"sqlite", sqlite3_libversion()},
           {"store", options_.store},
           {"seed", options_.seed},
           {"accounts", options_.accounts},
           {"rounds", Json::array()}};
  line(fmt::format("SQLite {} in an arena at {:#x}, {:.0f} MiB reserved; snapshots go to {}\n",
                   sqlite3_libversion(), arena.range().begin, mebibytes(arena.range().size),
                   options_.store));
  line(fmt::format("  {:>8}  {:>12}  {:>13}  {:>8}   {:>9}  {:>9}  {:>8}  {:>9}  {}", "snapshot",
                   "transactions", "changed pages", "held", "back from", "to", "pages", "held",
                   "integrity and content"));
}

void Report::round(const Round& round) {
  ++rounds_;
  json_["rounds"].push_back(json_of(round));
  const auto& [taken, back] = round;
  line(
      fmt::format("  {:>8}  {:>12}  {:>13}  {:>5.2f} ms   {:>9}  {:>9}  {:>8}  {:>6.2f} ms  ok, {}",
                  taken.info.id.value, taken.moment.transactions, taken.info.changed_pages,
                  milliseconds(taken.info.stop_ns), back.from.transactions, back.to.transactions,
                  back.stats.restored_pages, milliseconds(back.stats.stop_ns), hex(back.to.hash)));
}

void Report::end(const Moment& last, std::uint64_t transactions_run, std::size_t heap_bytes) {
  json_["last"] = json_of(last);
  json_["transactions_run"] = transactions_run;
  json_["heap_bytes"] = heap_bytes;
  print_json();
  line(fmt::format(
      "\n{} rollbacks, each with an intact database and the content noted at its snapshot.\n"
      "{} transactions were run; {} of them are in the database, {:.1f} MiB of heap. "
      "Its hash is {},\nas `sqlite_memory --plain {} --accounts {} --seed {}` gives it with "
      "SQLite's own allocator.",
      rounds_, transactions_run, last.transactions, mebibytes(heap_bytes), hex(last.hash),
      last.transactions, options_.accounts, options_.seed));
}

void Report::plain(const Moment& last) {
  json_ = {{"sqlite", sqlite3_libversion()},
           {"seed", options_.seed},
           {"accounts", options_.accounts},
           {"last", json_of(last)}};
  print_json();
  line(fmt::format("{} transactions, content {}", last.transactions, hex(last.hash)));
}

}  // namespace sqlite_memory
