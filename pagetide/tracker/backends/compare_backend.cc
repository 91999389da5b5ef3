#include "pagetide/tracker/backends/compare_backend.h"

#include "pagetide/tracker/kernel/maps_reader.h"

namespace pagetide {

namespace {

// Calls visit(ByteRange) for what can be read of `range`: a region is reserved without access and
// committed piece by piece. Where there is no /proc, all of it is taken to be readable.
template <typename Visit>
void for_each_readable(ByteRange range, Visit&& visit) {
  MapsReader mappings;
  if (!mappings.valid()) return visit(range);
  MapsLine mapping;
  while (mappings.next(mapping) && mapping.range.begin < range.end()) {
    const ByteRange part = mapping.range.intersect(range);
    if (mapping.readable && !part.empty()) visit(part);
  }
}

}  // namespace

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
