#pragma once

#include <cstdint>
#include <functional>

#include "pagetide/base/error.h"
#include "pagetide/base/hash.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/virtual_array.h"
#include "pagetide/snapshot/format.h"

namespace pagetide {

// Where a page of a snapshot is stored.
struct PageLocation {
  std::uint32_t segment = 0;  // 0: the page is zero
  std::uint32_t page = 0;     // payload page in that segment
  friend bool operator==(const PageLocation&, const PageLocation&) = default;
};

// The resolved image of one snapshot: for each page of the region where it is stored and the
// hash of its content. 24 bytes a page that is not zero; the rest of the table stays untouched
// address space.
class PageMap {
 public:
  static Result<PageMap> create(std::size_t page_count);

  std::size_t page_count() const { return locations_.size(); }
  // Pages from here on are zero.
  std::size_t end() const { return end_; }

  PageLocation location(std::size_t page) const { return locations_[page]; }
  bool is_zero(std::size_t page) const { return locations_[page].segment == 0; }
  const Hash128& hash(std::size_t page) const { return hashes_[page]; }
  // Whether the page has the same content in both maps.
  bool same_content(const PageMap& other, std::size_t page) const;

  void set_zero(PageRange pages);
  void set_data(std::size_t page, PageLocation location, const Hash128& hash);

  // Applies a list of extents with the hashes of its data pages.
  void apply(const std::vector<format::Extent>& extents, const std::vector<Hash128>& hashes);

  // Calls visit for each maximal run of data pages that is contiguous in its segment too, in
  // ascending order.
  void for_each_extent(const std::function<void(const format::Extent&)>& visit) const;

 private:
  VirtualArray<PageLocation> locations_;
  VirtualArray<Hash128> hashes_;
  std::size_t end_ = 0;
};

}  // namespace pagetide
