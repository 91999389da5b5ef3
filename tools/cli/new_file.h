#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "pagetide/base/error.h"
#include "pagetide/base/unique_fd.h"

namespace pagetide::cli {

// A file that gets its name only when it is complete: it is written as NAME.partial-PID beside
// its place, for its owner alone (a memory image may hold secrets), and renamed at the end. If it
// is not committed nothing stays behind, also when SIGINT, SIGTERM or SIGHUP end the process.
//
// One at a time in a process, because signal handlers have to find it.
class NewFile {
 public:
  // Errors: already_exists (unless `overwrite`); invalid_argument when the path names something
  // other than a regular file. A symbolic link is followed.
  static Result<NewFile> create(const std::string& path, bool overwrite);

  NewFile(NewFile&& other) noexcept;
  NewFile& operator=(NewFile&&) = delete;
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile();

  Result<void> write_at(std::uint64_t offset, const void* data, std::size_t size_bytes);
  // Cuts or extends with zeros to `size_bytes`, makes the content durable and gives it its name.
  // already_exists when something took the name meanwhile (unless `overwrite`).
  Result<void> commit(std::uint64_t size_bytes);

 private:
  NewFile(std::string path, std::string partial_path, UniqueFd fd, bool overwrite);
  Result<void> take_name() const;
  tl::unexpected<Error> failed(const char* what, int error) const;

  std::string path_;
  std::string partial_path_;
  UniqueFd fd_;
  bool overwrite_;
};

}  // namespace pagetide::cli
