#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "examples/kvm_guest/watched_guest.h"

namespace kvm_guest {

struct Options {
  GuestOptions guest;
  std::uint32_t rounds = 20;
  std::size_t pages = 256;       // that the guest writes in a round
  std::size_t device_pages = 4;  // that this process writes in a round, as a device would
  std::uint64_t seed = 1;
};

constexpr int kExitDifference = 1;
constexpr int kExitUsage = 2;
constexpr int kExitUnsupported = 3;

// Nothing when the program is to end with *exit_status at once: after --help, or a mistake that
// was reported.
std::optional<Options> parse_options(int argc, char** argv, int* exit_status);

}  // namespace kvm_guest
