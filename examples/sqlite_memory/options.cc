#include "examples/sqlite_memory/options.h"

#include <CLI/CLI.hpp>

namespace sqlite_memory {

namespace {

constexpr const char* kDescription =
    "An SQLite database in memory, whose allocator is a Pagetide arena. A thread runs "
    "transactions.\n"
    "In each round a snapshot is taken between two of them, and some transactions later the whole\n"
    "database is rolled back in place, to any of the snapshots so far. Each time SQLite checks "
    "its\n"
    "integrity, and a hash over all rows has to be the one noted at the snapshot.";

constexpr const char* kFooter =
    "The store has to be new: a connection holds addresses of SQLite's code, so that the database\n"
    "comes back in its own process only.\n"
    "Exit status: 0 all is as it should be, 1 a failure or a difference, 2 wrong usage.";

std::string at_least_one(const std::string& number) {
  return number == "0" ? "must be at least 1" : "";
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("--store", options.store, "Directory of the snapshots; made by this program")
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Snapshots, and as many rollbacks")
      ->check(at_least_one)
      ->capture_default_str();
  app.add_option("--transactions", options.transactions,
                 "At least so many before each snapshot and before each rollback")
      ->check(at_least_one)
      ->capture_default_str();
  app.add_option("--accounts", options.accounts, "Rows of the largest table at the beginning")
      ->check(at_least_one)
      ->capture_default_str();
  app.add_option("--seed", options.seed,
                 "What the transactions do, and which snapshots are returned to")
      ->capture_default_str();
  app.add_option("--reserve", options.reserve_bytes,
                 "Address space of the arena, for instance 64MiB or 1GiB (the default)")
      ->transform(CLI::AsSizeValue(false));
  auto* plain = app.add_option("--plain", options.plain,
                               "Only run so many transactions, with SQLite's own allocator and "
                               "without snapshots,\nand print the hash: what the same number must "
                               "give however often it was rolled back");
  plain->excludes("--store")->excludes("--rounds")->excludes("--transactions");
  app.add_flag("--json", options.json, "Print one JSON document instead of the table");
  app.add_flag("--quiet", options.quiet, "Print errors only");
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int* exit_status) {
  Options options;
  CLI::App app(kDescription, "sqlite_memory");
  app.footer(kFooter);
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_status = app.exit(error) == 0 ? 0 : kExitUsage;
    return std::nullopt;
  }
  return options;
}

}  // namespace sqlite_memory
