#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "pagetide/base/page_range.h"
#include "pagetide/base/unique_fd.h"

namespace pagetide {

// A file with pages of 'k' on the disk that holds the build.
class FileOfText {
 public:
  explicit FileOfText(std::size_t pages = 2)
      : path_(std::string(PAGETIDE_BINARY_DIR) + "/pagetide-test-XXXXXX") {
    const UniqueFd fd(::mkstemp(path_.data()));
    const std::string text(pages * page_size(), 'k');
    EXPECT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    EXPECT_EQ(::fsync(fd.get()), 0);
  }
  FileOfText(const FileOfText&) = delete;
  FileOfText& operator=(const FileOfText&) = delete;
  ~FileOfText() { ::unlink(path_.c_str()); }
  UniqueFd open(int flags) const { return UniqueFd(::open(path_.c_str(), flags | O_CLOEXEC)); }

 private:
  std::string path_;
};

}  // namespace pagetide
