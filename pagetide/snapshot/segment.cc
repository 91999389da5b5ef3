#include "pagetide/snapshot/segment.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>

#include "pagetide/base/page_range.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide {

namespace {

// A store of thousands of snapshots must not use up the process's descriptors.
constexpr std::size_t kMaxOpenSegments = 128;

}  // namespace

Result<void> SegmentWriter::append(std::span<const std::byte> pages) {
  if (pages.empty()) return {};
  if (file_ == nullptr) {
    auto file = files_->create(path_, WriteMode::direct_if_possible);
    if (!file) return propagate(file);
    file_ = std::move(*file);
    // Its own mapping, because direct writes want page-aligned memory.
    auto page = VirtualArray<std::byte>::create(page_size());
    if (!page) return propagate(page);
    const auto header = format::encode_segment_header(uuid_, id_, page_size());
    std::memcpy(page->span().data(), header.data(), header.size());
    if (auto r = file_->append(page->span().data(), page->size()); !r) return r;
    bytes_ += page->size();
  }
  if (auto r = file_->append(pages.data(), pages.size()); !r) return r;
  bytes_ += pages.size();
  return {};
}

Result<void> SegmentWriter::sync() {
  if (file_ == nullptr) return {};
  return file_->sync();
}

void SegmentWriter::discard() {
  if (file_ == nullptr) return;
  file_.reset();
  // Should this fail too, the next commit replaces the file.
  (void)files_->remove(path_);
}

std::string SegmentReader::path_of(std::uint64_t segment) const {
  return directory_ + "/" + format::segment_name(segment);
}

Result<File*> SegmentReader::open(std::uint64_t segment) {
  if (const auto found = open_.find(segment); found != open_.end()) return found->second.get();
  const std::string path = path_of(segment);
  auto file = format::open_part(*files_, path);
  if (!file) return propagate(file);
  std::vector<std::byte> header(page_size());
  auto n = (*file)->read_at(0, header.data(), header.size());
  if (!n) return propagate(n);
  header.resize(*n);
  if (auto r = format::check_segment_header(header, uuid_, segment, path); !r) return propagate(r);
  if (open_.size() >= kMaxOpenSegments) open_.clear();
  return (open_[segment] = std::move(*file)).get();
}

Result<std::uint64_t> SegmentReader::check(std::uint64_t segment) {
  auto file = open(segment);
  if (!file) return propagate(file);
  auto size = (*file)->size();
  if (!size) return propagate(size);
  return *size / page_size() - 1;
}

Result<void> SegmentReader::read(const format::Extent& extent, std::byte* target,
                                 const std::function<const Hash128&(std::size_t)>& hash_of) {
  auto file = open(extent.segment);
  if (!file) return propagate(file);
  const std::size_t page = page_size();
  const std::size_t size = extent.page_count * page;
  auto n = (*file)->read_at((extent.segment_page + 1) * page, target, size);
  if (!n) return propagate(n);
  if (*n != size) {
    return failure(
        ErrorCode::damaged,
        fmt::format("{} is damaged: it is cut short, page {} is missing. Restore the file from a "
                    "copy; snapshots that do not need it are not affected.",
                    path_of(extent.segment), extent.segment_page + *n / page));
  }
  for (std::size_t i = 0; i < extent.page_count; ++i) {
    if (hash128(target + i * page, page, seed_) == hash_of(i)) continue;
    return failure(
        ErrorCode::damaged,
        fmt::format("{} is damaged: the checksum of page {} (byte {}) does not match. Restore the "
                    "file from a copy; snapshots that do not need this page are not affected.",
                    path_of(extent.segment), extent.segment_page + i,
                    (extent.segment_page + i + 1) * page));
  }
  return {};
}

}  // namespace pagetide
