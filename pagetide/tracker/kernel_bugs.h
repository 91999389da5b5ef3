#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pagetide/base/export.h"

namespace pagetide {

// A bug of the kernel that touches write tracking, and what it means for users of this library.
struct KernelBug {
  enum class State {
    affected,      // by its version this kernel has it
    perhaps,       // no fix is known for this series; distributions may have brought one back
    not_affected,  // older than the bug, or fixed
  };
  std::string_view id;           // CVE number or commit
  std::string_view what;         // what goes wrong
  std::string_view consequence;  // for us, and what the library does about it
  // The capability whose probe shows this bug; empty: none can.
  std::string_view shown_by = {};
  State state = State::perhaps;
};

PAGETIDE_API std::string_view to_string(KernelBug::State state);

// What is known for a kernel release ("6.8.4-amd64"), by its version alone: most of these are
// races that no probe can show. Capabilities::kernel_bugs knows what probes found.
PAGETIDE_API std::vector<KernelBug> known_kernel_bugs(std::string_view release);

// CVE-2024-36943, the one for which asynchronous tracking is refused.
PAGETIDE_API bool has_lost_dirty_bit_bug(std::string_view release);

}  // namespace pagetide
