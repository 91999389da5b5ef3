#include "pagetide/tracker/watched_range.h"

#include <algorithm>
#include <new>

#include "pagetide/tracker/kernel/mapping_query.h"

namespace pagetide {

namespace {

// The parts of a range that have a file or memfd behind them. Where the kernel cannot be asked (no
// /proc, memory of a test's fake back end), all counts as anonymous.
std::vector<ByteRange> file_parts_of(ByteRange range) {
  std::vector<ByteRange> parts;
  auto query = MappingQuery::open();
  if (!query) return parts;
  const auto mapped = query->parts_of(range);
  if (!mapped) return parts;
  for (const MappedPart& part : *mapped) {
    if (part.is_file || part.is_shared) parts.push_back(part.range);
  }
  return parts;
}

}  // namespace

Result<WatchedRange> WatchedRange::create(ByteRange range, const HotPageOptions& hot_pages) {
  auto hot = HotPages::create(range, hot_pages);
  if (!hot) return propagate(hot);
  return WatchedRange(range, std::move(*hot));
}

WatchedRange::WatchedRange(ByteRange range, HotPages hot)
    : range_(range),
      hot_(std::move(hot)),
      always_(range.size / page_size()),
      file_parts_(file_parts_of(range)) {}

void WatchedRange::collect(AnyBackend& backend, ByteRange part, CollectMode mode,
                           std::size_t consumer, Collected& out) {
  const PageRange pages = PageRange::covering(part, range_);
  if (mode == CollectMode::peek) {
    harvest(backend, part, mode, out);
  } else {
    take(backend, part, mode, consumer, out);
  }
  Epoch& epoch = *epochs_.at(consumer);
  epoch.pending.add_to(out.written, pages);
  always_.add_to(out.written, pages);
  epoch.purged.add_to(out.zeroed, pages);
  if (mode != CollectMode::peek) {
    epoch.pending.reset(pages);
    epoch.purged.reset(pages);
  }
}

void WatchedRange::take(AnyBackend& backend, ByteRange part, CollectMode mode, std::size_t consumer,
                        Collected& out) {
  const PageRange pages = PageRange::covering(part, range_);
  if (mode == CollectMode::take_unarmed) {
    harvest(backend, part, CollectMode::peek, out);
  } else {
    // Hot blocks are only looked at: their pages stay unarmed and are found again next time.
    hot_.plan(part, [&](ByteRange run, bool arm) {
      harvest(backend, run, arm ? CollectMode::take : CollectMode::peek, out);
    });
  }
  if (mode == CollectMode::take) {
    hot_.note_reported(pages, out.written);
  } else {
    hot_.drop_plan();
  }
  for (std::size_t place = 0; place < kMaxConsumers; ++place) {
    if (place == consumer || !epochs_.at(place)) continue;
    epochs_.at(place)->pending.set_from(out.written, pages);
  }
}

// Asks the back end. An error means that bits may have been consumed: all counts as written. So it
// does when there is no memory for putting the error into words.
void WatchedRange::harvest(AnyBackend& backend, ByteRange part, CollectMode mode, Collected& out) {
  try {
    const auto r = backend.collect(range_, part, mode, out.written);
    if (r) return;
    poison(part, out);
    out.cause = r.error().message();
  } catch (const std::bad_alloc&) {
    poison(part, out);
  }
}

void WatchedRange::poison(ByteRange part, Collected& out) const {
  out.written.set_range(PageRange::covering(part, range_));
  out.poisoned = true;
}

void WatchedRange::mark_pending(PageRange pages) {
  for (auto& epoch : epochs_) {
    if (epoch) epoch->pending.set(pages);
  }
}

void WatchedRange::mark_pending(PageRange pages, std::size_t consumer) {
  epochs_.at(consumer)->pending.set(pages.intersect({0, page_count()}));
}

void WatchedRange::note_purged(PageRange pages) {
  for (auto& epoch : epochs_) {
    if (epoch) epoch->purged.set(pages);
  }
  const ByteRange purged = pages.bytes_from(range_.begin);
  for (const ByteRange& file_part : file_parts_) {
    const ByteRange inside = file_part.intersect(purged);
    if (!inside.empty()) mark_pending(PageRange::covering(inside, range_));
  }
}

bool WatchedRange::is_anonymous(ByteRange range) const {
  return std::all_of(file_parts_.begin(), file_parts_.end(), [&](const ByteRange& file_part) {
    return file_part.intersect(range).empty();
  });
}

}  // namespace pagetide
