#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "pagetide/allocator/heap_layout.h"
#include "pagetide/base/error.h"
#include "pagetide/snapshot/store.h"
#include "tools/cli/sparse_image.h"

namespace pagetide::cli {

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

enum class SpanUse {
  small,    // slots of one size class
  large,    // one block
  unknown,  // behind an entry of the span table that is none, up to the next that is one
};

struct SpanRun {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  SpanUse use = SpanUse::unknown;
  std::size_t size_class = 0;  // small

  std::uint64_t end() const { return first + count; }
};

// What a heap held at a snapshot, read from its layout (pagetide/allocator/heap_layout.h).
struct HeapView {
  std::string name;
  std::uint32_t layout_version = 0;
  std::uint64_t base = 0;
  std::uint64_t reserve_bytes = 0;
  layout::Geometry geometry;
  std::uint64_t spans_touched = 0;  // handed out at some time
  std::uint64_t spans_in_use = 0;
  bool holds_code_addresses = false;
  std::vector<RootView> roots;
  std::vector<SpanRun> spans;          // all that are not free, ascending
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

// Which slots of one span are allocated.
struct SlotBitmap {
  std::array<std::uint64_t, layout::kBitmapGroups * layout::kWordsPerGroup> words{};
  bool has_stray_bits = false;  // bits where there is no slot; `words` is without them

  bool is_allocated(std::size_t slot) const { return (words[slot / 64] >> (slot % 64) & 1U) != 0; }
};
SlotBitmap read_slot_bitmap(const SparseImage& metadata, const layout::Geometry& geometry,
                            std::uint64_t span, std::size_t size_class);

// The bytes may be anything: every bound is checked. Fails where the superblock is none of a heap
// in this snapshot's region: damaged, version_too_new, unsupported.
Result<HeapView> decode_heap(const SparseImage& image, const SnapshotInfo& info);

// How many pages of the image come before the heap's data: all that decode_heap() needs. Fails
// where the region is too small for a heap: damaged.
Result<std::size_t> metadata_pages(const SnapshotInfo& info);

// Reads the image's metadata, not its data, and decodes it. Fails like Store::read_metadata and
// decode_heap. Takes as much memory as the metadata: below 1 % of the heap.
Result<HeapView> read_heap(Store& store, const SnapshotInfo& info);

}  // namespace pagetide::cli
