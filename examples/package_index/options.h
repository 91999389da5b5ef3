#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "examples/package_index/kill_switch.h"

namespace package_index {

struct Options {
  std::string store = "build/demo/packages.pagetide";
  std::string input;                      // empty: apt-cache dumpavail
  std::uint64_t snapshot_every = 10'000;  // records
  std::uint64_t rounds = 4;
  std::uint64_t limit = 0;  // records; 0: all
  std::size_t reserve_bytes = std::size_t{4} << 30;
  KillPoint kill_at;
  std::vector<std::string> queries;
  bool queries_only = false;
  bool quiet = false;
};

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// Nothing when the program is to end with *exit_status at once: after --help, or a mistake that
// was reported.
std::optional<Options> parse_options(int argc, char** argv, int* exit_status);

}  // namespace package_index
