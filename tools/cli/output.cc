#include "tools/cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace pagetide::cli {

namespace {

std::string_view way_out(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "Free some space, or write to another file system.";
    case EFBIG:
      return "Raise the limit on file sizes (ulimit -f), or use another file system.";
    case EBADF:
      return "It is closed; redirect it to a file or to /dev/null.";
    default:
      return {};
  }
}

}  // namespace

Result<void> write_all(int fd, std::string_view name, const void* data, std::size_t size_bytes) {
  const char* at = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t n = ::write(fd, at, size_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      return system_failure(fmt::format("write to {}", name), error, way_out(error));
    }
    at += n;
    size_bytes -= static_cast<std::size_t>(n);
  }
  return {};
}

Result<void> Output::flush() {
  if (failed_) failed_ = write_all(fd_, "standard output", buffer_.data(), buffer_.size());
  buffer_.clear();
  return failed_;
}

ExitCode report_output_failure(const Error& error) {
  if (error.system_errno() == EPIPE) {
    (void)std::signal(SIGPIPE, SIG_DFL);
    (void)std::raise(SIGPIPE);  // returns only where SIGPIPE is blocked
  } else {
    report(error.message());
  }
  return ExitCode::unreadable;
}

void prepare_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one. Opened the wrong way round, so that using the stream
    // is still an error.
    (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
  (void)std::signal(SIGPIPE, SIG_IGN);
  (void)std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace pagetide::cli
