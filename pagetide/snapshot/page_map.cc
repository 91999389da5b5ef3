#include "pagetide/snapshot/page_map.h"

#include <algorithm>

namespace pagetide {

Result<PageMap> PageMap::create(std::size_t page_count) {
  PageMap map;
  auto locations = VirtualArray<PageLocation>::create(page_count);
  if (!locations) return propagate(locations);
  auto hashes = VirtualArray<Hash128>::create(page_count);
  if (!hashes) return propagate(hashes);
  map.locations_ = std::move(*locations);
  map.hashes_ = std::move(*hashes);
  return map;
}

bool PageMap::same_content(const PageMap& other, std::size_t page) const {
  if (is_zero(page) || other.is_zero(page)) return is_zero(page) == other.is_zero(page);
  return hashes_[page] == other.hashes_[page];
}

void PageMap::set_zero(PageRange pages) {
  // Beyond the end everything is zero already, and must stay untouched.
  for (std::size_t page = pages.first; page < std::min(pages.end(), end_); ++page) {
    locations_[page] = {};
    hashes_[page] = {};
  }
}

void PageMap::set_data(std::size_t page, PageLocation location, const Hash128& hash) {
  locations_[page] = location;
  hashes_[page] = hash;
  end_ = std::max(end_, page + 1);
}

void PageMap::apply(const std::vector<format::Extent>& extents,
                    const std::vector<Hash128>& hashes) {
  std::size_t next_hash = 0;
  for (const format::Extent& extent : extents) {
    if (extent.kind == format::ExtentKind::zero) {
      set_zero({extent.first_page, extent.page_count});
      continue;
    }
    for (std::uint32_t i = 0; i < extent.page_count; ++i) {
      set_data(extent.first_page + i,
               {static_cast<std::uint32_t>(extent.segment),
                static_cast<std::uint32_t>(extent.segment_page + i)},
               hashes[next_hash++]);
    }
  }
}

void PageMap::for_each_extent(const std::function<void(const format::Extent&)>& visit) const {
  std::size_t page = 0;
  while (page < end_) {
    const PageLocation first = locations_[page];
    std::uint32_t count = 1;
    if (first.segment != 0) {
      while (page + count < end_ && count < UINT32_MAX &&
             locations_[page + count] == PageLocation{first.segment, first.page + count}) {
        ++count;
      }
      visit({page, count, format::ExtentKind::data, first.segment, first.page});
    }
    page += count;
  }
}

}  // namespace pagetide
