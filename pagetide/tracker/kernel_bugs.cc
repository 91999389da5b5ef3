#include "pagetide/tracker/kernel_bugs.h"

#include <array>

#include "pagetide/tracker/kernel/kernel_release.h"

namespace pagetide {

namespace {

// A fix: releases of its series from here on have it. The last one also covers later series.
using Fixes = std::array<KernelVersion, 3>;  // unused places are 0.0.0

struct Entry {
  KernelBug bug;
  KernelVersion since;
  Fixes fixed;
  // False: stable series other than those in `fixed` got the fix too, in versions not known.
  bool all_fixes_known = true;
};

// From the CVE records and the kernel's commits named.
constexpr std::array<Entry, 9> kEntries = {{
    {{"CVE-2024-36943", "arming a page can lose its hardware dirty bit, and with it the write",
      "uffd_async is refused here; update to 6.8.10 or newer"},
     {6, 7, 0},
     {{{6, 8, 10}}}},
    {{"CVE-2024-36881", "closing a userfaultfd leaves pages protected",
      "none: the library unregisters memory before it closes"},
     {5, 7, 0},
     {{{6, 8, 10}}},
     false},
    {{"CVE-2025-21696", "mremap() carries protection to the new place",
      "none, unless watched memory is moved, which is forbidden: unwatch it first"},
     {5, 7, 0},
     {{{6, 12, 11}, {6, 13, 0}}},
     false},
    {{"CVE-2025-40009", "PAGEMAP_SCAN without an output vector can crash the kernel",
      "none: the library always gives a vector"},
     {6, 7, 0},
     {{{6, 18, 0}}},
     false},
    {{"12f6b01a0bcb", "PAGEMAP_SCAN reports purged pages as clean",
      "none for arenas, which log their purges; purge memory of your own through the tracker",
      "kernel.purges_reported"},
     {6, 7, 0},
     {{{7, 2, 0}}},
     false},
    {{"2bad466cc9d9", "PAGEMAP_SCAN reports a purged huge page as clean",
      "none for arenas, which log their purges; purge memory of your own through the tracker",
      "kernel.holes_reported"},
     {6, 7, 0},
     {{{7, 2, 0}}},
     false},
    {{"CVE-2026-72174", "protecting a hole of hugetlb memory locks up the thread for good",
      "none: hugetlb memory is refused"},
     {5, 19, 0},
     {{{6, 12, 101}, {6, 18, 42}, {7, 1, 5}}},
     false},
    {{"must_wait", "a thread can sleep on a userfaultfd fault that is resolved already",
      "uffd_sync wakes all waiting threads every 100 ms, so such a write can take that long"},
     {5, 7, 0},
     {{{6, 12, 101}, {6, 18, 42}, {7, 1, 5}}},
     false},
    {{"PFNZERO", "PAGEMAP_SCAN does not know the huge zero page as zero",
      "pages of zeros cost a read in a snapshot; they are found by content"},
     {6, 7, 0},
     {{{6, 16, 0}}},
     false},
}};

KernelBug::State state_of(const Entry& entry, const KernelVersion& version) {
  if (version < entry.since) return KernelBug::State::not_affected;
  KernelVersion newest{};
  for (const KernelVersion& fix : entry.fixed) {
    if (fix == KernelVersion{}) break;
    newest = fix;
    const bool same_series = fix.major == version.major && fix.minor == version.minor;
    if (!same_series) continue;
    return version < fix ? KernelBug::State::affected : KernelBug::State::not_affected;
  }
  if (version > newest) return KernelBug::State::not_affected;
  return entry.all_fixes_known ? KernelBug::State::affected : KernelBug::State::perhaps;
}

}  // namespace

std::string_view to_string(KernelBug::State state) {
  switch (state) {
    case KernelBug::State::affected:
      return "affected";
    case KernelBug::State::perhaps:
      return "perhaps";
    case KernelBug::State::not_affected:
      return "not affected";
  }
  return "unknown";
}

std::vector<KernelBug> known_kernel_bugs(std::string_view release) {
  const KernelVersion version = parse_kernel_release(release);
  std::vector<KernelBug> bugs;
  for (const Entry& entry : kEntries) {
    bugs.push_back(entry.bug);
    bugs.back().state = state_of(entry, version);
  }
  return bugs;
}

bool has_lost_dirty_bit_bug(std::string_view release) {
  return known_kernel_bugs(release).front().state == KernelBug::State::affected;
}

}  // namespace pagetide
