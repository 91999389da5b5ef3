#include <unistd.h>

#include <CLI/CLI.hpp>
#include <string>

#include "tools/cli/verbs.h"

// The grammar of `pagetide`; docs/man/pagetide.1 describes it. What a verb does is in its own file.

namespace pagetide::cli {

namespace {

constexpr const char* kExitCodes =
    "Exit codes:\n"
    "  0  fine\n"
    "  1  damage was found, or by check memory that was written after it was freed\n"
    "  2  the command line is wrong\n"
    "  3  cannot be read, written or checked: no store, no permission, a newer format, I/O\n";
constexpr const char* kStoreHelp = "Directory of the store (default: $PAGETIDE_STORE)";
constexpr const char* kIdHelp = "Number of the snapshot, or 'latest'";
constexpr const char* kJsonHelp = "Print JSON";
constexpr const char* kProgressHelp = "Show progress at once, even if stderr is no terminal";

struct CommandLine {
  LogOptions log;
  ShowOptions show;
  VerifyOptions verify;
  CheckOptions check;
  ExportOptions exports;
  DoctorOptions doctor;
};

CLI::App* add_verb(CLI::App& app, const std::string& name, const std::string& what,
                   const std::string& examples) {
  CLI::App* verb = app.add_subcommand(name, what);
  verb->group("Verbs");
  verb->footer("Examples:\n" + examples + "\n" + kExitCodes);
  return verb;
}

void add_log(CLI::App& app, LogOptions& options) {
  CLI::App* verb = add_verb(app, "log", "List the snapshots of a store, the oldest first",
                            "  pagetide log orders.pagetide\n"
                            "  pagetide log orders.pagetide --json | jq '.[].changed_pages'\n");
  verb->add_option("STORE", options.store, kStoreHelp)->type_name("");
  verb->add_flag("--json", options.as_json, kJsonHelp);
}

void add_show(CLI::App& app, ShowOptions& options) {
  CLI::App* verb = add_verb(app, "show", "Show one snapshot: what changed and what its heap holds",
                            "  pagetide show orders.pagetide\n"
                            "  pagetide show orders.pagetide 3 --all\n"
                            "  PAGETIDE_STORE=orders.pagetide pagetide show 3\n");
  verb->add_option("STORE", options.positionals.first, kStoreHelp)->type_name("");
  verb->add_option("ID", options.positionals.second, std::string(kIdHelp) + " (default: latest)")
      ->type_name("");
  verb->add_flag("--all", options.all_runs, "List every changed run (JSON always does)");
  verb->add_flag("--json", options.as_json, kJsonHelp);
}

void add_verify(CLI::App& app, VerifyOptions& options) {
  CLI::App* verb = add_verb(app, "verify", "Read everything and compare it with its checksums",
                            "  pagetide verify orders.pagetide && echo sound\n");
  verb->add_option("STORE", options.store, kStoreHelp)->type_name("");
  verb->add_flag("--json", options.as_json, kJsonHelp);
  verb->add_flag("--progress", options.force_progress, kProgressHelp);
}

void add_check(CLI::App& app, CheckOptions& options) {
  CLI::App* verb =
      add_verb(app, "check", "Find memory that the program wrote to after it was freed",
               "  pagetide check orders.pagetide\n"
               "  pagetide check orders.pagetide 3 --all\n"
               "  for id in 1 2 3 4; do pagetide check orders.pagetide $id || break; done\n"
               "  pagetide check orders.pagetide --json | jq -r '.findings[].address'\n");
  verb->add_option("STORE", options.positionals.first, kStoreHelp)->type_name("");
  verb->add_option("ID", options.positionals.second, std::string(kIdHelp) + " (default: latest)")
      ->type_name("");
  verb->add_flag("--all", options.all_findings,
                 "List every place that was found (JSON always does)");
  verb->add_flag("--json", options.as_json, kJsonHelp);
  verb->add_flag("--progress", options.force_progress, kProgressHelp);
}

void add_export(CLI::App& app, ExportOptions& options) {
  CLI::App* verb =
      add_verb(app, "export", "Write the memory image of a snapshot to a file",
               "  pagetide export orders.pagetide latest --raw -o orders.img\n"
               "  pagetide export orders.pagetide 3 --raw -o - | strings | sort | uniq -c\n");
  verb->add_option("STORE", options.positionals.first, kStoreHelp)->type_name("");
  verb->add_option("ID", options.positionals.second, kIdHelp)->type_name("");
  verb->add_flag("--raw", options.raw, "As one sparse file, the region's page 0 first");
  verb->add_option("-o,--output", options.output, "File to write; - is standard output")
      ->type_name("FILE")
      ->required();
  verb->add_flag("--force", options.overwrite, "Overwrite the file if it exists");
  verb->add_flag("--progress", options.force_progress, kProgressHelp);
}

void add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* verb = add_verb(app, "doctor", "Try what Pagetide can use on this machine",
                            "  pagetide doctor\n"
                            "  PAGETIDE_DISABLE=userfaultfd pagetide doctor\n");
  verb->add_flag("--json", options.as_json, kJsonHelp);
}

void add_everything(CLI::App& app, CommandLine& line) {
  app.set_version_flag("--version", "pagetide " PAGETIDE_CLI_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->label("SUBCOMMAND", "VERB");
  app.footer(std::string("`pagetide VERB --help` has the options and examples of a verb.\n\n") +
             kExitCodes);
  add_log(app, line.log);
  add_show(app, line.show);
  add_verify(app, line.verify);
  add_check(app, line.check);
  add_export(app, line.exports);
  add_doctor(app, line.doctor);
}

ExitCode run_verb(const std::string& verb, const CommandLine& line, Output& out) {
  if (verb == "log") return run_log(line.log, out);
  if (verb == "show") return run_show(line.show, out);
  if (verb == "verify") return run_verify(line.verify, out);
  if (verb == "check") return run_check(line.check, out);
  if (verb == "export") return run_export(line.exports);
  return run_doctor(line.doctor, out);
}

ExitCode print_and_end(const std::string& text, Output& out) {
  out.write(text);
  if (auto r = out.flush(); !r) return report_output_failure(r.error());
  return ExitCode::fine;
}

constexpr const char* kHint = "Try `pagetide --help`, or `pagetide VERB --help`.";

// CLI11 would only say that some subcommand is missing.
Result<void> check_verb(const CLI::App& app, int argc, char** argv) {
  const std::string given = argc > 1 ? argv[1] : "";
  std::string verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_name() == given) return {};
    verbs += " " + verb->get_name();
  }
  if (given.starts_with('-') && app.get_option_no_throw(given) != nullptr) return {};
  const std::string problem =
      given.empty() ? "which verb?"
                    : fmt::format("'{}' is no {}.", given, given[0] == '-' ? "option" : "verb");
  return failure(ErrorCode::invalid_argument,
                 fmt::format("{} The verbs are:{}. {}", problem, verbs, kHint));
}

ExitCode run(int argc, char** argv) {
  Output out(STDOUT_FILENO);
  CLI::App app("Looks into Pagetide stores: directories of snapshots of a program's heap.",
               "pagetide");
  CommandLine line;
  add_everything(app, line);
  if (auto r = check_verb(app, argc, argv); !r) {
    report(r.error().message());
    return exit_code_of(r.error());
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& version) {
    return print_and_end(std::string(version.what()) + "\n", out);
  } catch (const CLI::Success&) {
    return print_and_end(app.help(), out);
  } catch (const CLI::ParseError& error) {
    report(fmt::format("{}. {}", error.what(), kHint));
    return ExitCode::usage;
  }
  return run_verb(app.get_subcommands().front()->get_name(), line, out);
}

}  // namespace

}  // namespace pagetide::cli

int main(int argc, char** argv) {
  pagetide::cli::prepare_standard_streams();
  return static_cast<int>(pagetide::cli::run(argc, argv));
}
