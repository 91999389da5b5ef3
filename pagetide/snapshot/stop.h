#pragma once

#include <chrono>
#include <cstdint>

#include "pagetide/base/error.h"
#include "pagetide/snapshot/quiesce.h"

namespace pagetide {

// Holds the caller's writers, and lets them go on whatever happens.
class Stop {
 public:
  explicit Stop(const Quiesce& quiesce) : quiesce_(quiesce) {
    if (quiesce_.pause) held_ = quiesce_.pause();
    ended_ = !held_;
    start_ns_ = now_ns();
  }
  Stop(const Stop&) = delete;
  Stop& operator=(const Stop&) = delete;
  ~Stop() { end(); }

  // Why the writers could not be held; they go on then.
  Result<void>& held() { return held_; }
  // How long the stop took. Ends it when it has not ended yet.
  std::uint64_t end() {
    if (!ended_) {
      stop_ns_ = now_ns() - start_ns_;
      ended_ = true;
      if (quiesce_.resume) quiesce_.resume();
    }
    return stop_ns_;
  }

 private:
  static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }

  const Quiesce& quiesce_;
  Result<void> held_;
  std::uint64_t start_ns_ = 0;
  std::uint64_t stop_ns_ = 0;
  bool ended_ = false;
};

}  // namespace pagetide
