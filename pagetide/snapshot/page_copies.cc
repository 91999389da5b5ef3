#include "pagetide/snapshot/page_copies.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "pagetide/snapshot/kept_memory.h"

namespace pagetide {

namespace {

// Word by word, because others may write to the page: what comes out is a mixture of old and new
// words then, and thrown away.
void copy_racing_page(std::byte* to, const std::byte* from) {
  const std::size_t bytes = page_size();
#if defined(__x86_64__)
  // The compilers' sanitizers know nothing of it, and it is the fastest way.
  const std::byte* source = from;
  std::byte* target = to;
  std::size_t words = bytes / sizeof(std::uint64_t);
  asm volatile("rep movsq" : "+S"(source), "+D"(target), "+c"(words) : : "memory");
#else
  for (std::size_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from + at)));
    const std::uint64_t value = word.load(std::memory_order_relaxed);
    std::memcpy(to + at, &value, sizeof(value));
  }
#endif
}

}  // namespace

Result<PageCopies> PageCopies::create(std::size_t region_pages, std::size_t bytes) {
  auto memory =
      VirtualArray<std::byte>::create(round_down(std::max(bytes, page_size()), page_size()));
  if (!memory) return propagate(memory);
  auto slots = VirtualArray<std::uint32_t>::create(region_pages);
  if (!slots) return propagate(slots);
  PageCopies copies;
  copies.memory_ = std::move(*memory);
  copies.slot_of_ = std::move(*slots);
  copies.copied_.reserve(region_pages);
  copies.copied_.assign_clear(region_pages);
  return copies;
}

bool PageCopies::copy(const std::byte* first, const DirtyBitmap& pages) {
  for (PageRange run = pages.next_run(0); !run.empty(); run = pages.next_run(run.end())) {
    for (std::size_t page = run.first; page < run.end(); ++page) {
      if (!copied_.test(page)) {
        if (used_slots_ == capacity()) return false;
        slot_of_[page] = static_cast<std::uint32_t>(used_slots_++);
        copied_.set(page);
      }
      copy_racing_page(find(page), first + page * page_size());
    }
  }
  return true;
}

void PageCopies::tidy(bool clear) {
  copied_.assign_clear(copied_.size());
  tidy_memory(memory_.span(), used_slots_ * page_size(), kept_bytes_, clear);
  used_slots_ = 0;
}

}  // namespace pagetide
