#pragma once

#include <lua.hpp>

#include <cstdint>
#include <string>
#include <string_view>

#include "pagetide/pagetide.hpp"

namespace lua_vm {

// What the program remembers of its virtual machine: a root of the arena, which comes back with it.
struct VmState {
  lua_State* main = nullptr;
  lua_State* game = nullptr;  // the coroutine that the script runs in
  bool is_over = false;
  std::uint64_t turns = 0;
  std::uint64_t commands_hash = 0;    // of all commands so far
  std::uint64_t transcript_hash = 0;  // of all answers so far
};

// A Lua state that lives wholly in an arena, and a script in it that runs as a coroutine: it gets a
// command each time it is resumed, and yields an answer.
//
// A Lua state holds addresses of the program: C functions, the panic function, the empty part of
// every empty table, which is a constant of Lua's. So it means something only in the same build
// at the same place: the arena is marked as holding code addresses, and the program is linked
// statically and not position-independent. What else a state may hold, and this one does not:
//
//   the allocator's context    is null. The heap has another address in each process, so that
//                              the allocator finds it in a variable of the program.
//   a place to jump to         lua_State's errorJmp points to the C stack while a protected call
//                              is under way. Snapshots and rollbacks are made between turns,
//                              when there is none: a script that is suspended by yield has nothing
//                              on the C stack.
//   streams and libraries      io and package keep FILE pointers and handles of dlopen(); they
//                              are not opened, and neither are os and debug.
//
// The seed of Lua's hash tables is drawn when a state is made and stored in it: the order of
// pairs() is the same after a rollback and in the next process, but another one in another state.
// The state of math.random() is in the heap, too.
//
// For one thread. One at a time in a process.
class Vm {
 public:
  // Errors: invalid_argument with Lua's message where the script does not compile or fails.
  static pagetide::Result<Vm> create(pagetide::Arena& arena, std::string_view script,
                                     std::string_view script_name);
  // The one that an arena holds. Runs nothing of it.
  static pagetide::Result<Vm> reopen(pagetide::Arena& arena);

  // Runs the script, which gets the seed, to its first answer; once.
  pagetide::Result<std::string> begin(std::uint64_t seed);
  // One turn. Not when it is over.
  pagetide::Result<std::string> play(std::string_view command);
  // What the script's function state() tells of its world.
  pagetide::Result<std::string> world();

  // Changes with every turn, and with every rollback.
  const VmState& state() const { return *state_; }

 private:
  struct Turn;

  explicit Vm(VmState* state) : state_(state) {}
  static int run_turn(lua_State* lua);
  pagetide::Result<std::string> take_turn(Turn* turn);
  pagetide::Result<std::string> call(lua_CFunction function, void* argument);

  VmState* state_;
};

std::uint64_t hash_text(std::uint64_t hash, std::string_view text);

}  // namespace lua_vm
