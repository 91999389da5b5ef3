#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pagetide/snapshot/file_system.h"
#include "tests/support/crash_disk.h"

namespace pagetide {

// Whether the operation at which a crash happens still takes effect. Nobody learns its result.
enum class CrashTiming : std::uint8_t { before, after };

// A file system in memory that keeps exactly what FileSystem promises and nothing else, and that
// fails where it is told to.
//
// Every mutating call (create_directory, create, append, sync, rename, remove, sync_directory,
// lock) is one operation; they are numbered from 0. So a test runs its scenario once, takes
// operations().size(), and runs it again for each number with a fault there.
//
// It is stricter than a real one in one point: an append to a file created with
// WriteMode::direct_if_possible that is not whole pages from page-aligned memory fails with
// invalid_argument, because on some real file system it would.
//
// Thread-safe. Files and locks may outlive it.
class CrashFileSystem final : public FileSystem {
 public:
  CrashFileSystem();  // an empty root directory
  CrashFileSystem(const CrashFileSystem&) = delete;
  CrashFileSystem& operator=(const CrashFileSystem&) = delete;
  ~CrashFileSystem() override;

  Result<void> create_directory(const std::string& path) override;
  Result<std::unique_ptr<File>> create(const std::string& path, WriteMode mode) override;
  Result<std::unique_ptr<File>> open_read(const std::string& path) override;
  Result<void> rename(const std::string& from, const std::string& to) override;
  Result<void> remove(const std::string& path) override;
  Result<void> sync_directory(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;

  // What was done so far, for people. Ends with the operation that crashed.
  std::vector<std::string> operations() const;
  // Calls of File::sync and sync_directory so far, failed and ignored ones included.
  std::size_t sync_count() const;

  // Faults. Operation numbers are those of operations(); several faults may be set.

  // This operation and everything after it, reads included, fails with system_failure. When it is
  // past already, the next one does.
  void crash_at(std::size_t operation, CrashTiming timing = CrashTiming::before);
  bool crashed() const;
  // This operation alone fails with the errno. A failing append has written half of its bytes
  // when the errno is ENOSPC or EDQUOT, none otherwise. A failing sync turns the unsynced bytes of
  // the file into zeros, and the next sync succeeds, as on Linux. Everything else has no effect.
  void fail_at(std::size_t operation, int system_errno);
  // The n-th sync or sync_directory (counted on their own, from 0) succeeds without effect: as if
  // the call had been forgotten.
  void ignore_sync(std::size_t n);
  // Appends fail with ENOSPC once all files together would be larger; what fits is written.
  void capacity_bytes(std::uint64_t limit);

  // The disk as a machine finds it that starts again after a power failure right now.
  std::unique_ptr<CrashFileSystem> after_crash(const LossPolicy& policy) const;
  // The same disk, unsynced changes included: what is left when the process is killed while the
  // machine goes on. For both: nothing is locked, operations count from 0, no fault is set but
  // the capacity.
  std::unique_ptr<CrashFileSystem> clone() const;

  // Looking at the disk and damaging it, past the faults. Paths as in file_names(): those of all
  // files, sorted, without "/" in front. Damage hits what programs see and what is durable of
  // it alike; false, and nothing done, when there is no such file or offset.
  std::vector<std::string> file_names() const;
  std::optional<std::uint64_t> file_size(const std::string& path) const;
  [[nodiscard]] bool flip_bit(const std::string& path, std::uint64_t offset, unsigned bit);
  // Cuts the file off; it cannot be made longer.
  [[nodiscard]] bool truncate(const std::string& path, std::uint64_t size_bytes);

 private:
  class State;
  class OpenFile;
  class HeldLock;

  explicit CrashFileSystem(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

}  // namespace pagetide
