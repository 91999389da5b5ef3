#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pagetide/snapshot/file_system.h"

namespace pagetide {

// Passes everything on to another file system and calls a hook before each mutating operation
// (those of CrashFileSystem, with the same numbers and descriptions). When the hook returns an
// error, the operation fails with it instead of being done. The hook may also end the process, to
// see what a kill in the middle of a commit leaves.
//
// Thread-safe when the hook and the other file system are; the hook is called without a lock.
// The other file system must outlive this one, its files and its locks; files and locks may
// outlive this one.
class FaultyFileSystem final : public FileSystem {
 public:
  using Hook = std::function<Result<void>(std::size_t operation, std::string_view what)>;

  FaultyFileSystem(FileSystem& inner, Hook hook);

  Result<void> create_directory(const std::string& path) override;
  Result<std::unique_ptr<File>> create(const std::string& path, WriteMode mode) override;
  Result<std::unique_ptr<File>> open_read(const std::string& path) override;
  Result<void> rename(const std::string& from, const std::string& to) override;
  Result<void> remove(const std::string& path) override;
  Result<void> sync_directory(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;

 private:
  class Gate;
  class HookedFile;

  FileSystem& inner_;
  std::shared_ptr<Gate> gate_;
};

}  // namespace pagetide
