#include "pagetide/snapshot/verify.h"

#include <algorithm>

#include "tools/cli/json.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/text.h"
#include "tools/cli/verbs.h"

namespace pagetide::cli {

namespace {

void print_as_json(const std::string& path, const VerifyReport& report, Output& out) {
  Json problems = Json::array();
  for (const Error& problem : report.problems) {
    problems.push_back({{"code", to_string(problem.code())}, {"message", problem.message()}});
  }
  Json unusable = Json::array();
  for (const SnapshotId id : report.unusable) unusable.push_back(id.value);
  print_json({{"store", path},
              {"sound", report.sound()},
              {"snapshots", report.snapshots},
              {"pages", report.pages},
              {"bytes", report.bytes},
              {"problems", std::move(problems)},
              {"unusable", std::move(unusable)}},
             out);
}

std::string list_of(const std::vector<SnapshotId>& ids) {
  std::string text;
  for (const SnapshotId id : ids) {
    if (!text.empty()) text += ", ";
    text += std::to_string(id.value);
  }
  return text.empty() ? "none" : text;
}

void print_as_text(const std::string& path, const VerifyReport& report, Output& out) {
  out.print("{}: read {} and {} ({})\n", path, counted(report.snapshots, "snapshot", "snapshots"),
            counted(report.pages, "stored page", "stored pages"), human_bytes(report.bytes));
  for (const Error& problem : report.problems) out.print("{}\n", problem.message());
  if (report.sound()) {
    out.write(
        "sound: manifests, history, every page and heap record against its checksum, full "
        "indexes\n");
  } else {
    out.print("unusable snapshots: {}\n", list_of(report.unusable));
  }
}

}  // namespace

ExitCode run_verify(const VerifyOptions& options, Output& out) {
  auto argument = read_store(options.store);
  if (!argument) {
    report(argument.error().message());
    return exit_code_of(argument.error());
  }
  auto store = open_for_reading(*argument);
  if (!store) {
    report(store.error().message());
    return exit_code_of(store.error());
  }
  ProgressLine progress("verifying", options.force_progress);
  auto verified = verify(*store, progress.callback());
  progress.finish();
  if (!verified) {
    report(verified.error().message());
    return exit_code_in_store(verified.error());
  }
  if (options.as_json) {
    print_as_json(argument->path, *verified, out);
  } else {
    print_as_text(argument->path, *verified, out);
  }
  if (auto r = out.flush(); !r) return report_output_failure(r.error());
  if (verified->sound()) return ExitCode::fine;
  const bool only_unreadable =
      std::all_of(verified->problems.begin(), verified->problems.end(), [](const Error& problem) {
        return problem.code() == ErrorCode::permission_denied ||
               problem.code() == ErrorCode::system_failure;
      });
  if (only_unreadable) {
    report(fmt::format("{} could not be read in whole: {}; nothing of what was read is damaged",
                       argument->path, counted(verified->problems.size(), "problem", "problems")));
    return ExitCode::unreadable;
  }
  report(fmt::format("{} is damaged: {}", argument->path,
                     counted(verified->problems.size(), "problem", "problems")));
  return ExitCode::problem;
}

}  // namespace pagetide::cli
