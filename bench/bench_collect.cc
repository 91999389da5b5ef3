// What tracking costs: collecting, the first write to an armed page, preparing fresh memory.
//
//   bench_collect --benchmark_filter=collect
//
// Times are for one page (of the system's size): of the whole memory in collect/peek_clean, of
// the written pages in collect/take. `ratio` is the peer's time divided by ours: above 1 Pagetide
// is the faster one. For first_write and prefill that is no race: the peer is what memory costs
// without tracking, and a ratio below 1 says how much of that tracking adds.

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <utility>

#include "bench/support.h"
#include "pagetide/tracker/tracker.h"

namespace {

using namespace pagetide;
using namespace pagetide::bench;

// Memory with a tracker of its own.
class TrackedPages {
 public:
  static Result<std::unique_ptr<TrackedPages>> create(BackendKind backend, std::size_t bytes) {
    auto tracker = Tracker::create({backend});
    if (!tracker) return propagate(tracker);
    auto tracked = std::unique_ptr<TrackedPages>(new TrackedPages(std::move(*tracker), bytes));
    if (tracked->range().empty()) return system_failure("map memory to track", ENOMEM);
    auto watch = tracked->tracker_.watch(tracked->range());
    if (!watch) return propagate(watch);
    tracked->watch_ = *watch;
    tracked->tracker_.reserve(*watch, tracked->collected_);
    return tracked;
  }

  ByteRange range() const { return pages_.range(); }
  Tracker& tracker() { return tracker_; }

  // Every page written and, where the back end arms, armed.
  Result<double> populate() {
    fill_with_noise(range());
    return collect(CollectMode::take, pages_.count());
  }
  // The seconds of a collect that must report exactly `expected` pages.
  Result<double> collect(CollectMode mode, std::size_t expected) {
    Result<void> r;
    const ByteRange whole = range();
    const double seconds = seconds_of([&] {
      r = tracker_.collect_into(watch_, {&whole, 1}, mode, collected_);
    });
    if (!r) return propagate(r);
    if (collected_.poisoned) return failure(ErrorCode::system_failure, collected_.cause);
    if (const std::size_t found = collected_.written.count(); found != expected) {
      return failure(ErrorCode::system_failure,
                     fmt::format("{} pages were written and {} reported; another program may move "
                                 "pages (KSM, swap), run again.",
                                 expected, found));
    }
    return seconds;
  }
  Result<double> write_and_take(std::span<const std::uint32_t> pages) {
    write_pages(range(), pages);
    return collect(CollectMode::take, pages.size());
  }

 private:
  TrackedPages(Tracker tracker, std::size_t bytes) : pages_(bytes), tracker_(std::move(tracker)) {}

