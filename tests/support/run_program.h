#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace pagetide {

struct RunOptions {
  // Added to this process's environment; nothing: taken out of it.
  std::map<std::string, std::optional<std::string>> environment = {};
  std::string directory = {};  // to run in; empty: this process's
  // Descriptors to use instead of capturing; kClosed: the program starts without the stream.
  static constexpr int kCapture = -1;
  static constexpr int kClosed = -2;
  int stdout_fd = kCapture;
  int stderr_fd = kCapture;
  // Called once when the program was started and nothing of its output was read yet.
  std::function<void(pid_t)> on_start = {};
};

struct RunResult {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
  std::string out;
  std::string err;
};

// Runs a program without a shell, its standard input empty, and waits for its end. A program that
// takes longer than a minute is killed (signal 9). Adds a test failure where it cannot be started.
RunResult run_program(const std::vector<std::string>& command, const RunOptions& options = {});

}  // namespace pagetide
