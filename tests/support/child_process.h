#pragma once

#include <string.h>  // sigabbrev_np
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "pagetide/base/unique_fd.h"

namespace pagetide {

// The handler of SIGSEGV that the program began with: nobody's, or that of a sanitizer, which
// would write a report and exit.
inline const sighandler_t kInitialSegvHandler = [] {
  struct sigaction now {};
  ::sigaction(SIGSEGV, nullptr, &now);
  return now.sa_handler;
}();

inline void let_faults_kill() {
  struct sigaction now {};
  ::sigaction(SIGSEGV, nullptr, &now);
  if (now.sa_handler == kInitialSegvHandler) ::signal(SIGSEGV, SIG_DFL);
}

// Runs `body` in a forked child and waits for it. Gives what `body` returned, a std::string that
// is empty when all was well; for a child that died, how: "killed by SIGSEGV".
template <typename Body>
std::string run_in_child(Body&& body) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "no pipe";
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return "no fork";
  if (child == 0) {
    let_faults_kill();
    const std::string answer = body();
    // Short answers fit into the pipe.
    const bool sent = ::write(write_end.get(), answer.data(), answer.size()) ==
                      static_cast<ssize_t>(answer.size());
    ::_exit(sent ? 0 : 1);
  }
  write_end.reset();
  std::string answer;
  std::array<char, 256> buffer{};
  for (ssize_t n = 0; (n = ::read(read_end.get(), buffer.data(), buffer.size())) > 0;) {
    answer.append(buffer.data(), static_cast<std::size_t>(n));
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return "the child was lost";
  if (WIFSIGNALED(status)) return std::string("killed by SIG") + ::sigabbrev_np(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "exit " + std::to_string(WEXITSTATUS(status)) + " " + answer;
  return answer;
}

}  // namespace pagetide
