#include "pagetide/tracker/compare_backend.h"

#include <fcntl.h>

#include <array>

#include "pagetide/base/unique_fd.h"

namespace pagetide {

namespace {

// The mappings of this process in ascending order, from /proc/self/maps. Allocates nothing,
// because a collect may run while other threads are held.
class Mappings {
 public:
  Mappings() : fd_(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}

  bool valid() const { return fd_.valid(); }
  // Lines look like "55d0a000-55d0b000 r--p ...". False at the end.
  bool next(ByteRange& range, bool& readable) {
    const std::uintptr_t begin = number();
    const std::uintptr_t end = number();
    range = {begin, end - begin};
    readable = character() == 'r';
    int c = 0;
    do c = character();
    while (c >= 0 && c != '\n');
    return end != 0;
  }

 private:
  // A hexadecimal number and the character behind it.
  std::uintptr_t number() {
    std::uintptr_t value = 0;
    for (int c = character(); c > ' ' && c != '-'; c = character()) {
      value = value << 4U | static_cast<std::uintptr_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return value;
  }
  int character() {
    if (at_ == end_) {
      const ssize_t n = ::read(fd_.get(), buffer_.data(), buffer_.size());
      if (n <= 0) return -1;
      at_ = 0;
      end_ = static_cast<std::size_t>(n);
    }
    return static_cast<unsigned char>(buffer_[at_++]);
  }

  UniqueFd fd_;
  std::array<char, 4096> buffer_;  // any size would do
  std::size_t at_ = 0;
  std::size_t end_ = 0;
};

// Calls visit(ByteRange) for what can be read of `range`: a region is reserved without access and
// committed piece by piece. Where there is no /proc, all of it is taken to be readable.
template <typename Visit>
void for_each_readable(ByteRange range, Visit&& visit) {
  Mappings mappings;
  if (!mappings.valid()) return visit(range);
  ByteRange mapping;
  bool readable = false;
  while (mappings.next(mapping, readable) && mapping.begin < range.end()) {
    const ByteRange part = mapping.intersect(range);
    if (readable && !part.empty()) visit(part);
  }
}

}  // namespace

std::string_view to_string(BackendKind kind) {
  switch (kind) {
    case BackendKind::automatic:
      return "auto";
    case BackendKind::uffd_async:
      return "uffd_async";
    case BackendKind::compare:
      return "compare";
  }
  return "unknown";
}

Result<CompareBackend> CompareBackend::open() {
  return CompareBackend{};
}

Result<void> CompareBackend::watch(ByteRange range) {
  auto table = VirtualArray<Hash128>::create(range.size / page_size());
  if (!table) return propagate(table);
  hashes_.insert_or_assign(range.begin, std::move(*table));
  return {};
}

void CompareBackend::unwatch(ByteRange range) {
  hashes_.erase(range.begin);
}

Result<void> CompareBackend::collect(ByteRange whole, ByteRange part, CollectMode mode,
                                     DirtyBitmap& written) {
  VirtualArray<Hash128>& table = hashes_.at(whole.begin);
  for_each_readable(part, [&](ByteRange readable) {
    const PageRange pages = PageRange::covering(readable, whole);
    for (std::size_t page = pages.first; page < pages.end(); ++page) {
      const std::byte* content = whole.data() + page * page_size();
      const Hash128 now =
          is_all_zero(content, page_size()) ? Hash128{} : hash128(content, page_size(), 0);
      if (now == table[page]) continue;
      written.set(page);
      if (mode == CollectMode::take) table[page] = now;
    }
  });
  return {};
}

}  // namespace pagetide
