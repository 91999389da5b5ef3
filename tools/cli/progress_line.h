#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "pagetide/snapshot/store.h"

namespace pagetide::cli {

// One line on standard error that tells how far long work is: after the first second, and only
// on a terminal; at once and always when forced. Standard output is never touched.
class ProgressLine {
 public:
  ProgressLine(std::string what, bool is_forced);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() { finish(); }

  // Counts pages; valid as long as this object stays.
  Progress callback() {
    return [this](std::uint64_t done, std::uint64_t total) { update(done, total); };
  }
  // Gives the line back; to be called before anything else is written to standard error.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void update(std::uint64_t done, std::uint64_t total);
  void show() const;

  std::string what_;
  bool is_forced_;
  bool is_terminal_;
  bool is_shown_ = false;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  Clock::time_point next_;
};

}  // namespace pagetide::cli
