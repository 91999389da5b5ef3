// Adaptive arming (TrackerOptions::hot_pages) on against off, on 1 GiB of populated memory each.
// Time is the whole overhead of an epoch: what the writer takes longer than on untracked memory,
// the take, a consumer that copies every reported page, hashes the copy (XXH3-128) and drops what
// did not change, and telling the tracker of it.
//
//   hot_pages/PATTERN/writes:N   N writes of one word in an epoch, each of a new value; the
//                                patterns are in write_patterns.h
//
// Means over the epochs (not medians: learning, one take in 16, is part of the price), which run
// in turn on both heaps and the untracked one, with the same pages. `ratio` is off / on.
//   on_off             the other way round: on / off, as goals are stated
//   unchanged_changed  pages that were copied and hashed for nothing, for each one that changed
//   writer_ms, take_ms, consume_ms; peer_...   what the overhead is made of, on and off
//   unarmed_blocks     blocks of 2 MiB left unarmed by the last take

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench_tracker.h"
#include "bench/support.h"
#include "bench/watched_pages.h"
#include "bench/write_patterns.h"
#include "pagetide/base/bytes.h"
#include "pagetide/base/hash.h"

namespace pagetide::bench {

namespace {

using namespace literals;

// The first epochs are not counted; then one whole period of learning (relearn_takes).
constexpr int kFirstEpochs = 4;
constexpr int kEpochs = 16;

// One store each; values count up, so every store changes its word.
double write_words(ByteRange heap, std::span<const std::uint32_t> pages) {
  static std::uint64_t value = 0;
  const std::size_t words = page_size() / sizeof(std::uint64_t);
  return seconds_of([&] {
    for (const std::uint32_t page : pages) {
      ++value;
      auto* const words_of_page = reinterpret_cast<volatile std::uint64_t*>(
          heap.data() + static_cast<std::size_t>(page) * page_size());
      words_of_page[value * 29 % words] = value;
    }
  });
}

// Keeps copies of changed pages, as a snapshot would before it writes them.
class CopyingConsumer {
 public:
  explicit CopyingConsumer(ByteRange heap)
      : heap_(heap), hashes_(heap.size / page_size()), copies_(kCopiesBytes) {
    for (std::size_t page = 0; page < hashes_.size(); ++page) {
      hashes_[page] = hash128(page_at(page), page_size(), 0);
    }
  }

  // Sets `unchanged` to the reported pages that have the hash of last time. Returns the number
  // of the others.
  std::size_t consume(const DirtyBitmap& reported, DirtyBitmap& unchanged) {
    std::size_t changed = 0;
    unchanged.assign_clear(reported.size());
    reported.for_each_run([&](PageRange run) {
      for (std::size_t page = run.first; page < run.end(); ++page) {
        if (copy_changed(page)) {
          ++changed;
        } else {
          unchanged.set(page);
        }
      }
    });
    return changed;
  }

 private:
  static constexpr std::size_t kCopiesBytes = 32_MiB;  // used again and again; beyond the caches

  const std::byte* page_at(std::size_t page) const { return heap_.data() + page * page_size(); }
  bool copy_changed(std::size_t page) {
    std::byte* const copy = copies_.data() + at_;
    std::memcpy(copy, page_at(page), page_size());
    const Hash128 hash = hash128(copy, page_size(), 0);
    if (hash == hashes_[page]) return false;  // the next copy takes its place
    hashes_[page] = hash;
    at_ = (at_ + page_size()) % kCopiesBytes;
    return true;
  }

  ByteRange heap_;
  std::vector<Hash128> hashes_;
  std::vector<std::byte> copies_;
  std::size_t at_ = 0;
};

// Seconds and pages, summed over epochs.
struct Costs {
  double writing = 0;
  double taking = 0;
  double consuming = 0;
  std::size_t changed = 0;
  std::size_t unchanged = 0;

  double overhead(double untracked_writing) const {
    return writing - untracked_writing + taking + consuming;
  }
};

// A heap whose tracker does or does not use hot pages, and its consumer.
class TrackedHeap {
 public:
  static Result<std::unique_ptr<TrackedHeap>> create(ByteRange heap, bool hot_pages) {
    TrackerOptions options{.backend = BackendKind::uffd_async};
    options.hot_pages.enabled = hot_pages;
    auto tracker = Tracker::create(options);
    if (!tracker) return propagate(tracker);
    auto tracked = std::unique_ptr<TrackedHeap>(new TrackedHeap(std::move(*tracker), heap));
    auto watched = WatchedPages::create(tracked->tracker_, heap);
    if (!watched) return propagate(watched);
    tracked->watched_ = std::move(*watched);
    // A first epoch, as a full snapshot is one: all was written, and none of it is hot by that.
    if (auto r = tracked->end_epoch(heap.size / page_size()); !r) return propagate(r);
    tracked->costs_ = {};
    return tracked;
  }

  Result<void> epoch(std::span<const std::uint32_t> pages) {
    costs_.writing += write_words(watched_->range(), pages);
    return end_epoch(0);
  }
  void reset_costs() { costs_ = {}; }
  const Costs& costs() const { return costs_; }
  TrackerStats stats() const { return tracker_.stats(); }

 private:
  TrackedHeap(Tracker tracker, ByteRange heap) : tracker_(std::move(tracker)), consumer_(heap) {}

