#include "pagetide/tracker/tracker_c.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "pagetide/base/bytes.h"
#include "pagetide/base/c_border.h"
#include "pagetide/base/c_numbers.h"
#include "pagetide/tracker/tracker.h"
#include "pagetide/tracker/tracker_c_handles.h"
#include "pagetide/tracker/tracker_c_numbers.h"

// The part of the C API that collects, and what was collected.

using namespace pagetide::c_api;

namespace {

using pagetide::ByteRange;
using pagetide::CollectMode;
using pagetide::ConsumerId;
using pagetide::DirtyBitmap;
using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::page_size;
using pagetide::PageRange;
using pagetide::propagate;
using pagetide::Result;
using pagetide::Tracker;

// Fails when `watch` has fewer pages than are given.
Result<void> check_pages(const Tracker& tracker, pagetide_watch_id watch, std::size_t page_count) {
  auto range = tracker.range(from_c(watch));
  if (!range) return propagate(range);
  const std::size_t pages = range->size / page_size();
  if (page_count <= pages) return {};
  return failure(ErrorCode::invalid_argument,
                 fmt::format("the watched range has {} pages, {} were given; are they of another "
                             "watch?",
                             pages, page_count));
}

int collect_whole(pagetide_tracker* tracker, pagetide_watch_id watch, pagetide_consumer_id consumer,
                  CollectMode mode, pagetide_collected* collected) {
  return at_border({{tracker, "tracker"}, {collected, "collected"}}, [&]() -> Result<void> {
    return tracker->tracker.collect_into(from_c(watch), mode, collected->value,
                                         ConsumerId{consumer});
  });
}

// Calls use(a DirtyBitmap), which returns a number or a Result, for one of the two sets.
template <typename Answer, typename Use>
Answer with_set(const pagetide_collected* collected, int set, Required other, Use&& use) {
  return at_border<Answer>({{collected, "collected"}, other}, [&]() -> Result<Answer> {
    auto member = meaning_of(set, kPageSets, "pagetide_page_set");
    if (!member) return propagate(member);
    return use(collected->value.**member);
  });
}

}  // namespace

// --- Collecting ---

int pagetide_collected_create(pagetide_collected** collected) {
  return at_border({{collected, "collected"}}, [&]() -> Result<void> {
    *collected = std::make_unique<pagetide_collected>().release();
    return {};
  });
}

void pagetide_collected_destroy(pagetide_collected* collected) {
  const KeptErrno kept_errno;
  delete collected;
}

int pagetide_tracker_reserve(const pagetide_tracker* tracker, pagetide_watch_id watch,
                             size_t part_count, pagetide_collected* collected) {
  return at_border({{tracker, "tracker"}, {collected, "collected"}}, [&]() -> Result<void> {
    auto range = tracker->tracker.range(from_c(watch));
    if (!range) return propagate(range);
    if (part_count > collected->parts.max_size()) throw std::bad_alloc();
    collected->parts.reserve(part_count);
    tracker->tracker.reserve(from_c(watch), collected->value);
    return {};
  });
}

int pagetide_tracker_take(pagetide_tracker* tracker, pagetide_watch_id watch,
                          pagetide_consumer_id consumer, pagetide_collected* collected) {
  return collect_whole(tracker, watch, consumer, CollectMode::take, collected);
}

int pagetide_tracker_peek(pagetide_tracker* tracker, pagetide_watch_id watch,
                          pagetide_consumer_id consumer, pagetide_collected* collected) {
  return collect_whole(tracker, watch, consumer, CollectMode::peek, collected);
}

int pagetide_tracker_collect(pagetide_tracker* tracker, pagetide_watch_id watch,
                             pagetide_consumer_id consumer, int mode, const pagetide_range* parts,
                             size_t part_count, pagetide_collected* collected) {
  if (parts == nullptr && part_count > 0) return fail_for_null("parts");
  return at_border({{tracker, "tracker"}, {collected, "collected"}}, [&]() -> Result<void> {
    auto meant = meaning_of(mode, kCollectModes, "pagetide_collect_mode");
    if (!meant) return propagate(meant);
    collected->parts.clear();
    for (const pagetide_range& part : std::span(parts, part_count)) {
      collected->parts.push_back(ByteRange::of(part.address, part.size));
    }
    return tracker->tracker.collect_into(from_c(watch), collected->parts, *meant, collected->value,
                                         ConsumerId{consumer});
  });
}

