#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "pagetide/base/error.h"
#include "pagetide/snapshot/file_system.h"
#include "pagetide/snapshot/format.h"
#include "pagetide/snapshot/page_map.h"

namespace pagetide {

// Appends pages to the segment of one snapshot. Nothing is created before the first page.
// Not thread-safe.
class SegmentWriter {
 public:
  SegmentWriter(FileSystem& files, std::string path, const format::Uuid& uuid, std::uint64_t id)
      : files_(&files), path_(std::move(path)), uuid_(uuid), id_(id) {}

  // Whole pages from page-aligned memory.
  Result<void> append(std::span<const std::byte> pages);
  Result<void> sync();
  // Closes and removes what was written; for a commit that failed.
  void discard();
  std::uint64_t id() const { return id_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  FileSystem* files_;
  std::string path_;
  format::Uuid uuid_;
  std::uint64_t id_;
  std::unique_ptr<File> file_;
  std::uint64_t bytes_ = 0;
};

// Reads pages of a store's segments and checks each against its hash. Keeps files open. Not
// thread-safe.
class SegmentReader {
 public:
  SegmentReader(FileSystem& files, std::string directory, const format::Uuid& uuid,
                std::uint64_t seed)
      : files_(&files), directory_(std::move(directory)), uuid_(uuid), seed_(seed) {}

  // Reads the extent's pages into `target` and compares them with `hash_of(i)`, i counting the
  // extent's pages from 0.
  Result<void> read(const format::Extent& extent, std::byte* target,
                    const std::function<const Hash128&(std::size_t)>& hash_of);
  // Payload pages that the segment's file has room for, after checking its header.
  Result<std::uint64_t> check(std::uint64_t segment);

 private:
  Result<File*> open(std::uint64_t segment);
  std::string path_of(std::uint64_t segment) const;

  FileSystem* files_;
  std::string directory_;
  format::Uuid uuid_;
  std::uint64_t seed_;
  std::map<std::uint64_t, std::unique_ptr<File>> open_;
};

}  // namespace pagetide
