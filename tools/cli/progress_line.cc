#include "tools/cli/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "tools/cli/output.h"

namespace pagetide::cli {

namespace {

constexpr std::chrono::milliseconds kPatience{1000};
constexpr std::chrono::milliseconds kInterval{100};
constexpr const char* kEraseLine = "\r\033[K";

void print(const std::string& text) {
  // Progress that cannot be shown is no reason to stop.
  (void)write_all(STDERR_FILENO, "standard error", text.data(), text.size());
}

}  // namespace

ProgressLine::ProgressLine(std::string what, bool is_forced)
    : what_(std::move(what)),
      is_forced_(is_forced),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      next_(is_forced ? Clock::now() : Clock::now() + kPatience) {}

void ProgressLine::update(std::uint64_t done, std::uint64_t total) {
  if (!is_terminal_ && !is_forced_) return;
  done_ = std::min(done, total);
  total_ = total;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + kInterval;
  is_shown_ = true;
  show();
}

void ProgressLine::show() const {
  const double share = total_ == 0 ? 1 : static_cast<double>(done_) / static_cast<double>(total_);
  print(fmt::format("{}{}: {:.0f} % ({} of {} pages)", is_terminal_ ? kEraseLine : "\r", what_,
                    100 * share, done_, total_));
}

void ProgressLine::finish() {
  if (!is_shown_) return;
  is_shown_ = false;
  if (is_terminal_) {
    print(kEraseLine);
  } else {
    show();  // where it stays to be read, it ends with what was reached
    print("\n");
  }
}

}  // namespace pagetide::cli
