#include "tools/cli/image_sink.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "pagetide/base/bytes.h"
#include "tools/cli/new_file.h"
#include "tools/cli/output.h"

namespace pagetide::cli {

namespace {

using literals::operator""_KiB;

class FileSink final : public ImageSink {
 public:
  explicit FileSink(NewFile file) : file_(std::move(file)) {}

  Result<void> write(std::uint64_t offset, std::span<const std::byte> content) override {
    return file_.write_at(offset, content.data(), content.size());
  }
  Result<void> finish(std::uint64_t size_bytes) override { return file_.commit(size_bytes); }

 private:
  NewFile file_;
};

class StreamSink final : public ImageSink {
 public:
  explicit StreamSink(int fd) : fd_(fd), zeros_(256_KiB) {}

  Result<void> write(std::uint64_t offset, std::span<const std::byte> content) override {
    if (auto r = write_zeros_up_to(offset); !r) return r;
    position_ += content.size();
    return write_out(content);
  }
  Result<void> finish(std::uint64_t size_bytes) override { return write_zeros_up_to(size_bytes); }

 private:
  Result<void> write_zeros_up_to(std::uint64_t offset) {
    while (position_ < offset) {
      const std::size_t size = std::min<std::uint64_t>(zeros_.size(), offset - position_);
      if (auto r = write_out(std::span(zeros_).first(size)); !r) return r;
      position_ += size;
    }
    return {};
  }
  Result<void> write_out(std::span<const std::byte> content) const {
    return write_all(fd_, "standard output", content.data(), content.size());
  }

  int fd_;
  std::vector<std::byte> zeros_;
  std::uint64_t position_ = 0;
};

}  // namespace

Result<std::unique_ptr<ImageSink>> image_file(const std::string& path, bool overwrite) {
  Result<NewFile> file = NewFile::create(path, overwrite);
  if (!file) return propagate(file);
  return std::make_unique<FileSink>(std::move(*file));
}

Result<std::unique_ptr<ImageSink>> image_stream(int fd) {
  if (::isatty(fd) == 1) {
    return failure(ErrorCode::invalid_argument,
                   "a memory image is nothing for a terminal. Redirect standard output, or name a "
                   "file with -o.");
  }
  return std::make_unique<StreamSink>(fd);
}

}  // namespace pagetide::cli
