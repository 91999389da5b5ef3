#include "bench/watched_pages.h"

#include <fmt/format.h>

#include <cerrno>

namespace pagetide::bench {

Result<std::unique_ptr<WatchedPages>> WatchedPages::create(Tracker& tracker, ByteRange range) {
  if (range.empty()) return system_failure("map memory to track", ENOMEM);
  const auto watch = tracker.watch(range);
  if (!watch) return failure(watch.error().code(), watch.error().message());
  auto watched = std::unique_ptr<WatchedPages>(new WatchedPages(tracker, range));
  watched->watch_ = *watch;
  tracker.reserve(*watch, watched->collected_);
  return watched;
}

Result<double> WatchedPages::collect(ByteRange part, CollectMode mode, std::size_t at_least) {
  Result<void> r;
  const double seconds = seconds_of([&] {
    r = tracker_.collect_into(watch_, {&part, 1}, mode, collected_);
  });
  if (!r) return propagate(r);
  if (collected_.poisoned) return failure(ErrorCode::system_failure, collected_.cause);
  if (const std::size_t found = collected_.written.count(); found < at_least) {
    return failure(ErrorCode::damaged,
                   fmt::format("{} pages were written and only {} reported.", at_least, found));
  }
  return seconds;
}

}  // namespace pagetide::bench
