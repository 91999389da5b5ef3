#pragma once

#include <memory>
#include <span>

#include "bench/support.h"
#include "pagetide/tracker/tracker.h"

namespace pagetide::bench {

// Memory that a tracker of the caller's watches, until the end of this object. Not thread-safe.
class WatchedPages {
 public:
  // The memory and `tracker` outlive it.
  static Result<std::unique_ptr<WatchedPages>> create(Tracker& tracker, ByteRange range);
  WatchedPages(const WatchedPages&) = delete;
  WatchedPages& operator=(const WatchedPages&) = delete;
  ~WatchedPages() { tracker_.unwatch(watch_); }

  ByteRange range() const { return range_; }
  WatchId id() const { return watch_; }

  // The seconds of a collect of `part`. It must report `at_least` pages and must not be poisoned.
  Result<double> collect(ByteRange part, CollectMode mode, std::size_t at_least);
  Result<double> collect(CollectMode mode, std::size_t at_least) {
    return collect(range_, mode, at_least);
  }
  const Collected& collected() const { return collected_; }

 private:
  WatchedPages(Tracker& tracker, ByteRange range) : tracker_(tracker), range_(range) {}

  Tracker& tracker_;
  ByteRange range_;
  WatchId watch_;
  Collected collected_;
};

}  // namespace pagetide::bench
