#include "examples/lua_vm/player.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace lua_vm {

using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::propagate;
using pagetide::Result;
using pagetide::SnapshotId;

Player::Player(const Options& options, pagetide::Store& store, pagetide::Arena& arena, Vm& vm,
               Report& report)
    : options_(options),
      vm_(vm),
      report_(report),
      store_(store),
      // One thread does everything.
      snapshotter_(arena, store, {.quiesce = pagetide::Quiesce::none()}) {}

Result<Moment> Player::look() {
  auto world = vm_.world();
  if (!world) return propagate(world);
  const VmState& state = vm_.state();
  return Moment{state.turns, hash_text(0, *world), state.transcript_hash, state.is_over,
                std::move(*world)};
}

Result<void> Player::take() {
  auto moment = look();
  if (!moment) return propagate(moment);
  if (const auto last = taken_.find(moment->turns);
      last != taken_.end() && last->second.id == snapshotter_.parent()) {
    return {};
  }
  auto id = snapshotter_.take();
  if (!id) return propagate(id);
  auto info = store_.info(*id);
  if (!info) return propagate(info);
  report_.snapshot(*info, *moment);
  taken_.insert_or_assign(moment->turns, Taken{*id, std::move(*moment)});
  return {};
}

Result<void> Player::reopened_from(SnapshotId id) {
  auto info = store_.info(id);
  if (!info) return propagate(info);
  auto moment = look();
  if (!moment) return propagate(moment);
  report_.reopened(*info, *moment);
  taken_.insert_or_assign(moment->turns, Taken{id, std::move(*moment)});
  return {};
}

Result<void> Player::begin() {
  auto answer = vm_.begin(options_.seed);
  if (!answer) return propagate(answer);
  report_.answer(*answer);
  return take();
}

Result<bool> Player::play_one(Commands& commands) {
  if (vm_.state().is_over) return false;
  const auto command = commands.next();
  if (!command) return false;
  auto answer = vm_.play(*command);
  if (!answer) return propagate(answer);
  report_.turn(*command, *answer);
  return true;
}

Result<void> Player::play(Commands& commands) {
  if (!commands.is_standard_input()) {
    if (auto r = commands.skip_played(vm_.state()); !r) return r;
  }
  for (std::uint64_t played = 1;; ++played) {
    auto more = play_one(commands);
    if (!more) return propagate(more);
    if (!*more) break;
    const std::uint64_t turns = vm_.state().turns;
    if (played == options_.kill_after) {
      report_.killing(turns);
      ::kill(::getpid(), SIGKILL);
    }
    if (turns % options_.snapshot_every == 0 || turns == options_.back_to) {
      if (auto r = take(); !r) return r;
    }
  }
  if (auto r = take(); !r) return r;
  auto end = look();
  if (!end) return propagate(end);
  report_.end(*end);
  return {};
}

Result<Moment> Player::roll_back() {
  const Taken& target = taken_.at(*options_.back_to);
  auto stats = snapshotter_.rollback(target.id);
  if (!stats) return propagate(stats);
  auto found = look();
  if (!found) return found;
  report_.rolled_back(target.id, *stats, *found);
  if (*found == target.moment) return found;
  return failure(ErrorCode::damaged,
                 fmt::format("after the rollback to snapshot {} the world is not what it was.\n"
                             "at the snapshot: {}\nnow:             {}",
                             target.id.value, target.moment.world, found->world));
}

Result<Moment> Player::play_to_the_end(Commands& commands) {
  for (;;) {
    auto more = play_one(commands);
    if (!more) return propagate(more);
    if (!*more) return look();
  }
}

Result<void> Player::go_another_way() {
  if (!taken_.contains(*options_.back_to)) {
    std::string turns;
    for (const auto& [turn, taken] : taken_) turns += fmt::format(" {}", turn);
    return failure(ErrorCode::not_found,
                   fmt::format("this run took no snapshot at turn {}, but at these:{}. Give one of "
                               "them to --back-to.",
                               *options_.back_to, turns));
  }
  auto other = Commands::open(options_.other);
  if (!other) return propagate(other);
  auto first = Commands::open(options_.commands);
  if (!first) return propagate(first);
  auto first_end = look();
  if (!first_end) return propagate(first_end);

  if (auto r = roll_back(); !r) return propagate(r);
  auto other_end = play_to_the_end(*other);
  if (!other_end) return propagate(other_end);
  if (auto r = take(); !r) return r;

  if (auto r = roll_back(); !r) return propagate(r);
  if (auto r = first->skip_played(vm_.state()); !r) return r;
  auto again = play_to_the_end(*first);
  if (!again) return propagate(again);
  report_.ways(*first_end, *other_end, *again);
  if (*again != *first_end) {
    return failure(ErrorCode::damaged,
                   fmt::format("the first way ends otherwise when it is gone again.\n"
                               "at first: {}\nnow:      {}",
                               first_end->world, again->world));
  }
  // The newest snapshot is where the program goes on.
  return take();
}

}  // namespace lua_vm
