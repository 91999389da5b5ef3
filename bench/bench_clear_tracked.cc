// What it costs to make a freed run of tracked pages zero, and to use it again.
//
//   clear_tracked/WAY/STATE/bytes:N   making the run zero, ns a page of it
//                                     reuse_ns  a first write to every page after that
//                                     both_ns   the two together
//
// WAY is stores (clear_memory) or purge (MADV_DONTNEED, logged with the tracker; before it is used
// again the run is prefilled with zero pages, as the heap does). STATE is what the pages are when
// they are freed: unarmed (written since the last take) or armed (written before it): a store to an
// armed page faults. `ratio` is the time of the purge in the same state divided by the row's.

#include <memory>
#include <string>

#include "bench/bench_clear.h"
#include "bench/contest.h"
#include "bench/support.h"
#include "bench/watched_pages.h"
#include "pagetide/allocator/clear/clear.h"
#include "pagetide/base/bytes.h"

namespace pagetide::bench {

namespace {

using namespace literals;

constexpr double kNs = 1e9;

enum class Way : std::uint8_t { stores, purge };
enum class State : std::uint8_t { unarmed, armed };

std::string name_of(Way way, State state) {
  return std::string(way == Way::stores ? "stores" : "purge") +
         (state == State::unarmed ? "/unarmed" : "/armed");
}

class TrackedRun {
 public:
  static Result<std::shared_ptr<TrackedRun>> create(std::size_t bytes) {
    auto tracker = Tracker::create();
    if (!tracker) return propagate(tracker);
    auto run = std::shared_ptr<TrackedRun>(new TrackedRun(std::move(*tracker), bytes));
    auto watched = WatchedPages::create(run->tracker_, run->pages_.range());
    if (!watched) return propagate(watched);
    run->watched_ = std::move(*watched);
    return run;
  }

  Result<Figures> turn(Way way, State state) {
    const ByteRange range = pages_.range();
    const auto count = static_cast<double>(pages_.count());
    fill_with_noise(range);
    if (auto taken = watched_->collect(CollectMode::take, 0); !taken) return propagate(taken);
    if (state == State::unarmed) write_all_pages(range);
    Result<void> r;
    const double freeing = seconds_of([&] {
      if (way == Way::stores) {
        clear_memory(range.data(), range.size);
      } else {
        r = tracker_.purge(range);
      }
    });
    if (!r) return propagate(r);
    const double reusing = seconds_of([&] {
      if (way == Way::purge) r = tracker_.prefill(range, Prefill::zero_page);
      write_all_pages(range);
    });
    if (!r) return propagate(r);
    return Figures{{"free", freeing / count},
                   {"free.reuse_ns", reusing / count * kNs},
                   {"free.both_ns", (freeing + reusing) / count * kNs}};
  }

 private:
  TrackedRun(Tracker tracker, std::size_t bytes) : tracker_(std::move(tracker)), pages_(bytes) {}

  Tracker tracker_;
  Pages pages_;
  std::unique_ptr<WatchedPages> watched_;
};

void add(std::size_t bytes) {
  constexpr int kRounds = 15;
  const auto contest = Contest::create(kRounds, [bytes]() -> Result<std::vector<Entrant>> {
    auto run = TrackedRun::create(bytes);
    if (!run) return propagate(run);
    std::vector<Entrant> all;
    for (const Way way : {Way::stores, Way::purge}) {
      for (const State state : {State::unarmed, State::armed}) {
        all.push_back(
            {name_of(way, state), [run = *run, way, state] { return run->turn(way, state); }});
      }
    }
    return all;
  });
  for (const State state : {State::unarmed, State::armed}) {
    for (const Way way : {Way::stores, Way::purge}) {
      const std::string name = name_of(way, state);
      contest->add({.name = "clear_tracked/" + name + "/bytes:" + std::to_string(bytes),
                    .entrant = name,
                    .time = "free",
                    .reference = name_of(Way::purge, state),
                    .label = "against a purge"});
    }
  }
}

}  // namespace

void register_clear_tracked() {
  for (std::size_t bytes = 4_KiB; bytes <= 256_MiB; bytes *= 4U) add(bytes);
}

}  // namespace pagetide::bench
