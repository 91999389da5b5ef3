#include "pagetide/tracker/backends/compare_backend.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "pagetide/base/bytes.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/kernel/kernel_abi.h"
#include "pagetide/tracker/kernel/maps_reader.h"

namespace pagetide {

namespace {

// One page table.
constexpr std::size_t kStepBytes = std::size_t{2} << 20;

// Calls visit(ByteRange, is_file) for what can be read of `range`: a region is reserved without
// access and committed piece by piece. Where there is no /proc, all of it is taken to be readable.
template <typename Visit>
void for_each_readable(ByteRange range, Visit&& visit) {
  MapsReader mappings;
  if (!mappings.valid()) return visit(range, true);
  MapsLine mapping;
  while (mappings.next(mapping) && mapping.range.begin < range.end()) {
    const ByteRange part = mapping.range.intersect(range);
    if (mapping.readable && !part.empty()) visit(part, mapping.is_file);
  }
}

// Calls visit(ByteRange) for pieces of one page table.
template <typename Visit>
void for_each_step(ByteRange range, Visit&& visit) {
  for (std::uintptr_t at = range.begin; at < range.end();) {
    const std::uintptr_t end = std::min(range.end(), round_down(at + kStepBytes, kStepBytes));
    visit(ByteRange{at, end - at});
    at = end;
  }
}

// Which pages of a step can be read without a signal, as far as is easily known. A mapping can
// reach beyond the end of its file, and anonymous memory can have guard pages.
class SafePages {
 public:
  SafePages(ByteRange step, bool is_file) : begin_(step.begin) {
    if (is_file) {
      // Populates them, as reading would. Before Linux 5.14, which cannot tell, files are read on
      // trust.
      const int r = sys::advise(step, kernel::kMadvPopulateRead);
      resident_.fill(r == 0 || r == -EINVAL ? 1 : 0);
    } else if (::mincore(step.data(), step.size, resident_.data()) != 0) {
      resident_.fill(0);
    }
  }
  bool contains(const std::byte* page) const {
    const auto address = reinterpret_cast<std::uintptr_t>(page);
    return (resident_.at((address - begin_) / page_size()) & 1U) != 0;
  }

 private:
  std::uintptr_t begin_;
  std::array<unsigned char, kStepBytes / 4096> resident_;  // no page is smaller
};

// The page's content, copied by the kernel, which fails where reading would raise a signal; null
// then. Where a sandbox forbids the call the page is read on trust: passing it over could lose a
// write.
const std::byte* read_carefully(const std::byte* page, std::span<std::byte> copy) {
  const iovec local{copy.data(), copy.size()};
  const iovec remote{const_cast<std::byte*>(page), copy.size()};  // NOLINT: it is only read
  const ssize_t n = ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0);
  if (n == static_cast<ssize_t>(copy.size())) return copy.data();
  return n < 0 && errno != EFAULT ? page : nullptr;
}

}  // namespace

Result<CompareBackend> CompareBackend::open() {
  CompareBackend backend;
  auto copy = VirtualArray<std::byte>::create(page_size());
  if (!copy) return propagate(copy);
  backend.copy_ = std::move(*copy);
  return backend;
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
  const auto compare = [&](std::size_t page, const std::byte* content) {
    const Hash128 now =
        is_all_zero(content, page_size()) ? Hash128{} : hash128(content, page_size(), 0);
    if (now == table[page]) return;
    written.set(page);
    if (mode == CollectMode::take) table[page] = now;
  };
  for_each_readable(part, [&](ByteRange readable, bool is_file) {
    for_each_step(readable, [&](ByteRange step) {
      const PageRange pages = PageRange::covering(step, whole);
      const SafePages safe(step, is_file);
      for (std::size_t page = pages.first; page < pages.end(); ++page) {
        const std::byte* content = whole.data() + page * page_size();
        if (!safe.contains(content)) content = read_carefully(content, copy_.span());
        if (content != nullptr) compare(page, content);
      }
    });
  });
  return {};
}

void CompareBackend::purged(ByteRange range) {
  for (auto& [begin, table] : hashes_) {
    const ByteRange whole{begin, table.size() * page_size()};
    const ByteRange part = range.page_cover().intersect(whole);
    if (part.empty()) continue;
    const PageRange pages = PageRange::covering(part, whole);
    for (std::size_t page = pages.first; page < pages.end(); ++page) table[page] = Hash128{};
  }
}

}  // namespace pagetide
