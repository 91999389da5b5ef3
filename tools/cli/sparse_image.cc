#include "tools/cli/sparse_image.h"

#include <algorithm>
#include <cstring>

namespace pagetide::cli {

void SparseImage::add(PageRange pages, std::span<const std::byte> content) {
  const std::size_t page = page_size();
  for (std::size_t i = 0; i < pages.count; ++i) {
    const auto bytes = content.subspan(i * page, page);
    pages_[pages.first + i].assign(bytes.begin(), bytes.end());
  }
}

void SparseImage::read(std::uint64_t offset_bytes, std::span<std::byte> target) const {
  const std::size_t page = page_size();
  while (!target.empty()) {
    const std::size_t begin = offset_bytes % page;
    const std::size_t size = std::min(target.size(), page - begin);
    const auto found = pages_.find(offset_bytes / page);
    if (found == pages_.end()) {
      std::memset(target.data(), 0, size);
    } else {
      std::memcpy(target.data(), found->second.data() + begin, size);
    }
    offset_bytes += size;
    target = target.subspan(size);
  }
}

std::vector<std::uint64_t> SparseImage::pages() const {
  std::vector<std::uint64_t> numbers;
  for (const auto& page : pages_) numbers.push_back(page.first);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace pagetide::cli
