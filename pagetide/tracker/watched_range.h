#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/base/page_range.h"
#include "pagetide/tracker/any_backend.h"
#include "pagetide/tracker/hot_pages.h"
#include "pagetide/tracker/page_bits.h"
#include "pagetide/tracker/tracker.h"

namespace pagetide {

constexpr std::uint32_t kMaxConsumers = 8;

// One range that a Tracker watches: what each consumer has not seen of it, what counts as written
// always, and which blocks are hot. Consumers are named by their place here.
//
// Not thread-safe; its tracker's lock covers it.
class WatchedRange {
 public:
  static Result<WatchedRange> create(ByteRange range, const HotPageOptions& hot_pages);

  WatchId id;
  ByteRange range() const { return range_; }
  std::size_t page_count() const { return range_.size / page_size(); }
  HotPages& hot() { return hot_; }
  const HotPages& hot() const { return hot_; }

  void add_consumer(std::size_t place) { epochs_.at(place).emplace(page_count()); }
  void remove_consumer(std::size_t place) { epochs_.at(place).reset(); }

  // A consumer collects a part. A take hands what the back end found to the others as well.
  void collect(AnyBackend& backend, ByteRange part, CollectMode mode, std::size_t consumer,
               Collected& out);
  // Every consumer's next collect reports these pages; one consumer's; all collects.
  void mark_pending(PageRange pages);
  void mark_pending(PageRange pages, std::size_t consumer);
  void mark_always(PageRange pages) { always_.set(pages); }
  // The pages were purged. What has a file behind it holds that now, and is to be read.
  void note_purged(PageRange pages);

  bool is_anonymous(ByteRange range) const;
  // Calls apply(ByteRange) for what of `range` has neither file nor memfd behind it.
  template <typename Apply>
  void for_each_anonymous_part(ByteRange range, Apply&& apply) const;

 private:
  // What one consumer has not seen.
  struct Epoch {
    explicit Epoch(std::size_t page_count) : pending(page_count), purged(page_count) {}
    PageBits pending;  // taken by others, marked dirty or put back
    PageBits purged;   // purge log since its last take
  };

  WatchedRange(ByteRange range, HotPages hot);
  void take(AnyBackend& backend, ByteRange part, CollectMode mode, std::size_t consumer,
            Collected& out);
  void harvest(AnyBackend& backend, ByteRange part, CollectMode mode, Collected& out);
  void poison(ByteRange part, Collected& out) const;

  ByteRange range_;
  HotPages hot_;
  std::array<std::optional<Epoch>, kMaxConsumers> epochs_;
  PageBits always_;
  std::vector<ByteRange> file_parts_;  // ascending; untouched and purged pages are not zero
};

template <typename Apply>
void WatchedRange::for_each_anonymous_part(ByteRange range, Apply&& apply) const {
  ByteRange rest = range.page_cover().intersect(range_);
  for (const ByteRange& file_part : file_parts_) {
    const ByteRange inside = file_part.intersect(rest);
    if (inside.empty()) continue;
    if (inside.begin > rest.begin) apply(ByteRange{rest.begin, inside.begin - rest.begin});
    rest = {inside.end(), rest.end() - inside.end()};
  }
  if (!rest.empty()) apply(rest);
}

}  // namespace pagetide
