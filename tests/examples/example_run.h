#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace pagetide {

struct RunSettings {
  std::string directory;     // to run in; empty: this one
  std::string library_path;  // LD_LIBRARY_PATH; empty: as it is
  bool as_nobody = false;    // drops from root to the user nobody before it begins
  std::optional<std::chrono::microseconds> kill_after;  // SIGKILL from outside
};

struct RunResult {
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;
  std::string output;  // standard output and standard error as they came
};

// Runs a program to its end. 126 and a line in the output when it cannot be started.
RunResult run_example(const std::vector<std::string>& command, const RunSettings& settings = {});

}  // namespace pagetide
