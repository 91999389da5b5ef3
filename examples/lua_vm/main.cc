// A text game whose virtual machine outlives the process. See --help.

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "examples/lua_vm/commands.h"
#include "examples/lua_vm/options.h"
#include "examples/lua_vm/player.h"
#include "examples/lua_vm/report.h"
#include "examples/lua_vm/vm.h"
#include "pagetide/pagetide.hpp"

namespace lua_vm {
namespace {

using pagetide::Arena;
using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::propagate;
using pagetide::Result;
using pagetide::SnapshotId;
using pagetide::Store;

Result<Store> open_store(const std::string& path) {
  // The store makes its own directory, for its owner alone; "a/b" and "a/b/" both lie in "a".
  const auto parent = (std::filesystem::absolute(path) / "").parent_path().parent_path();
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) {
    return pagetide::system_failure(fmt::format("create the directory {}", parent.string()),
                                    error.value(), "Name another place with --store.");
  }
  return Store::open(path);
}

Result<Vm> reopen(Arena& arena, const Store& store) {
  auto vm = Vm::reopen(arena);
  if (vm) return vm;
  return failure(
      ErrorCode::not_a_store,
      fmt::format("{} holds the arena '{}' of another program: {} Name another directory "
                  "with --store.",
                  store.path(), arena.name(), vm.error().message()));
}

Result<void> go_on(const Options& options, Store& store, Report& report, Commands& commands,
                   SnapshotId latest) {
  auto arena = store.open_arena(latest);
  if (!arena) return propagate(arena);
  auto vm = reopen(*arena, store);
  if (!vm) return propagate(vm);
  Player player(options, store, *arena, *vm, report);
  if (auto r = player.reopened_from(latest); !r) return r;
  if (auto r = player.play(commands); !r) return r;
  return options.back_to ? player.go_another_way() : Result<void>();
}

Result<void> start(const Options& options, Store& store, Report& report, Commands& commands) {
  auto script = read_file(options.game, "the game", "Name a Lua script with --game.");
  if (!script) return propagate(script);
  auto arena = Arena::create({.name = "Lua VM", .reserve_bytes = options.reserve_bytes});
  if (!arena) return propagate(arena);
  auto vm = Vm::create(*arena, *script, options.game);
  if (!vm) return propagate(vm);
  Player player(options, store, *arena, *vm, report);
  if (auto r = player.begin(); !r) return r;
  if (auto r = player.play(commands); !r) return r;
  return options.back_to ? player.go_another_way() : Result<void>();
}

Result<void> run(const Options& options) {
  auto commands = Commands::open(options.commands);
  if (!commands) return propagate(commands);
  auto store = open_store(options.store);
  if (!store) return propagate(store);
  Report report(options);
  auto latest = store->latest();
  if (!latest && latest.error().code() != ErrorCode::not_found) return propagate(latest);
  auto played = latest ? go_on(options, *store, report, *commands, *latest)
                       : start(options, *store, report, *commands);
  if (played) report.print_json();
  return played;
}

}  // namespace
}  // namespace lua_vm

int main(int argc, char** argv) {
  int status = 0;
  const auto options = lua_vm::parse_options(argc, argv, &status);
  if (!options) return status;
  const auto result = lua_vm::run(*options);
  if (result) return 0;
  fmt::print(stderr, "lua_vm: {}\n", result.error().message());
  return lua_vm::kExitFailure;
}
