#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "examples/lua_vm/commands.h"
#include "examples/lua_vm/options.h"
#include "examples/lua_vm/report.h"
#include "examples/lua_vm/vm.h"
#include "pagetide/pagetide.hpp"

namespace lua_vm {

// Plays commands on a machine, and takes snapshots between turns.
class Player {
 public:
  Player(const Options& options, pagetide::Store& store, pagetide::Arena& arena, Vm& vm,
         Report& report);

  // For a machine that came out of the store.
  pagetide::Result<void> reopened_from(pagetide::SnapshotId id);
  // The script up to its first answer.
  pagetide::Result<void> begin();
  // To their end, or to that of the game.
  pagetide::Result<void> play(Commands& commands);
  // See --back-to. Fails when the world after a rollback is not what it was, or the first way does
  // not end again as it did.
  pagetide::Result<void> go_another_way();

 private:
  struct Taken {
    pagetide::SnapshotId id;
    Moment moment;
  };

  pagetide::Result<void> take();
  pagetide::Result<Moment> look();
  pagetide::Result<Moment> roll_back();
  // False where there is no command left, or the game is over.
  pagetide::Result<bool> play_one(Commands& commands);
  pagetide::Result<Moment> play_to_the_end(Commands& commands);

  const Options& options_;
  Vm& vm_;
  Report& report_;
  pagetide::Store& store_;
  pagetide::Snapshotter snapshotter_;
  std::map<std::uint64_t, Taken> taken_;  // by turn
};

}  // namespace lua_vm
