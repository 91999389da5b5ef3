#include "examples/lua_vm/vm.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace lua_vm {

using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::propagate;
using pagetide::Result;

struct Vm::Turn {
  VmState* state;
  const char* command;  // null: the first turn, with the seed
  std::size_t size;
  std::uint64_t seed;
  int status = LUA_OK;  // how the script fared
};

namespace {

constexpr std::string_view kRoot = "lua vm";

// See Vm on the allocator's context.
constinit pagetide::Heap* lua_heap = nullptr;

void* allocate(void* /*context*/, void* block, std::size_t old_bytes, std::size_t new_bytes) {
  if (new_bytes == 0) {
    lua_heap->deallocate(block);
    return nullptr;
  }
  // Where there is no block yet, old_bytes says what it is for.
  if (block == nullptr) return lua_heap->allocate(new_bytes);
  void* moved = lua_heap->reallocate(block, new_bytes);
  // A block that shrinks may be moved, for which the arena may be too full; it is large enough.
  return moved == nullptr && new_bytes <= old_bytes ? block : moved;
}

// For errors outside of all protected calls, of which there should be none. Lua aborts after it.
int panic(lua_State* lua) {
  const char* message = lua_tostring(lua, -1);
  std::fprintf(stderr, "lua_vm: an error that nobody catches: %s\n",
               message == nullptr ? "not a text" : message);
  return 0;
}

// --- Functions that run within a protected call of the main state. An error leaves them by a jump,
// --- past destructors: no object of theirs may need one.

struct Script {
  VmState* state;
  const char* text;
  std::size_t size;
  const char* name;
};

int load_script(lua_State* lua) {
  const auto* script = static_cast<const Script*>(lua_touserdata(lua, 1));
  constexpr luaL_Reg kLibraries[] = {
      {LUA_GNAME, luaopen_base},       {LUA_COLIBNAME, luaopen_coroutine},
      {LUA_TABLIBNAME, luaopen_table}, {LUA_STRLIBNAME, luaopen_string},
      {LUA_MATHLIBNAME, luaopen_math}, {LUA_UTF8LIBNAME, luaopen_utf8},
  };
  for (const luaL_Reg& library : kLibraries) {
    luaL_requiref(lua, library.name, library.func, 1);
    lua_pop(lua, 1);
  }
  // A game that reads files, or prints past its answers, is not wholly in its heap.
  for (const char* name : {"dofile", "loadfile", "print"}) {
    lua_pushnil(lua);
    lua_setglobal(lua, name);
  }
  lua_State* game = lua_newthread(lua);
  lua_setfield(lua, LUA_REGISTRYINDEX, "game");  // so that it is not garbage
  if (luaL_loadbufferx(lua, script->text, script->size, script->name, "t") != LUA_OK) {
    return lua_error(lua);
  }
  lua_xmove(lua, game, 1);
  script->state->game = game;
  return 0;
}

tl::unexpected<pagetide::Error> out_of_memory() {
  return failure(ErrorCode::out_of_memory,
                 "the script needs more memory than the arena has; begin a new store with a "
                 "larger --reserve.");
}

int tell_world(lua_State* lua) {
  lua_getglobal(lua, "state");
  lua_call(lua, 0, 1);
  luaL_checkstring(lua, -1);
  return 1;
}

}  // namespace

// Within a protected call, too. Returns the answer.
int Vm::run_turn(lua_State* lua) {
  auto* turn = static_cast<Turn*>(lua_touserdata(lua, 1));
  lua_State* game = turn->state->game;
  if (turn->command == nullptr) {
    lua_pushinteger(game, static_cast<lua_Integer>(turn->seed));
  } else {
    lua_pushlstring(game, turn->command, turn->size);
  }
  int results = 0;
  const int status = lua_resume(game, lua, 1, &results);
  turn->status = status;
  if (status != LUA_OK && status != LUA_YIELD) {
    luaL_traceback(lua, game, lua_tostring(game, -1), 0);
    return lua_error(lua);
  }
  if (results != 1 || lua_type(game, -1) != LUA_TSTRING) {
    return luaL_error(lua, "the script has to %s one text, its answer",
                      status == LUA_YIELD ? "yield" : "return");
  }
  lua_xmove(game, lua, 1);
  turn->state->is_over = status == LUA_OK;
  return 1;
}

// FNV-1a, with an end to each text.
std::uint64_t hash_text(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return (hash ^ 0x100U) * 0x100000001b3ULL;
}

Result<std::string> Vm::call(lua_CFunction function, void* argument) {
  lua_State* lua = state_->main;
  // Neither of the two allocates, and so neither can fail outside of the protected call.
  lua_pushcfunction(lua, function);
  lua_pushlightuserdata(lua, argument);
  const int status = lua_pcall(lua, 1, 1, 0);
  std::size_t size = 0;
  const char* bytes = lua_type(lua, -1) == LUA_TSTRING ? lua_tolstring(lua, -1, &size) : "";
  std::string text(bytes, size);
  lua_settop(lua, 0);
  if (status == LUA_OK) return text;
  if (status == LUA_ERRMEM) return out_of_memory();
  return failure(ErrorCode::invalid_argument, "the script fails: " + text);
}

Result<Vm> Vm::create(pagetide::Arena& arena, std::string_view script,
                      std::string_view script_name) {
  lua_heap = &arena.heap();
  arena.set_holds_code_addresses();
  auto state = arena.find_or_construct<VmState>(kRoot);
  if (!state) return propagate(state);
  Vm vm(*state);
  vm.state_->main = lua_newstate(allocate, nullptr);
  if (vm.state_->main == nullptr) {
    return failure(ErrorCode::out_of_memory,
                   "the arena has no room for a Lua state; give it more with --reserve.");
  }
  lua_atpanic(vm.state_->main, panic);
  const std::string name = fmt::format("@{}", script_name);
  Script loaded{vm.state_, script.data(), script.size(), name.c_str()};
  if (auto r = vm.call(load_script, &loaded); !r) return propagate(r);
  return vm;
}

Result<Vm> Vm::reopen(pagetide::Arena& arena) {
  lua_heap = &arena.heap();
  auto state = arena.find<VmState>(kRoot);
  if (!state) return propagate(state);
  return Vm(*state);
}

Result<std::string> Vm::begin(std::uint64_t seed) {
  Turn turn{state_, nullptr, 0, seed};
  return take_turn(&turn);
}

Result<std::string> Vm::play(std::string_view command) {
  Turn turn{state_, command.data(), command.size(), 0};
  auto answer = take_turn(&turn);
  if (!answer) return answer;
  ++state_->turns;
  state_->commands_hash = hash_text(state_->commands_hash, command);
  return answer;
}

Result<std::string> Vm::take_turn(Turn* turn) {
  auto answer = call(run_turn, turn);
  if (turn->status == LUA_ERRMEM) return out_of_memory();
  if (answer) state_->transcript_hash = hash_text(state_->transcript_hash, *answer);
  return answer;
}

Result<std::string> Vm::world() {
  return call(tell_world, nullptr);
}

}  // namespace lua_vm
