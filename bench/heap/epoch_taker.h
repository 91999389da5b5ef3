#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>

#include "pagetide/allocator/arena.h"
#include "pagetide/base/error.h"

namespace pagetide::bench {

// Ends an epoch of an arena's tracker again and again, in a thread of its own, while others work in
// the arena: what tracking adds to an allocator. Nothing is copied. Not thread-safe.
class EpochTaker {
 public:
  struct Plan {
    std::chrono::milliseconds period{0};
    std::size_t count = 0;  // of takes

    std::chrono::milliseconds whole() const { return period * count; }
  };

  // Has taken once when it returns: everything is armed, and the first epoch begins. `arena`
  // outlives it.
  static Result<std::unique_ptr<EpochTaker>> start(Arena& arena, const Plan& plan);
  EpochTaker(const EpochTaker&) = delete;
  EpochTaker& operator=(const EpochTaker&) = delete;
  ~EpochTaker();

  // Waits for the last take. Returns the pages that they reported in all.
  Result<std::size_t> finish();

 private:
  EpochTaker(Arena& arena, const Plan& plan) : arena_(arena), plan_(plan) {}
  Result<void> take();
  void run();

  Arena& arena_;
  Plan plan_;
  Collected collected_;
  std::size_t pages_ = 0;
  Result<void> outcome_;
  std::thread thread_;
};

}  // namespace pagetide::bench
