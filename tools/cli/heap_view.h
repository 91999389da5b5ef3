#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/snapshot/store.h"

namespace pagetide::cli {

// Pages of an image that was never mapped. What was not added is zero.
class SparseImage {
 public:
  // Copies whole pages; `content` holds pages.count of them.
  void add(PageRange pages, std::span<const std::byte> content);
  // Any offset; copies, with zeros for what is not there.
  void read(std::uint64_t offset_bytes, std::span<std::byte> target) const;
  // The pages that were added, ascending.
  std::vector<std::uint64_t> pages() const;

 private:
  std::unordered_map<std::uint64_t, std::vector<std::byte>> pages_;
};

struct RootView {
  std::string name;  // as stored: may hold any byte but zero
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t type_hash = 0;
};

struct SizeClassView {
  std::uint64_t slot_bytes = 0;
  std::uint64_t spans = 0;
  std::uint64_t slots = 0;        // in these spans
  std::uint64_t live_blocks = 0;  // slots that are allocated

  std::uint64_t live_bytes() const { return live_blocks * slot_bytes; }
};

// What a heap held at a snapshot, read from its layout (pagetide/allocator/heap_layout.h).
struct HeapView {
  std::string name;
  std::uint32_t layout_version = 0;
  std::uint64_t base = 0;
  std::uint64_t reserve_bytes = 0;
  std::uint64_t data_offset = 0;
  std::uint64_t span_bytes = 0;
  std::uint64_t span_count = 0;
  std::uint64_t spans_touched = 0;  // handed out at some time
  std::uint64_t spans_in_use = 0;
  bool holds_code_addresses = false;
  std::vector<RootView> roots;
  std::vector<SizeClassView> classes;  // with at least one span, ascending
  std::uint64_t large_blocks = 0;
  std::uint64_t large_bytes = 0;
  // Where the layout contradicts itself although its bytes are as they were stored: the program
  // had overwritten its own heap. At most kMaxHeapProblems; the rest is only counted.
  std::vector<std::string> problems;
  std::uint64_t problem_count = 0;

  std::uint64_t live_blocks() const;
  std::uint64_t live_bytes() const;  // by slot size, not by what was asked for
};
inline constexpr std::size_t kMaxHeapProblems = 20;

// The bytes may be anything: every bound is checked. Fails where the superblock is none of a heap
// in this snapshot's region: damaged, version_too_new, unsupported.
Result<HeapView> decode_heap(const SparseImage& image, const SnapshotInfo& info);

// Reads the image's metadata, not its data, and decodes it. Fails like Store::read_image and
// decode_heap. Takes as much memory as the metadata: below 1 % of the heap.
Result<HeapView> read_heap(Store& store, const SnapshotInfo& info, const Progress& progress);

}  // namespace pagetide::cli
