#include "examples/lua_vm/options.h"

#include <CLI/CLI.hpp>

namespace lua_vm {

namespace {

constexpr const char* kDescription =
    "Plays a text game in a Lua virtual machine that lives in a Pagetide arena. The game is a Lua\n"
    "script that knows nothing of saving; snapshots hold the whole machine, in the middle of its\n"
    "coroutines. When the store has one already, the game goes on there: the script is not read\n"
    "again, and commands of the file that were played before it are skipped. With --back-to the\n"
    "game is rolled back when the commands are at their end, and goes another way.";

constexpr const char* kFooter =
    "The machine holds addresses of this program: a store goes on in the same build only.\n"
    "Exit status: 0 all is as it should be, 1 a failure or a difference, 2 wrong usage.";

std::string at_least_one(const std::string& number) {
  return number == "0" ? "must be at least 1" : "";
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("--store", options.store, "Directory of the snapshots; made when missing")
      ->capture_default_str();
  app.add_option("--game", options.game, "The script of a new game")->capture_default_str();
  app.add_option("--commands", options.commands,
                 "A file with one command a line, or - for standard input, where none is skipped")
      ->capture_default_str();
  app.add_option("--snapshot-every", options.snapshot_every,
                 "Turns between snapshots; there is one at the beginning and one at the end, too")
      ->check(at_least_one)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of a new game")->capture_default_str();
  auto* back_to = app.add_option("--back-to", options.back_to,
                                 "Roll back to this turn when all commands are played, play those "
                                 "of --other,\nroll back again and play the first ones again");
  auto* other = app.add_option("--other", options.other, "The file of the other commands");
  back_to->needs(other);
  other->needs(back_to);
  app.add_option("--kill-after", options.kill_after,
                 "Die by SIGKILL after so many turns of this run")
      ->check(at_least_one);
  app.add_option("--reserve", options.reserve_bytes,
                 "Address space of a new arena, for instance 64MiB or 256MiB (the default)")
      ->transform(CLI::AsSizeValue(false));
  app.add_flag("--json", options.json, "Print one JSON document instead of the game");
  app.add_flag("--quiet", options.quiet, "Print errors only");
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int* exit_status) {
  Options options;
  CLI::App app(kDescription, "lua_vm");
  app.footer(kFooter);
  add_options(app, options);
  try {
    app.parse(argc, argv);
    if (options.back_to && options.commands == "-") {
      throw CLI::ValidationError("--back-to",
                                 "needs --commands with a file: what was read from "
                                 "standard input cannot be played again");
    }
  } catch (const CLI::ParseError& error) {
    *exit_status = app.exit(error) == 0 ? 0 : kExitUsage;
    return std::nullopt;
  }
  return options;
}

}  // namespace lua_vm