int pagetide_tracker_put_back(pagetide_tracker* tracker, pagetide_watch_id watch,
                              pagetide_consumer_id consumer, const pagetide_collected* collected) {
  return at_border({{tracker, "tracker"}, {collected, "collected"}}, [&]() -> Result<void> {
    if (auto r = check_pages(tracker->tracker, watch, collected->value.written.size()); !r)
      return r;
    tracker->tracker.put_back(from_c(watch), collected->value, ConsumerId{consumer});
    return {};
  });
}

int pagetide_tracker_report_unchanged(pagetide_tracker* tracker, pagetide_watch_id watch,
                                      const uint64_t* words, size_t page_count) {
  if (words == nullptr && page_count > 0) return fail_for_null("words");
  return at_border({{tracker, "tracker"}}, [&]() -> Result<void> {
    if (auto r = check_pages(tracker->tracker, watch, page_count); !r) return r;
    const std::span<const std::uint64_t> bits(words, pagetide::divide_up(page_count, 64));
    tracker->tracker.report_unchanged(from_c(watch), DirtyBitmap::from_words(bits, page_count));
    return {};
  });
}

// --- What was collected ---

int64_t pagetide_collected_pages(const pagetide_collected* collected) {
  return at_border<int64_t>({{collected, "collected"}}, [&]() -> Result<std::size_t> {
    return collected->value.written.size();
  });
}

int64_t pagetide_collected_count(const pagetide_collected* collected, int set) {
  return with_set<int64_t>(collected, set, {collected, "collected"}, [](const DirtyBitmap& pages) {
    return static_cast<int64_t>(pages.count());
  });
}

int pagetide_collected_has(const pagetide_collected* collected, int set, size_t page) {
  return with_set<int>(collected, set, {collected, "collected"}, [&](const DirtyBitmap& pages) {
    return page < pages.size() && pages.test(page) ? 1 : 0;
  });
}

int pagetide_collected_next_run(const pagetide_collected* collected, int set,
                                pagetide_page_run* run) {
  const auto find_next = [&](const DirtyBitmap& pages) -> Result<int> {
    const std::size_t from = run->first + run->count;
    if (from < run->first) {
      return failure(ErrorCode::invalid_argument,
                     fmt::format("{} pages from page {} are no run; begin with {{0, 0}}.",
                                 run->count, run->first));
    }
    const PageRange found = pages.next_run(from);
    if (found.empty()) return 0;
    *run = {found.first, found.count};
    return 1;
  };
  return with_set<int>(collected, set, {run, "run"}, find_next);
}

int pagetide_collected_export(const pagetide_collected* collected, int set, uint64_t* words,
                              size_t word_count) {
  const auto copy_out = [&](const DirtyBitmap& pages) -> Result<int> {
    const auto bits = pages.words();
    if (word_count < bits.size()) {
      return failure(ErrorCode::invalid_argument,
                     fmt::format("{} pages need {} words, there is room for {}.", pages.size(),
                                 bits.size(), word_count));
    }
    std::fill(std::copy(bits.begin(), bits.end(), words), words + word_count, 0);
    return PAGETIDE_OK;
  };
  return with_set<int>(collected, set, {words, "words"}, copy_out);
}

int pagetide_collected_is_poisoned(const pagetide_collected* collected) {
  return at_border({{collected, "collected"}},
                   [&]() -> Result<int> { return collected->value.poisoned ? 1 : 0; });
}

const char* pagetide_collected_cause(const pagetide_collected* collected) {
  return at_border<const char*>({{collected, "collected"}}, [&]() -> Result<const char*> {
    return collected->value.cause.c_str();
  });
}