  Pages pages_;
  Tracker tracker_;  // unwatches before the pages go
  WatchId watch_;
  Collected collected_;
};

constexpr const char* kComparePeer = "compare back end, same collect";

// Both back ends over memory of their own, populated and clean.
void compare_collects(benchmark::State& state, std::size_t pages_of_a_round,
                      const std::function<Result<double>(TrackedPages&)>& collect) {
  auto async = TrackedPages::create(BackendKind::uffd_async, bench_bytes());
  if (!async) return skip(state, async.error());
  auto compare_all = TrackedPages::create(BackendKind::compare, bench_bytes());
  if (!compare_all) return skip(state, compare_all.error());
  for (TrackedPages* tracked : {async->get(), compare_all->get()}) {
    if (auto r = tracked->populate(); !r) return skip(state, r.error());
  }
  compare(
      state, kComparePeer,
      {.count = 6, .operations = static_cast<double>(pages_of_a_round), .unit = Unit::ns},
      [&] { return collect(**async); }, [&] { return collect(**compare_all); });
}

void collect_peek_clean(benchmark::State& state) {
  compare_collects(state, bench_bytes() / page_size(),
                   [](TrackedPages& tracked) { return tracked.collect(CollectMode::peek, 0); });
}

void collect_take(benchmark::State& state) {
  const std::size_t pages = bench_bytes() / page_size();
  const std::size_t dirty = pages * static_cast<std::size_t>(state.range(0)) / 100;
  PagePicker picker(pages);
  compare_collects(state, dirty, [&](TrackedPages& tracked) {
    return tracked.write_and_take(picker.pick(dirty));
  });
  state.counters["dirty_pages"] = static_cast<double>(dirty);
}

// Writing and prefilling is dearer a page than collecting: a quarter of the memory.
std::size_t write_bytes() {
  return round_up(bench_bytes() / 4, page_size());
}

Result<void> drop(ByteRange range) {
  if (::madvise(range.data(), range.size, MADV_DONTNEED) == 0) return {};
  return system_failure("drop memory", errno);
}

// Memory as fresh as it gets without mapping it anew: no pages; page tables stay, for both sides.
Result<double> first_touch(ByteRange range) {
  if (auto r = drop(range); !r) return propagate(r);
  return seconds_of([&] { write_all_pages(range); });
}

Result<double> prefill(TrackedPages& tracked) {
  if (auto r = drop(tracked.range()); !r) return propagate(r);
  Result<void> r;
  const double seconds =
      seconds_of([&] { r = tracked.tracker().prefill(tracked.range(), Prefill::zero_page); });
  if (!r) return propagate(r);
  return seconds;
}

// `ours` works on tracked memory, `peer` on plain memory.
void compare_with_plain_memory(benchmark::State& state, const char* peer_name,
                               const std::function<Result<double>(TrackedPages&)>& ours,
                               const std::function<Result<double>(ByteRange)>& peer) {
  auto tracked = TrackedPages::create(BackendKind::uffd_async, write_bytes());
  if (!tracked) return skip(state, tracked.error());
  const Pages plain(write_bytes());
  if (plain.range().empty()) return state.SkipWithError("cannot map memory");
  compare(
      state, peer_name,
      {.count = 6, .operations = static_cast<double>(plain.count()), .unit = Unit::ns},
      [&] { return ours(**tracked); }, [&] { return peer(plain.range()); });
}

constexpr const char* kPlainPeer = "first touch of plain memory";

void first_write_armed(benchmark::State& state) {
  const auto write_again = [](TrackedPages& tracked) -> Result<double> {
    write_all_pages(tracked.range());
    const std::size_t all = tracked.range().size / page_size();
    if (auto r = tracked.collect(CollectMode::take, all); !r) return r;
    return seconds_of([&] { write_all_pages(tracked.range()); });
  };
  compare_with_plain_memory(state, kPlainPeer, write_again, first_touch);
}

void first_write_zero_page(benchmark::State& state) {
  const auto write_prefilled = [](TrackedPages& tracked) -> Result<double> {
    if (auto r = prefill(tracked); !r) return r;
    return seconds_of([&] { write_all_pages(tracked.range()); });
  };
  compare_with_plain_memory(state, kPlainPeer, write_prefilled, first_touch);
}

void first_write_none(benchmark::State& state) {
  const auto touch = [](TrackedPages& tracked) { return first_touch(tracked.range()); };
  compare_with_plain_memory(state, kPlainPeer, touch, first_touch);
}

void prefill_zero_page(benchmark::State& state) {
  const auto populate_read = [](ByteRange range) -> Result<double> {
    if (auto r = drop(range); !r) return propagate(r);
    int failed = 0;
    const double seconds =
        seconds_of([&] { failed = ::madvise(range.data(), range.size, MADV_POPULATE_READ); });
    if (failed != 0) return system_failure("populate memory (MADV_POPULATE_READ)", errno);
    return seconds;
  };
  compare_with_plain_memory(state, "MADV_POPULATE_READ", prefill, populate_read);
}

// The whole price of a fresh page that is written: prefilling it and the first write, against
// Prefill::none, where the first write is all there is.
void prefill_zero_page_and_write(benchmark::State& state) {
  auto unfilled = TrackedPages::create(BackendKind::uffd_async, write_bytes());
  if (!unfilled) return skip(state, unfilled.error());
  const auto prefill_and_write = [](TrackedPages& tracked) -> Result<double> {
    auto seconds = prefill(tracked);
    if (!seconds) return seconds;
    return *seconds + seconds_of([&] { write_all_pages(tracked.range()); });
  };
  compare_with_plain_memory(state, "Prefill::none: first write only", prefill_and_write,
                            [&](ByteRange) { return first_touch((*unfilled)->range()); });
}

BENCHMARK(collect_peek_clean)->Name("collect/peek_clean")->Apply(series);
BENCHMARK(collect_take)
    ->Name("collect/take")
    ->ArgName("percent")
    ->Arg(1)
    ->Arg(10)
    ->Arg(100)
    ->Apply(series);
BENCHMARK(first_write_armed)->Name("first_write/armed_page")->Apply(series);
BENCHMARK(first_write_zero_page)->Name("first_write/armed_zero_page")->Apply(series);
BENCHMARK(first_write_none)->Name("first_write/tracked_untouched")->Apply(series);
BENCHMARK(prefill_zero_page)->Name("prefill/zero_page")->Apply(series);
BENCHMARK(prefill_zero_page_and_write)->Name("prefill/zero_page_and_write")->Apply(series);

}  // namespace

BENCHMARK_MAIN();
