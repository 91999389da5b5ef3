#include "tests/support/run_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "pagetide/base/unique_fd.h"

namespace pagetide {

namespace {

constexpr std::chrono::seconds kPatience{60};

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;

  static Pipe create() {
    std::array<int, 2> fds{-1, -1};
    EXPECT_EQ(::pipe2(fds.data(), O_CLOEXEC), 0) << std::strerror(errno);
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
  }
};

// The strings of an environment or argument list, as exec wants them.
std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(const RunOptions& options) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!options.environment.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : options.environment) {
    if (value) result.push_back(name + "=" + *value);
  }
  return result;
}

void set_up_stream(posix_spawn_file_actions_t* actions, int wanted, int captured, int stream) {
  if (wanted == RunOptions::kClosed) {
    posix_spawn_file_actions_addclose(actions, stream);
  } else {
    posix_spawn_file_actions_adddup2(actions, wanted == RunOptions::kCapture ? captured : wanted,
                                     stream);
  }
}

// Returns 0 and adds a failure when it does not work.
pid_t spawn(const std::vector<std::string>& command, const RunOptions& options, int out, int err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (!options.directory.empty()) {
    posix_spawn_file_actions_addchdir_np(&actions, options.directory.c_str());
  }
  set_up_stream(&actions, options.stdout_fd, out, STDOUT_FILENO);
  set_up_stream(&actions, options.stderr_fd, err, STDERR_FILENO);
  std::vector<std::string> arguments = command;
  std::vector<std::string> environment = environment_with(options);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, arguments[0].c_str(), &actions, nullptr,
                                   pointers_to(arguments).data(), pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(error, 0) << "cannot start " << command[0] << ": " << std::strerror(error);
  return error == 0 ? pid : 0;
}

// Appends what is there; closes the descriptor at the end of the file.
void drain(UniqueFd& fd, std::string& text) {
  std::array<char, 16384> chunk;
  const ssize_t n = ::read(fd.get(), chunk.data(), chunk.size());
  if (n > 0) {
    text.append(chunk.data(), static_cast<std::size_t>(n));
  } else if (n == 0 || errno != EINTR) {
    fd.reset();
  }
}

void read_until_end(pid_t pid, UniqueFd& out, UniqueFd& err, RunResult& result) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (out.valid() || err.valid()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    std::array<pollfd, 2> polled{{{out.get(), POLLIN, 0}, {err.get(), POLLIN, 0}}};
    const int n =
        left.count() > 0 ? ::poll(polled.data(), polled.size(), static_cast<int>(left.count())) : 0;
    if (n == 0) {
      ::kill(pid, SIGKILL);
      return;
    }
    if (polled[0].revents != 0) drain(out, result.out);
    if (polled[1].revents != 0) drain(err, result.err);
  }
}

}  // namespace

RunResult run_program(const std::vector<std::string>& command, const RunOptions& options) {
  Pipe out = Pipe::create();
  Pipe err = Pipe::create();
  RunResult result;
  const pid_t pid = spawn(command, options, out.write_end.get(), err.write_end.get());
  if (pid == 0) return result;
  // Only the program may hold them, or there would be no end of file.
  out.write_end.reset();
  err.write_end.reset();
  if (options.on_start) options.on_start(pid);
  read_until_end(pid, out.read_end, err.read_end, result);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

}  // namespace pagetide
