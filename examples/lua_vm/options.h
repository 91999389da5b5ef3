#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace lua_vm {

struct Options {
  std::string store = "build/demo/lua.pagetide";
  std::string game = "examples/lua_vm/lighthouse.lua";
  std::string commands = "-";        // a file; "-": standard input
  std::uint64_t snapshot_every = 5;  // turns
  std::uint64_t seed = 2;
  std::optional<std::uint64_t> back_to;     // turn
  std::string other;                        // a file of commands
  std::optional<std::uint64_t> kill_after;  // turns of this run
  std::size_t reserve_bytes = std::size_t{256} << 20;
  bool json = false;
  bool quiet = false;
};

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// Nothing when the program is to end with *exit_status at once: after --help, or a mistake that
// was reported.
std::optional<Options> parse_options(int argc, char** argv, int* exit_status);

}  // namespace lua_vm
