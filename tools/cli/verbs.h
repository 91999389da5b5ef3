#pragma once

#include <string>

#include "tools/cli/exit_code.h"
#include "tools/cli/output.h"
#include "tools/cli/store_argument.h"

// The verbs of `pagetide`. Each writes its result to `out`, reports errors on standard error, and
// returns what the command ends with. None changes a store.

namespace pagetide::cli {

struct LogOptions {
  std::string store;
  bool as_json = false;
};
ExitCode run_log(const LogOptions& options, Output& out);

struct ShowOptions {
  Positionals positionals;
  bool all_runs = false;
  bool as_json = false;
};
ExitCode run_show(const ShowOptions& options, Output& out);

struct VerifyOptions {
  std::string store;
  bool as_json = false;
  bool force_progress = false;
};
ExitCode run_verify(const VerifyOptions& options, Output& out);

struct CheckOptions {
  Positionals positionals;
  bool all_findings = false;
  bool as_json = false;
  bool force_progress = false;
};
ExitCode run_check(const CheckOptions& options, Output& out);

struct ExportOptions {
  Positionals positionals;
  bool raw = false;
  std::string output;  // "-": standard output
  bool overwrite = false;
  bool force_progress = false;
};
// Writes the image to standard output itself, so it does not need an Output.
ExitCode run_export(const ExportOptions& options);

struct DoctorOptions {
  bool as_json = false;
};
ExitCode run_doctor(const DoctorOptions& options, Output& out);

}  // namespace pagetide::cli
