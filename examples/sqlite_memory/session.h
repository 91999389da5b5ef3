#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "examples/sqlite_memory/bank.h"
#include "examples/sqlite_memory/options.h"
#include "examples/sqlite_memory/workload.h"
#include "pagetide/pagetide.hpp"

namespace sqlite_memory {

// The database at one moment.
struct Moment {
  std::uint64_t transactions = 0;
  std::uint64_t hash = 0;

  friend bool operator==(const Moment&, const Moment&) = default;
};

struct Taken {
  pagetide::SnapshotInfo info;
  Moment moment;
};

struct RolledBack {
  pagetide::SnapshotId target;
  Moment from;
  Moment to;
  pagetide::RollbackStats stats;
};

struct Round {
  Taken taken;
  RolledBack rolled_back;
};

// Snapshots and rollbacks of a bank whose workload runs on meanwhile, with a look each time at
// whether everything is as it has to be.
class Session {
 public:
  Session(const Options& options, pagetide::Store& store, pagetide::Arena& arena, BankState& state);

  // A failure where anything is not as it has to be.
  pagetide::Result<Round> run_round();
  // Ends the workload. The last moment, checked like the others.
  pagetide::Result<Moment> end();

  // Run by the workload in all, whether rolled back or not.
  std::uint64_t transactions() const { return transactions_; }

 private:
  struct LetGo;

  pagetide::Result<void> hold();
  void let_go();
  pagetide::Result<Taken> take();
  pagetide::Result<RolledBack> roll_back();
  pagetide::Result<Moment> look() const;
  pagetide::Result<void> check() const;

  const Options& options_;
  pagetide::Store& store_;
  pagetide::Arena& arena_;
  BankState& state_;
  pagetide::Safepoints points_;
  bool is_held_ = false;
  bool let_go_when_copied_ = false;
  std::mt19937_64 random_;
  std::vector<Taken> taken_;
  std::uint64_t transactions_ = 0;
  pagetide::Snapshotter snapshotter_;
  std::optional<Workload> workload_;  // the first to go: it uses points_
};

}  // namespace sqlite_memory
