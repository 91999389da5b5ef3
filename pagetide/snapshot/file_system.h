#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/base/export.h"

namespace pagetide {

// One open file. Not thread-safe, except read_at, which any number of threads may call.
// Destruction closes it; nothing is synced by closing.
class PAGETIDE_API File {
 public:
  virtual ~File() = default;

  // Reads up to size_bytes at the offset; returns the bytes read, fewer only at the end.
  virtual Result<std::size_t> read_at(std::uint64_t offset, void* buffer,
                                      std::size_t size_bytes) const = 0;
  // Writes everything at the end of the file.
  virtual Result<void> append(const void* data, std::size_t size_bytes) = 0;
  // Returns when the content (not the directory entry) is on stable storage. After a failure the
  // content is unknown: the kernel may have dropped it, so a caller writes a new file instead of
  // calling sync again.
  virtual Result<void> sync() = 0;
  virtual Result<std::uint64_t> size() const = 0;
};

// Held as long as it lives; released by the kernel when the process dies.
class PAGETIDE_API FileLock {
 public:
  virtual ~FileLock() = default;
};

enum class WriteMode : std::uint8_t {
  buffered,
  // O_DIRECT where the file system takes it, silently buffered elsewhere. Every append must be a
  // multiple of the page size, from page-aligned memory.
  direct_if_possible,
};

// The one seam between the store and files. Everything the store does to a disk goes through it,
// so that tests can drop what was not synced, fail any operation, or fill the disk. Paths are
// plain POSIX paths. Implementations are safe to use from several threads.
//
// What a store may rely on after a crash: the content of a file up to its last successful
// sync(), and the directory entries as of the last successful sync_directory(). Anything newer
// may be there in whole, in part, or not at all. rename() is atomic.
class PAGETIDE_API FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Creates a directory for its owner alone (0700). already_exists when something is there.
  virtual Result<void> create_directory(const std::string& path) = 0;
  // Creates a file for its owner alone (0600), replacing one of the same name.
  virtual Result<std::unique_ptr<File>> create(const std::string& path, WriteMode mode) = 0;
  virtual Result<std::unique_ptr<File>> open_read(const std::string& path) = 0;
  virtual Result<void> rename(const std::string& from, const std::string& to) = 0;
  virtual Result<void> remove(const std::string& path) = 0;
  // Makes creations, renames and removals in this directory durable.
  virtual Result<void> sync_directory(const std::string& path) = 0;
  // The names in a directory, unordered, without "." and "..". not_found when there is none;
  // not_a_store when the path is not a directory.
  virtual Result<std::vector<std::string>> list(const std::string& path) = 0;
  // Takes an exclusive lock on the file (created when missing, 0600) without waiting. When
  // another holds it: busy, and the message says which process, as far as it is known.
  virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path) = 0;
};

// The file system of the machine. Never destroyed.
PAGETIDE_API FileSystem& posix_file_system();

// "a/b" -> "a", "a" -> ".", "/a" -> "/".
PAGETIDE_API std::string parent_directory(const std::string& path);

}  // namespace pagetide
