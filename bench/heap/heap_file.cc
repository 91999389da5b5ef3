#include "bench/heap/heap_file.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace pagetide::bench {

HeapDirectory::HeapDirectory() {
  std::error_code ignored;
  const bool has_memory_files = std::filesystem::is_directory("/dev/shm", ignored);
  std::string pattern =
      (has_memory_files ? std::string("/dev/shm")
                        : std::filesystem::temp_directory_path(ignored).string()) +
      "/pagetide-bench-XXXXXX";
  if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
}

void HeapDirectory::remove() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  path_.clear();
}

}  // namespace pagetide::bench
