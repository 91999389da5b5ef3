#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/base/export.h"
#include "pagetide/snapshot/store.h"

namespace pagetide {

struct VerifyReport {
  std::uint64_t snapshots = 0;       // looked at
  std::uint64_t pages = 0;           // read and compared with their checksums
  std::uint64_t bytes = 0;           // of these pages
  std::vector<Error> problems;       // what does not hold
  std::vector<SnapshotId> unusable;  // cannot be opened as they were, ascending

  bool sound() const { return problems.empty(); }
};

// Reads everything: each committed snapshot's manifest, its place in the history, every page of
// every segment and every heap record against its checksum, each full index against the chain it
// stands for. Changes nothing; needs no lock. Progress counts snapshots' pages. Fails only when
// nothing can be read at all; what is damaged is in the report.
PAGETIDE_API Result<VerifyReport> verify(Store& store, const Progress& progress = {});

}  // namespace pagetide
