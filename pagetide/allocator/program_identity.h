#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "pagetide/base/export.h"

namespace pagetide {

// Which program, at which place: what must be the same for code addresses (vtables, function
// pointers) stored in an arena to mean the same in another process.
struct ProgramIdentity {
  std::array<std::uint8_t, 20> build_id{};  // of the main program; zero when it was linked without
  std::uint64_t load_address = 0;           // of the main program

  friend bool operator==(const ProgramIdentity&, const ProgramIdentity&) = default;
  bool has_build_id() const { return build_id != std::array<std::uint8_t, 20>{}; }
  std::string build_id_hex() const;
};

// Found once per process. Thread-safe.
PAGETIDE_API const ProgramIdentity& current_program();

}  // namespace pagetide
