#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace sqlite_memory {

struct Options {
  std::string store = "build/demo/sqlite.pagetide";
  std::uint64_t rounds = 20;
  std::uint64_t transactions = 100;  // at least so many before each snapshot and each rollback
  std::uint64_t accounts = 2'000;
  std::uint64_t seed = 1;
  std::size_t reserve_bytes = std::size_t{1} << 30;
  std::optional<std::uint64_t> plain;  // transactions
  bool json = false;
  bool quiet = false;
};

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

// Nothing when the program is to end with *exit_status at once: after --help, or a mistake that
// was reported.
std::optional<Options> parse_options(int argc, char** argv, int* exit_status);

}  // namespace sqlite_memory
