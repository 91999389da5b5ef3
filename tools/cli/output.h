#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "pagetide/base/error.h"
#include "tools/cli/exit_code.h"

namespace pagetide::cli {

// Standard output with every error noticed: `pagetide log > /full/disk` must not look fine.
// Buffered. Not thread-safe.
class Output {
 public:
  explicit Output(int fd) : fd_(fd) {}

  void write(std::string_view text) {
    buffer_.append(text);
    if (buffer_.size() >= kFlushBytes) (void)flush();
  }
  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kFlushBytes) (void)flush();
  }
  // Fails with the first error of any write so far. After it everything is dropped.
  Result<void> flush();

 private:
  static constexpr std::size_t kFlushBytes = std::size_t{64} << 10;

  int fd_;
  std::string buffer_;
  Result<void> failed_;
};

// Writes all of it to a pipe, terminal or file at its current position. `name` is for messages.
Result<void> write_all(int fd, std::string_view name, const void* data, std::size_t size_bytes);

// What to do when standard output cannot be written. A reader that went away (`| head`) has seen
// enough: the process ends by SIGPIPE, as shells expect, without a word. Else reports.
ExitCode report_output_failure(const Error& error);

// Before anything is opened: a file must never get the number of a standard stream that the
// caller closed, or messages would end up in it. And writing errors are to be returned, not to
// kill the process before it can tidy up.
void prepare_standard_streams();

}  // namespace pagetide::cli
