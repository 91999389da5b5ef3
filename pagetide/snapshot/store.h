#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pagetide/allocator/arena.h"
#include "pagetide/base/error.h"
#include "pagetide/base/export.h"
#include "pagetide/base/page_range.h"
#include "pagetide/snapshot/file_system.h"
#include "pagetide/snapshot/snapshot_id.h"

namespace pagetide {

namespace format {
struct Manifest;
}  // namespace format
class PageMap;
class SegmentReader;
class SegmentWriter;

// Called now and then during long work, with units done so far and in total. May be empty.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

enum class StoreMode : std::uint8_t {
  create_or_write,  // for writing; made when it is missing
  write,            // for writing; must exist
  read,             // needs no lock and works while another process writes
};

struct StoreOptions {
  StoreMode mode = StoreMode::create_or_write;
  FileSystem* files = nullptr;  // nullptr: the machine's; must outlive the store
};

struct OpenArenaOptions {
  ClearPolicy clear = ClearPolicy::deferred;
  Prefill prefill = Prefill::zero_page;
  BackendKind backend = BackendKind::automatic;
  HotPageOptions hot_pages = {};
  OnCorruption on_corruption = {};
  unsigned slack_percent = kDefaultSlackPercent;
  // Opens an arena that holds code addresses although the program is another build or loaded
  // elsewhere: every vtable and function pointer inside dangles.
  bool ignore_program_identity = false;
  Progress progress = {};  // in pages
};

// The snapshots of a store and what could not be read of it.
struct SnapshotList {
  std::vector<SnapshotInfo> snapshots;  // ascending ids
  std::vector<Error> problems;          // one for each snapshot whose description is unreadable
};

// A directory that holds the snapshots of an arena. Append-only: what is committed is never
// written to again. Crash-safe: after a crash at any moment the store opens and holds every
// snapshot whose commit was reported. The format is docs/format.md.
//
// One writer at a time, over all processes (a lock that the kernel drops when its holder dies);
// readers need no lock and see what is committed when they look. Files and directory are
// readable by their owner alone. A Store is not thread-safe; use one per thread for reading.
class PAGETIDE_API Store {
 public:
  // Errors: not_found, not_a_store, version_too_new, damaged, busy (another writer), unsupported
  // (another page size), permission_denied, no_space, system_failure.
  static Result<Store> open(const std::string& path, const StoreOptions& options = {});

  Store(Store&&) noexcept;
  Store& operator=(Store&&) noexcept;
  ~Store();

  const std::string& path() const;

  // The newest committed snapshot; not_found when the store is empty. A reading store looks again.
  Result<SnapshotId> latest();
  SnapshotList snapshots();
  Result<SnapshotInfo> info(SnapshotId id);
  // What a snapshot changed against its parent, ascending.
  Result<std::vector<ChangedRun>> changes(SnapshotId id);

  // The arena of that snapshot, at its recorded base, in a fresh reservation. Every page is
  // checked. No work per object. Errors as of open(), and address_taken, identity_mismatch.
  Result<Arena> open_arena(SnapshotId id, const OpenArenaOptions& options = {});

  // Calls visit(pages, content) for each stored run of a snapshot's image, ascending; what is not
  // visited is zero. Runs are at most 8 MiB. An error of visit ends it.
  using ImageVisitor = std::function<Result<void>(PageRange, std::span<const std::byte>)>;
  Result<void> read_image(SnapshotId id, const ImageVisitor& visit, const Progress& progress = {});
  // The same for what lies before the heap's data alone: reads no segment.
  Result<void> read_metadata(SnapshotId id, const ImageVisitor& visit);

  // --- for the snapshot layer ---
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit Store(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pagetide
