#include "pagetide/tracker/compare_backend.h"

namespace pagetide {

std::string_view to_string(BackendKind kind) {
  switch (kind) {
    case BackendKind::automatic: return "auto";
    case BackendKind::uffd_async: return "uffd_async";
    case BackendKind::compare: return "compare";
  }
  return "unknown";
}

Result<CompareBackend> CompareBackend::open() { return CompareBackend{}; }

Result<void> CompareBackend::watch(ByteRange range) {
  auto table = VirtualArray<Hash128>::create(range.size / page_size());
  if (!table) return propagate(table);
  hashes_.insert_or_assign(range.begin, std::move(*table));
  return {};
}

void CompareBackend::unwatch(ByteRange range) { hashes_.erase(range.begin); }

Result<void> CompareBackend::collect(ByteRange whole, ByteRange part, CollectMode mode,
                                     DirtyBitmap& written) {
  VirtualArray<Hash128>& table = hashes_.at(whole.begin);
  const PageRange pages = PageRange::covering(part, whole);
  for (std::size_t page = pages.first; page < pages.end(); ++page) {
    const std::byte* content = whole.data() + page * page_size();
    const Hash128 now =
        is_all_zero(content, page_size()) ? Hash128{} : hash128(content, page_size(), 0);
    if (now == table[page]) continue;
    written.set(page);
    if (mode == CollectMode::take) table[page] = now;
  }
  return {};
}

}  // namespace pagetide
