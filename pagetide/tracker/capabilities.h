#pragma once

#include <string>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/tracker/dirty_backend.h"

namespace pagetide {

// One thing that was tried on this machine.
struct Capability {
  std::string name;  // stable, for scripts: "uffd_async.round_trip"
  bool available = false;
  std::string detail;  // what was seen, and where it is missing how to get it
};

// What this kernel and sandbox can do, found by doing it: every item is a real call on scratch
// memory, never a guess from a version number. The one exception is Linux 6.7 to 6.8.9, refused
// by version, because there arming can lose the hardware dirty bit (CVE-2024-36943): a race that
// no probe can show.
struct Capabilities {
  std::vector<Capability> items;
  BackendKind chosen = BackendKind::compare;  // what BackendKind::automatic gives
  std::string reason;                         // why

  const Capability* find(std::string_view name) const;
};

// Runs all probes; takes a few milliseconds. Thread-safe.
PAGETIDE_API Capabilities probe_capabilities();

// Fails, with cause and way out, when asynchronous tracking cannot be trusted here. The result
// is found once per process and per value of PAGETIDE_DISABLE.
PAGETIDE_API Result<void> check_uffd_async();

// Whether a kernel release ("6.8.4-amd64") is one of those with CVE-2024-36943.
PAGETIDE_API bool has_lost_dirty_bit_bug(std::string_view release);

}  // namespace pagetide
