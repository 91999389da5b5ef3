#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "examples/package_index/package_record.h"
#include "pagetide/base/error.h"

namespace package_index {

// Reads Debian package records one after the other, from `apt-cache dumpavail` while it runs or
// from a file with its output. Not thread-safe.
class PackageSource {
 public:
  // The file, or apt-cache when the path is empty. not_found when there is no such file; that
  // apt-cache is missing shows at the first next().
  static pagetide::Result<PackageSource> open(const std::string& path);

  // The next record with a name; false at the end. Errors: invalid_argument when this is no
  // package index, system_failure when reading or apt-cache itself failed.
  pagetide::Result<bool> next(PackageRecord& record);

  // "apt-cache dumpavail", or the path.
  const std::string& name() const { return name_; }

 private:
  struct Free {
    void operator()(char* buffer) const { std::free(buffer); }
  };
  using Stream = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

  PackageSource(Stream stream, std::string name, bool is_apt_cache);
  pagetide::Result<bool> read_line();
  pagetide::Result<void> take_field(PackageRecord& record);
  pagetide::Result<void> finish();

  Stream stream_;
  std::string name_;
  bool is_apt_cache_;
  std::string line_;
  std::uint64_t line_number_ = 0;
  // getline's own buffer, kept for its allocation.
  std::unique_ptr<char, Free> buffer_;
  std::size_t buffer_bytes_ = 0;
};

}  // namespace package_index
