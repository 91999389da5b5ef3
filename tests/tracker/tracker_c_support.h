#pragma once

// What the tests of the C API take for granted.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pagetide/pagetide.h"
#include "tests/support/c_api.h"
#include "tests/support/mapping.h"
#include "tests/support/page_sets.h"
#include "tests/support/watched_memory.h"

namespace pagetide {

using TrackerHandle = std::unique_ptr<pagetide_tracker, decltype(&pagetide_tracker_destroy)>;
using CollectedHandle = std::unique_ptr<pagetide_collected, decltype(&pagetide_collected_destroy)>;

inline pagetide_tracker_options default_options() {
  pagetide_tracker_options options;
  must_c(pagetide_tracker_options_init(&options, sizeof options));
  return options;
}

inline TrackerHandle create(const pagetide_tracker_options& options) {
  pagetide_tracker* tracker = nullptr;
  must_c(pagetide_tracker_create(&options, &tracker));
  return {tracker, pagetide_tracker_destroy};
}
inline TrackerHandle create(int backend) {
  pagetide_tracker_options options = default_options();
  options.backend = backend;
  return create(options);
}

inline CollectedHandle new_collected() {
  pagetide_collected* collected = nullptr;
  must_c(pagetide_collected_create(&collected));
  return {collected, pagetide_collected_destroy};
}

inline pagetide_watch_id watch_all(pagetide_tracker* tracker, const Mapping& mapping) {
  pagetide_watch_id watch = 0;
  must_c(pagetide_tracker_watch(tracker, mapping.page(0), mapping.range().size, &watch));
  return watch;
}

inline Pages pages_of(const pagetide_collected* collected, int set) {
  Pages pages;
  pagetide_page_run run = {0, 0};
  while (pagetide_collected_next_run(collected, set, &run) > 0) {
    for (std::size_t page = run.first; page < run.first + run.count; ++page) pages.insert(page);
  }
  return pages;
}

inline pagetide_tracker_stats stats_of(const pagetide_tracker* tracker) {
  pagetide_tracker_stats stats;
  stats.size = sizeof stats;
  must_c(pagetide_tracker_get_stats(tracker, &stats));
  return stats;
}

// Memory that a C tracker watches.
class WatchedByC {
 public:
  explicit WatchedByC(std::size_t pages, int backend = PAGETIDE_BACKEND_COMPARE)
      : WatchedByC(Mapping(pages), create(backend)) {}
  WatchedByC(Mapping mapping, TrackerHandle tracker)
      : mapping_(std::move(mapping)),
        tracker_(std::move(tracker)),
        watch_(watch_all(tracker_.get(), mapping_)),
        collected_(new_collected()) {}

  const Mapping& memory() const { return mapping_; }
  pagetide_tracker* tracker() const { return tracker_.get(); }
  pagetide_watch_id watch() const { return watch_; }
  pagetide_collected* collected() const { return collected_.get(); }

  Pages take(pagetide_consumer_id consumer = 0) {
    must_c(pagetide_tracker_take(tracker(), watch_, consumer, collected()));
    return pages_of(collected(), PAGETIDE_WRITTEN);
  }
  Pages peek(pagetide_consumer_id consumer = 0) {
    must_c(pagetide_tracker_peek(tracker(), watch_, consumer, collected()));
    return pages_of(collected(), PAGETIDE_WRITTEN);
  }
  pagetide_range part(std::size_t first, std::size_t count) const {
    return {mapping_.page(first), count * page_size()};
  }
  int collect(int mode, const std::vector<pagetide_range>& parts) {
    return pagetide_tracker_collect(tracker(), watch_, 0, mode, parts.data(), parts.size(),
                                    collected());
  }

 private:
  Mapping mapping_;
  TrackerHandle tracker_;
  pagetide_watch_id watch_;
  CollectedHandle collected_;
};

// Memory whose registration was lost, so that scans fail.
inline void lose_registration(const Mapping& mapping) {
  ASSERT_EQ(::mmap(mapping.page(2), page_size(), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            mapping.page(2));
}

inline const auto kEveryBackEnd = testing::Values(PAGETIDE_BACKEND_AUTO, PAGETIDE_BACKEND_COMPARE);
inline std::string back_end_name(const testing::TestParamInfo<int>& info) {
  return pagetide_backend_name(info.param);
}

using TrackerCUffdAsync = UffdAsyncTest;

}  // namespace pagetide
