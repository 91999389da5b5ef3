#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "pagetide/base/error.h"

namespace pagetide::cli {

// Where a memory image is written to, from its beginning to its end. Not thread-safe.
class ImageSink {
 public:
  virtual ~ImageSink() = default;

  // Offsets ascend; what is left out is zero.
  virtual Result<void> write(std::uint64_t offset, std::span<const std::byte> content) = 0;
  // Zeros up to `size_bytes`, and the end. Without it a file is not there afterwards.
  virtual Result<void> finish(std::uint64_t size_bytes) = 0;
};

// A sparse file; errors as of NewFile.
Result<std::unique_ptr<ImageSink>> image_file(const std::string& path, bool overwrite);
// A pipe or file at its current position, zeros written out. invalid_argument for a terminal.
Result<std::unique_ptr<ImageSink>> image_stream(int fd);

}  // namespace pagetide::cli
