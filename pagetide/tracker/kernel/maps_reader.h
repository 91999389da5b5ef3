#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pagetide/base/page_range.h"
#include "pagetide/base/unique_fd.h"

namespace pagetide {

// One line of /proc/self/maps.
struct MapsLine {
  ByteRange range;
  bool readable = false;
  bool writable = false;
  bool executable = false;
  bool shared = false;
  bool is_file = false;
  bool is_hugetlb = false;  // by its name, as far as it shows
};

// The mappings of this process in ascending order. Allocates nothing, because a collect may run
// while other threads are held.
class MapsReader {
 public:
  MapsReader();

  // False where /proc cannot be read.
  bool valid() const { return fd_.valid(); }
  // False at the end.
  bool next(MapsLine& line);

 private:
  std::uint64_t number(unsigned base, char& after);
  void skip_word();
  bool rest_contains(std::string_view text);
  int character();

  UniqueFd fd_;
  std::array<char, 4096> buffer_;  // any size would do
  std::size_t at_ = 0;
  std::size_t end_ = 0;
};

}  // namespace pagetide
