#include "pagetide/tracker/kernel/maps_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace pagetide {

MapsReader::MapsReader() : fd_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}

// "55d0a000-55d0b000 r--p 00001000 fd:01 1234    /path", the path only for some.
bool MapsReader::next(MapsLine& line) {
  char after = 0;
  const std::uint64_t begin = number(16, after);
  const std::uint64_t end = number(16, after);
  if (end == 0) return false;
  line.range = {begin, end - begin};
  std::array<int, 4> permissions{};
  for (int& c : permissions) c = character();
  line.readable = permissions[0] == 'r';
  line.writable = permissions[1] == 'w';
  line.executable = permissions[2] == 'x';
  line.shared = permissions[3] == 's';
  (void)character();
  skip_word();  // offset
  skip_word();  // device
  line.is_file = number(10, after) != 0;
  // Those of mmap(MAP_HUGETLB) and of the usual mount.
  line.is_hugetlb = after != '\n' && rest_contains("hugepage");
  return true;
}

// Reads digits and the character behind them.
std::uint64_t MapsReader::number(unsigned base, char& after) {
  std::uint64_t value = 0;
  for (int c = character();; c = character()) {
    const bool is_digit = c >= '0' && c <= '9';
    const bool is_letter = base == 16 && c >= 'a' && c <= 'f';
    if (!is_digit && !is_letter) {
      after = static_cast<char>(c);
      return value;
    }
    value = value * base + static_cast<std::uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
  }
}

void MapsReader::skip_word() {
  for (int c = character(); c > ' '; c = character()) {
  }
}

// Reads to the end of the line. `text` has no prefix that is also a suffix of a part of it, so
// that one counter is enough.
bool MapsReader::rest_contains(std::string_view text) {
  std::size_t matched = 0;
  for (int c = character(); c >= 0 && c != '\n'; c = character()) {
    if (matched == text.size()) continue;
    if (c == text[matched]) {
      ++matched;
    } else {
      matched = c == text[0] ? 1 : 0;
    }
  }
  return matched == text.size();
}

int MapsReader::character() {
  if (at_ == end_) {
    ssize_t n = 0;
    do {
      n = ::read(fd_.get(), buffer_.data(), buffer_.size());
    } while (n < 0 && errno == EINTR);
    if (n <= 0) return -1;
    at_ = 0;
    end_ = static_cast<std::size_t>(n);
  }
  return static_cast<unsigned char>(buffer_.at(at_++));
}

}  // namespace pagetide
