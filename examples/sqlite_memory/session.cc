#include "examples/sqlite_memory/session.h"

#include <fmt/format.h>

#include <chrono>

#include "examples/sqlite_memory/database.h"
#include "examples/sqlite_memory/static_pointers.h"

namespace sqlite_memory {

using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::propagate;
using pagetide::Result;

namespace {

// A VACUUM is one long step; a sanitizer makes it a slow one, too.
constexpr std::chrono::seconds kHoldLimit{30};

}  // namespace

struct Session::LetGo {
  Session& session;
  explicit LetGo(Session& held) : session(held) {}
  LetGo(const LetGo&) = delete;
  LetGo& operator=(const LetGo&) = delete;
  ~LetGo() { session.let_go(); }
};

Session::Session(const Options& options, pagetide::Store& store, pagetide::Arena& arena,
                 BankState& state)
    : options_(options),
      store_(store),
      arena_(arena),
      state_(state),
      random_(options.seed),
      // The workload is held before, because the hash of what is stored takes SQL. What it writes
      // while a snapshot's files are written is no part of it.
      snapshotter_(arena, store,
                   {.quiesce = pagetide::Quiesce::caller([] {},
                                                         [this] {
                                                           if (let_go_when_copied_) let_go();
                                                         })}),
      workload_(std::in_place, state, points_) {}

Result<void> Session::hold() {
  if (auto r = points_.stop(kHoldLimit); !r) return r;
  is_held_ = true;
  return {};
}

void Session::let_go() {
  if (!is_held_) return;
  is_held_ = false;
  points_.resume();
}

Result<Moment> Session::look() const {
  auto hash = content_hash(state_.connection);
  if (!hash) return propagate(hash);
  return Moment{state_.transactions, *hash};
}

// What has to hold whenever the workload does not run.
Result<void> Session::check() const {
  if (const std::string open = why_not_at_rest(state_.connection); !open.empty()) {
    return failure(ErrorCode::busy, open + " where nothing should be.");
  }
  if (const auto found = pointers_from_statics(arena_.range()); !found.empty()) {
    return failure(ErrorCode::damaged, "SQLite remembers something that no rollback puts back: " +
                                           describe(found) + ".");
  }
  return {};
}

Result<Taken> Session::take() {
  if (auto r = hold(); !r) return propagate(r);
  const LetGo at_the_end(*this);
  if (auto r = check(); !r) return propagate(r);
  auto moment = look();
  if (!moment) return propagate(moment);
  let_go_when_copied_ = true;
  auto id = snapshotter_.take();
  let_go_when_copied_ = false;
  if (!id) return propagate(id);
  auto info = store_.info(*id);
  if (!info) return propagate(info);
  taken_.push_back({std::move(*info), *moment});
  return taken_.back();
}

Result<RolledBack> Session::roll_back() {
  if (auto r = hold(); !r) return propagate(r);
  const LetGo at_the_end(*this);
  if (auto r = check(); !r) return propagate(r);
  auto from = look();
  if (!from) return propagate(from);
  // As often as not the newest: what programs do that try something.
  const Taken& target = random_() % 2 == 0 ? taken_.back() : taken_[random_() % taken_.size()];
  auto stats = snapshotter_.rollback(target.info.id);
  if (!stats) return propagate(stats);

  if (auto r = check(); !r) return propagate(r);
  if (auto r = arena_.heap().check(); !r) return propagate(r);
  if (auto r = check_bank(state_); !r) return propagate(r);
  auto to = look();
  if (!to) return propagate(to);
  if (*to != target.moment) {
    return failure(
        ErrorCode::damaged,
        fmt::format("after the rollback to snapshot {} the database has {} transactions and the "
                    "hash {:016x}; at the snapshot it had {} and {:016x}.",
                    target.info.id.value, to->transactions, to->hash, target.moment.transactions,
                    target.moment.hash));
  }
  return RolledBack{target.info.id, *from, *to, *stats};
}

Result<Round> Session::run_round() {
  if (auto r = workload_->wait_for(options_.transactions); !r) return propagate(r);
  auto taken = take();
  if (!taken) return propagate(taken);
  if (auto r = workload_->wait_for(options_.transactions); !r) return propagate(r);
  auto rolled_back = roll_back();
  if (!rolled_back) return propagate(rolled_back);
  transactions_ = workload_->transactions();
  return Round{std::move(*taken), *rolled_back};
}

Result<Moment> Session::end() {
  if (auto r = workload_->wait_for(options_.transactions); !r) return propagate(r);
  transactions_ = workload_->end();
  if (auto r = check(); !r) return propagate(r);
  if (auto r = check_bank(state_); !r) return propagate(r);
  return look();
}

}  // namespace sqlite_memory
