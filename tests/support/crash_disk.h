#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tl/expected.hpp>
#include <vector>

// What the crash contract of FileSystem (snapshot/file_system.h) says about a disk, as a data
// structure: what programs see, what is on stable storage, and what may be left of the difference
// after a power failure. Knows nothing of operations, faults and locks on threads: that is
// CrashFileSystem. Not thread-safe.

namespace pagetide {

// What happens to everything that was not synced when the power fails.
class LossPolicy {
 public:
  // All of it is lost.
  static LossPolicy drop_all() { return LossPolicy(std::nullopt); }
  // Each page of appended data and each change of a directory entry is kept or lost on its own.
  // The same seed on the same disk gives the same outcome.
  static LossPolicy keep_random(std::uint64_t seed) { return LossPolicy(seed); }

  // Nothing: drop all.
  const std::optional<std::uint64_t>& seed() const { return seed_; }

 private:
  explicit LossPolicy(std::optional<std::uint64_t> seed) : seed_(seed) {}
  std::optional<std::uint64_t> seed_;
};

struct CrashInode;
using CrashInodePtr = std::shared_ptr<CrashInode>;
using CrashEntries = std::map<std::string, CrashInodePtr, std::less<>>;

// A file or a directory; only the members of its kind are used.
struct CrashInode {
  bool is_directory = false;

  // Directory: as programs see it, and as of the last sync_directory.
  CrashEntries entries;
  CrashEntries durable_entries;

  // File: as programs see it. Files only grow, so what is durable is the first durable_bytes of
  // it, unless the file was emptied by create() since the last sync: then it is still the whole
  // content of before.
  std::vector<std::byte> content;
  std::size_t durable_bytes = 0;
  std::optional<std::vector<std::byte>> durable_before_truncation;
  bool is_locked = false;
};

template <typename T>
using OrErrno = tl::expected<T, int>;

// Paths are split at "/"; relative ones start at the root, which always exists. There are no
// links. A directory can be renamed within its parent only (EXDEV otherwise).
class CrashDisk {
 public:
  CrashDisk();
  CrashDisk(CrashDisk&&) = default;
  CrashDisk& operator=(CrashDisk&&) = default;

  // The same disk again, unsynced changes included, sharing nothing with this one.
  CrashDisk clone() const;
  // What a machine finds that starts again with this disk after a power failure.
  CrashDisk after_power_loss(const LossPolicy& policy) const;

  // Operations of the file system. On failure: the errno of Linux.
  OrErrno<CrashInodePtr> find(const std::string& path) const;
  OrErrno<void> create_directory(const std::string& path);
  // The file at the path, created when missing.
  OrErrno<CrashInodePtr> open_or_create(const std::string& path);
  // The same, emptied when it was there.
  OrErrno<CrashInodePtr> create_file(const std::string& path);
  OrErrno<void> rename(const std::string& from, const std::string& to);
  OrErrno<void> remove(const std::string& path);
  OrErrno<void> sync_directory(const std::string& path);

  static void append(CrashInode& file, const std::byte* data, std::size_t size_bytes);
  static void sync(CrashInode& file);
  // What Linux does when writing back fails: the pages count as clean, but their data is gone.
  // The length stays, so a second sync() succeeds and makes zeros durable.
  static void lose_unsynced(CrashInode& file);

  // All files by path, without leading "/".
  std::map<std::string, CrashInodePtr> files() const;
  // What the files hold together, in bytes.
  std::size_t used_bytes() const;

 private:
  // One name of one directory, changed since the directory was last synced.
  struct EntryChange {
    CrashInodePtr directory;
    std::string name;
    CrashInodePtr value;  // null: the name went away
    // When the name went away by a rename: where to, and what.
    CrashInodePtr moved;
    CrashInodePtr moved_to_directory;
    std::string moved_to_name;
  };
  struct Place {
    CrashInodePtr directory;
    std::string name;  // empty: the root itself
  };
  // For directories with unsynced changes: the entries that a power failure leaves.
  using Draft = std::map<CrashInode*, CrashEntries, std::less<>>;
  using Random = std::mt19937_64;

  OrErrno<Place> locate(const std::string& path) const;
  void apply(EntryChange change);
  void make_durable(const CrashInodePtr& directory, const std::string& name,
                    const CrashInodePtr& value);

  Draft draw_entries(Random& random) const;
  bool is_possible(const Draft& draft) const;
  void settle(const Draft& draft, Random* random);

  CrashInodePtr root_;
  std::vector<EntryChange> unsynced_changes_;  // oldest first
};

}  // namespace pagetide
