#include "pagetide/base/standard_error.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>

namespace pagetide {

namespace {

// One line, so that lines of several threads do not mix.
class Line {
 public:
  void append(std::string_view text) {
    const std::size_t size = std::min(text.size(), text_.size() - 1 - size_);  // room for the end
    text.copy(text_.data() + size_, size);
    size_ += size;
  }

  void write() {
    text_[size_++] = '\n';
    for (std::size_t written = 0; written < size_;) {
      const ssize_t n = ::write(STDERR_FILENO, text_.data() + written, size_ - written);
      if (n <= 0) return;  // there is nowhere to tell it
      written += static_cast<std::size_t>(n);
    }
  }

 private:
  std::array<char, 512> text_;
  std::size_t size_ = 0;
};

}  // namespace

void write_standard_error(std::initializer_list<std::string_view> parts) {
  const int kept_errno = errno;
  Line line;
  line.append("pagetide: ");
  for (const std::string_view part : parts) line.append(part);
  line.write();
  errno = kept_errno;
}

}  // namespace pagetide
