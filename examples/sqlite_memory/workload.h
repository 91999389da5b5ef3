#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>

#include "examples/sqlite_memory/bank.h"
#include "pagetide/pagetide.hpp"

namespace sqlite_memory {

// A thread that runs one transaction after the other, and comes to a safepoint between two.
class Workload {
 public:
  Workload(BankState& state, pagetide::Safepoints& points);
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;
  // As end().
  ~Workload();

  // Returns when it has run so many more transactions, or has failed.
  pagetide::Result<void> wait_for(std::uint64_t more) const;
  // By this thread, whether rolled back since or not.
  std::uint64_t transactions() const { return transactions_.load(); }
  // Ends the thread after its transaction; transactions(). Not while it is stopped.
  std::uint64_t end();

 private:
  void run();

  static constexpr std::uint64_t kFailed = UINT64_MAX;

  BankState& state_;
  pagetide::Safepoints& points_;
  std::atomic<bool> is_to_end_ = false;
  std::atomic<std::uint64_t> transactions_ = 0;  // kFailed: error_ says why, and the thread is gone
  std::optional<pagetide::Error> error_;
  std::thread thread_;
};

}  // namespace sqlite_memory
