#include "examples/package_index/options.h"

#include <CLI/CLI.hpp>

namespace package_index {

namespace {

constexpr const char* kDescription =
    "Keeps the index of Debian packages and who depends on whom in a heap that outlives the\n"
    "process. Builds it from `apt-cache dumpavail`, applies rounds of updates, takes snapshots on\n"
    "the way, and at the end compares it with a fresh parse. When the store has a snapshot\n"
    "already, it answers from that first and goes on where it stands.";

constexpr const char* kFooter =
    "Exit status: 0 all is as it should be, 1 a failure or a difference, 2 wrong usage.";

void add_options(CLI::App& app, Options& options, std::string& kill_at) {
  app.add_option("--store", options.store, "Directory of the snapshots; made when missing")
      ->capture_default_str();
  app.add_option("--input", options.input, "A saved `apt-cache dumpavail` instead of running it");
  app.add_option("--snapshot-every", options.snapshot_every, "Records between snapshots")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Rounds of updates after the load")
      ->capture_default_str();
  app.add_option("--limit", options.limit, "Load only the first N records; 0: all");
  app.add_option("--reserve", options.reserve_bytes,
                 "Address space of a new heap, for instance 512MiB or 4GiB (the default)")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--kill-at", kill_at,
                 "Die by SIGKILL after K records and updates of this run, or with commit:S:OP at\n"
                 "the OP-th change of a file in the S-th commit of this run (an append: half done)")
      ->check([](const std::string& text) {
        const auto point = parse_kill_point(text);
        return point ? std::string() : point.error().message();
      });
  app.add_option("--query", options.queries, "Also tell about this package; may be repeated")
      ->allow_extra_args(false);
  app.add_flag("--queries-only", options.queries_only,
               "Answer from the newest snapshot and end; opens no input");
  app.add_flag("--quiet", options.quiet, "Print errors only");
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int* exit_status) {
  Options options;
  std::string kill_at;
  CLI::App app(kDescription, "package_index");
  app.footer(kFooter);
  add_options(app, options, kill_at);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_status = app.exit(error) == 0 ? 0 : kExitUsage;
    return std::nullopt;
  }
  if (!kill_at.empty()) options.kill_at = *parse_kill_point(kill_at);
  return options;
}

}  // namespace package_index
