#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "pagetide/snapshot/file_system.h"

// How CrashFileSystem and FaultyFileSystem describe a mutating operation, so that a test can look
// for the same text in both.

namespace pagetide::file_operation {

inline std::string create_directory(const std::string& path) {
  return fmt::format("create directory '{}'", path);
}
inline std::string create(const std::string& path, WriteMode mode) {
  return fmt::format("create '{}'{}", path,
                     mode == WriteMode::direct_if_possible ? " (direct)" : "");
}
inline std::string append(const std::string& path, std::size_t size_bytes) {
  return fmt::format("append {} bytes to '{}'", size_bytes, path);
}
inline std::string sync(const std::string& path) {
  return fmt::format("sync '{}'", path);
}
inline std::string rename(const std::string& from, const std::string& to) {
  return fmt::format("rename '{}' to '{}'", from, to);
}
inline std::string remove(const std::string& path) {
  return fmt::format("remove '{}'", path);
}
inline std::string sync_directory(const std::string& path) {
  return fmt::format("sync directory '{}'", path);
}
inline std::string lock(const std::string& path) {
  return fmt::format("lock '{}'", path);
}

}  // namespace pagetide::file_operation
