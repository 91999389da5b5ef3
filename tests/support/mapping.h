#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "pagetide/base/page_range.h"

namespace pagetide {

// Pages of anonymous memory for one test.
class Mapping {
 public:
  explicit Mapping(std::size_t pages, int protection = PROT_READ | PROT_WRITE)
      : range_(map(pages * page_size(), protection)) {}
  Mapping(Mapping&& other) noexcept : range_(std::exchange(other.range_, {})) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (!range_.empty()) ::munmap(range_.data(), range_.size);
  }

  // Pages that begin at a multiple of `alignment`, a power of two of at least a page.
  static Mapping aligned(std::size_t pages, std::size_t alignment) {
    const std::size_t size = pages * page_size();
    const ByteRange all = map(size + alignment, PROT_READ | PROT_WRITE);
    const std::uintptr_t begin = round_up(all.begin, alignment);
    if (begin > all.begin) ::munmap(all.data(), begin - all.begin);
    const ByteRange range{begin, size};
    ::munmap(reinterpret_cast<void*>(range.end()), all.end() - range.end());  // NOLINT
    return Mapping(range);
  }

  // Pages of a file from its beginning; `flags` is MAP_SHARED or MAP_PRIVATE.
  static Mapping of_file(int fd, std::size_t pages, int flags) {
    const std::size_t size = pages * page_size();
    return Mapping(check(::mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, 0), size));
  }

  ByteRange range() const { return range_; }
  std::size_t pages() const { return range_.size / page_size(); }
  char* page(std::size_t i) const {
    return reinterpret_cast<char*>(range_.begin + i * page_size());  // NOLINT
  }
  ByteRange pages(std::size_t first, std::size_t count) const {
    return PageRange{first, count}.bytes_from(range_.begin);
  }
  // A store that no compiler drops.
  void write(std::size_t i, char value) const { *static_cast<volatile char*>(page(i)) = value; }
  void fill(char value) const { std::memset(range_.data(), value, range_.size); }

 private:
  explicit Mapping(ByteRange range) : range_(range) {}

  static ByteRange map(std::size_t size, int protection) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return check(::mmap(nullptr, size, protection, kFlags, -1, 0), size);
  }
  static ByteRange check(void* p, std::size_t size) {
    if (p == MAP_FAILED) {
      std::perror("mmap");
      std::abort();
    }
    return ByteRange::of(p, size);
  }

  ByteRange range_;
};

}  // namespace pagetide
