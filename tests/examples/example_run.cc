#include "tests/examples/example_run.h"

#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "pagetide/base/unique_fd.h"

namespace pagetide {

namespace {

constexpr int kCannotStart = 126;

// In the child: nothing here may return.
[[noreturn]] void cannot_start(const char* what) {
  std::perror(what);
  ::_exit(kCannotStart);
}

void become(const passwd& user) {
  if (::setgroups(0, nullptr) != 0 || ::setgid(user.pw_gid) != 0 || ::setuid(user.pw_uid) != 0) {
    cannot_start("drop to nobody");
  }
}

[[noreturn]] void start(std::vector<char*>& arguments, const RunSettings& settings,
                        const passwd* user, int output) {
  if (::dup2(output, STDOUT_FILENO) < 0 || ::dup2(output, STDERR_FILENO) < 0) {
    cannot_start("redirect the output");
  }
  if (user != nullptr) become(*user);
  if (!settings.directory.empty() && ::chdir(settings.directory.c_str()) != 0) {
    cannot_start("change the directory");
  }
  if (!settings.library_path.empty()) {
    ::setenv("LD_LIBRARY_PATH", settings.library_path.c_str(), 1);
  }
  ::execv(arguments.front(), arguments.data());
  cannot_start("execute the program");
}

std::string content_of(int file) {
  std::string content;
  std::array<char, 65536> buffer{};
  ssize_t n = 0;
  while ((n = ::pread(file, buffer.data(), buffer.size(), static_cast<off_t>(content.size()))) > 0) {
    content.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return content;
}

}  // namespace

RunResult run_example(const std::vector<std::string>& command, const RunSettings& settings) {
  // A file, not a pipe: nobody has to read while it runs.
  const UniqueFd output(::memfd_create("output", MFD_CLOEXEC));
  const passwd* user = settings.as_nobody ? ::getpwnam("nobody") : nullptr;
  if (!output.valid() || (settings.as_nobody && user == nullptr)) {
    return {kCannotStart, 0, "no memfd, or no user nobody"};
  }
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);

  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return {kCannotStart, 0, "no fork"};
  if (child == 0) start(arguments, settings, user, output.get());
  if (settings.kill_after) {
    std::this_thread::sleep_for(*settings.kill_after);
    ::kill(child, SIGKILL);  // harmless when it has ended: it is not yet waited for
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return {kCannotStart, 0, "the child was lost"};
  RunResult result;
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  result.output = content_of(output.get());
  return result;
}

}  // namespace pagetide
