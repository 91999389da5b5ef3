#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/tracker/backend_choice.h"
#include "pagetide/tracker/dirty_backend.h"
#include "pagetide/tracker/kernel_bugs.h"

namespace pagetide {

// One thing that was tried on this machine.
struct Capability {
  std::string name;  // stable, for scripts: "uffd_async", "kernel.holes_reported"
  bool available = false;
  std::string detail;   // what was seen, and where it is missing how to get it
  std::string without;  // what it costs to be without it
};

// What this kernel and sandbox can do, found by doing it: every item is a real call on scratch
// memory, never a guess from a version number. The one exception is Linux 6.7 to 6.8.9, refused
// by version for uffd_async (see kernel_bugs.h).
struct Capabilities {
  std::vector<Capability> items;
  std::vector<KernelBug> kernel_bugs;         // by version, and by probes where they can tell
  BackendKind chosen = BackendKind::compare;  // what BackendKind::automatic gives
  std::string reason;                         // why

  const Capability* find(std::string_view name) const;
};

// Runs all probes; takes a few milliseconds. Thread-safe. Clears the soft-dirty bits of this
// process, once, where there are any.
PAGETIDE_API Capabilities probe_capabilities();

}  // namespace pagetide