  Result<void> end_epoch(std::size_t at_least) {
    auto taking = watched_->collect(CollectMode::take, at_least);
    if (!taking) return propagate(taking);
    costs_.taking += *taking;
    costs_.consuming += seconds_of([&] {
      costs_.changed += consumer_.consume(watched_->collected().written, unchanged_);
      tracker_.report_unchanged(watched_->id(), unchanged_);
    });
    costs_.unchanged += unchanged_.count();
    return {};
  }

  Tracker tracker_;
  CopyingConsumer consumer_;
  std::unique_ptr<WatchedPages> watched_;
  DirtyBitmap unchanged_;
  Costs costs_;
};

// Populated once and kept; each benchmark tracks two of them anew.
struct Heaps {
  Heaps() {
    for (const Pages* pages : {&untracked, &off, &on}) {
      if (!pages->range().empty()) write_all_pages(pages->range());
    }
  }
  Pages untracked{4 * bench_bytes()};
  Pages off{4 * bench_bytes()};
  Pages on{4 * bench_bytes()};
};

const Heaps& heaps() {
  static const Heaps kept;
  return kept;
}

struct Comparison {
  double untracked_writing = 0;
  std::unique_ptr<TrackedHeap> off;
  std::unique_ptr<TrackedHeap> on;
};

Result<Comparison> start_comparison() {
  Comparison comparison;
  for (const Pages* pages : {&heaps().untracked, &heaps().off, &heaps().on}) {
    if (pages->range().empty()) return system_failure("map memory", ENOMEM);
  }
  auto off = TrackedHeap::create(heaps().off.range(), false);
  if (!off) return propagate(off);
  auto on = TrackedHeap::create(heaps().on.range(), true);
  if (!on) return propagate(on);
  comparison.off = std::move(*off);
  comparison.on = std::move(*on);
  return comparison;
}

// One epoch of all three; who begins changes.
Result<void> run_epoch(Comparison& comparison, int epoch, std::span<const std::uint32_t> pages) {
  for (int i = 0; i < 3; ++i) {
    switch ((epoch + i) % 3) {
      case 0:
        comparison.untracked_writing += write_words(heaps().untracked.range(), pages);
        break;
      case 1:
        if (auto r = comparison.off->epoch(pages); !r) return r;
        break;
      default:
        if (auto r = comparison.on->epoch(pages); !r) return r;
    }
  }
  return {};
}

Result<Comparison> run_epochs(Pattern pattern, std::size_t writes) {
  auto comparison = start_comparison();
  if (!comparison) return comparison;
  WriteSequence sequence(pattern, heaps().on.count());
  for (int epoch = -kFirstEpochs; epoch < kEpochs; ++epoch) {
    if (epoch == 0) {
      comparison->untracked_writing = 0;
      comparison->off->reset_costs();
      comparison->on->reset_costs();
    }
    auto r = run_epoch(*comparison, epoch + kFirstEpochs, sequence.next(writes));
    if (!r) return propagate(r);
  }
  // The same pages were written on both: whatever the reports were like, so many changed.
  if (comparison->off->costs().changed != comparison->on->costs().changed) {
    return failure(ErrorCode::damaged, "on and off found different numbers of changed pages");
  }
  return comparison;
}

void show_parts(benchmark::State& state, const std::string& prefix, const Costs& costs,
                double untracked_writing) {
  const auto show = [&](const char* part, double seconds) {
    set_time_counter(state, prefix + part, seconds / kEpochs, Unit::ms);
  };
  show("writer", costs.writing - untracked_writing);
  show("take", costs.taking);
  show("consume", costs.consuming);
}

void compare_hot_pages(benchmark::State& state, Pattern pattern, std::size_t writes) {
  for (auto _ : state) {
    auto comparison = run_epochs(pattern, writes);
    if (!comparison) return skip(state, comparison.error());
    const double untracked = comparison->untracked_writing;
    const Costs& on = comparison->on->costs();
    const Costs& off = comparison->off->costs();
    state.SetIterationTime(on.overhead(untracked) / kEpochs);
    state.counters["ratio"] = off.overhead(untracked) / on.overhead(untracked);
    state.counters["on_off"] = on.overhead(untracked) / off.overhead(untracked);
    set_time_counter(state, "peer", off.overhead(untracked) / kEpochs, Unit::ms);
    const auto changed = static_cast<double>(on.changed);
    set_counter(state, "unchanged_changed", static_cast<double>(on.unchanged) / changed);
    set_counter(state, "changed", changed / kEpochs);
    set_counter(state, "unarmed_blocks", static_cast<double>(comparison->on->stats().hot_blocks));
    show_parts(state, "", on, untracked);
    show_parts(state, "peer_", off, untracked);
  }
  state.SetLabel("peer: hot pages off");
}

}  // namespace

void register_hot_page_benchmarks() {
  for (const std::size_t writes : {std::size_t{200'000}, std::size_t{50'000}}) {
    for (const Pattern pattern : kPatterns) {
      const std::string name =
          "hot_pages/" + std::string(to_string(pattern)) + "/writes:" + std::to_string(writes);
      benchmark::RegisterBenchmark(
          name.c_str(), [=](benchmark::State& state) { compare_hot_pages(state, pattern, writes); })
          ->Apply(series)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace pagetide::bench
