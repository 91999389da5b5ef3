#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/snapshot/store.h"
#include "tools/cli/heap_view.h"

// Free memory that is not zero. In an arena that clears every freed byte at once, such a byte was
// written after the free, through a stale pointer or past the end of a block.

namespace pagetide::cli {

enum class FreeKind : std::uint8_t {
  slot,       // a slot that is not allocated
  span,       // a whole span that is not in use
  span_tail,  // behind the last slot, where the slots do not fill their span: never handed out
};

struct FreePlace {
  FreeKind kind = FreeKind::slot;
  std::uint64_t span = 0;
  std::uint32_t slot = 0;    // of a slot
  std::uint32_t offset = 0;  // in the span
  std::uint32_t size_bytes = 0;

  friend bool operator==(const FreePlace&, const FreePlace&) = default;
};

// A free place in which bytes are not zero.
struct Finding {
  static constexpr std::size_t kContentBytes = 16;

  FreePlace place;
  std::uint64_t address = 0;  // of the place, as the program saw it
  // The bytes that are not zero; offsets are from the address.
  std::uint32_t first_offset = 0;
  std::uint32_t last_offset = 0;
  std::uint32_t nonzero_bytes = 0;
  // What begins at first_offset; ends at last_offset, or is cut off.
  std::array<std::byte, kContentBytes> content{};

  std::size_t content_bytes() const;
};

struct FreeMemory {
  HeapView heap;
  // What had to be zero, by the heap's metadata.
  std::uint64_t free_slots = 0;
  std::uint64_t free_spans = 0;
  std::uint64_t free_bytes = 0;   // of both, and behind last slots
  std::vector<Finding> findings;  // by address; no more than were asked for
  std::uint64_t finding_count = 0;
};

// Looks at the data of one image as it passes by. The bytes may be anything.
class FreeMemoryScan {
 public:
  // Keeps the first `max_findings`. `metadata` must outlive the scan.
  FreeMemoryScan(const SparseImage& metadata, HeapView heap, std::size_t max_findings);

  // Pages behind the metadata, ascending; those that are left out are zero.
  void add(PageRange pages, std::span<const std::byte> content);
  FreeMemory finish();

 private:
  const SpanRun* run_of(std::uint64_t span);
  // `bytes` begin at an offset in the span, and in the place.
  void scan_span(std::uint64_t span, std::size_t offset, std::span<const std::byte> bytes);
  void scan_slots(std::uint64_t span, std::size_t size_class, std::size_t offset,
                  std::span<const std::byte> bytes);
  void scan_place(const FreePlace& place, std::size_t offset, std::span<const std::byte> bytes);
  void close_finding();

  const SparseImage& metadata_;
  std::size_t max_findings_;
  FreeMemory result_;
  std::size_t next_run_ = 0;                // in heap.spans: no span to come is before it
  std::optional<std::uint64_t> bitmap_of_;  // the span that bitmap_ is of
  SlotBitmap bitmap_;
  std::optional<Finding> open_;  // may go on in the bytes to come
};

// Reads a whole image and looks at all free memory in it. Takes as much memory as the heap's
// metadata and the findings. Fails like Store::read_image and decode_heap.
Result<FreeMemory> read_free_memory(Store& store, const SnapshotInfo& info,
                                    std::size_t max_findings, const Progress& progress);

}  // namespace pagetide::cli
