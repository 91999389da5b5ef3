#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "pagetide/tracker/backend_choice.h"
#include "pagetide/tracker/tracker.h"
#include "tests/support/mapping.h"
#include "tests/support/must.h"
#include "tests/support/page_sets.h"
#include "tests/support/skip.h"

namespace pagetide {

// Memory that a tracker of its own watches on the real kernel.
class WatchedMemory {
 public:
  explicit WatchedMemory(Mapping mapping, const TrackerOptions& options = {BackendKind::uffd_async})
      : mapping_(std::move(mapping)),
        tracker_(must(Tracker::create(options))),
        watch_(must(tracker_.watch(mapping_.range()))) {}

  const Mapping& memory() const { return mapping_; }
  Tracker& tracker() { return tracker_; }
  WatchId watch() const { return watch_; }

  Collected collect(CollectMode mode, ConsumerId consumer = {}) {
    Collected collected = must(tracker_.collect(watch_, mode, consumer));
    EXPECT_FALSE(collected.poisoned) << collected.cause;
    return collected;
  }
  Pages take(ConsumerId consumer = {}) {
    return pages_of(collect(CollectMode::take, consumer).written);
  }
  Pages peek(ConsumerId consumer = {}) {
    return pages_of(collect(CollectMode::peek, consumer).written);
  }
  // Every page populated, written and armed.
  void arm() {
    mapping_.fill(1);
    EXPECT_EQ(take(), all_pages(mapping_.pages()));
  }

 private:
  Mapping mapping_;
  Tracker tracker_;
  WatchId watch_;
};

// Tests that need uffd_async; where it is missing they say so.
class UffdAsyncTest : public testing::Test {
 protected:
  void SetUp() override {
    if (auto r = check_backend(BackendKind::uffd_async); !r) {
      PAGETIDE_SKIP(r.error().message().c_str());
    }
  }
};

}  // namespace pagetide
