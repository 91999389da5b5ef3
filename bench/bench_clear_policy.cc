// What ClearPolicy::on_free costs, beside ClearPolicy::never: two arenas with 200 000 objects of 16
// to 256 bytes each, of which every epoch ends with a snapshot.
//
//   clear_policy/replace/POLICY   5 % are replaced at random, ns each
//   clear_policy/free/POLICY      every twentieth is freed, ns each; none takes its place
//
// dirty_pages is what the tracker reports of the epoch, snapshot_KiB what the snapshot writes to
// its files. `ratio` is the time of `never` divided by the row's.

#include <memory>
#include <optional>
#include <string>

#include "bench/bench_clear.h"
#include "bench/contest.h"
#include "bench/object_population.h"
#include "bench/support.h"
#include "pagetide/base/bytes.h"
#include "pagetide/snapshot/snapshotter.h"

namespace pagetide::bench {

namespace {

using namespace literals;

constexpr std::size_t kObjects = 200'000;
constexpr std::size_t kStep = 20;
constexpr double kChanged = double{kObjects} / kStep;

class Party {
 public:
  static Result<std::shared_ptr<Party>> create(ClearPolicy clear) {
    auto party = std::shared_ptr<Party>(new Party);
    auto arena = Arena::create({.reserve_bytes = 1_GiB, .clear = clear});
    if (!arena) return propagate(arena);
    party->arena_.emplace(std::move(*arena));
    auto store = Store::open(party->directory_.file("store"));
    if (!store) return propagate(store);
    party->store_.emplace(std::move(*store));
    party->snapshotter_.emplace(*party->arena_, *party->store_);
    party->objects_.emplace(*party->arena_, kObjects);
    if (!party->objects_->fill()) return exhausted();
    if (auto id = party->snapshotter_->take(); !id) return propagate(id);
    return party;
  }

  Result<Figures> turn() {
    Figures figures;
    bool complete = true;
    const double replacing = seconds_of([&] { complete = objects_->replace(kObjects / kStep); });
    if (!complete) return exhausted();
    if (auto r = note("replace", replacing, figures); !r) return propagate(r);
    const double freeing = seconds_of([&] { objects_->free_each(kStep, next_++ % kStep); });
    if (auto r = note("free", freeing, figures); !r) return propagate(r);
    if (!objects_->fill()) return exhausted();
    if (auto id = snapshotter_->take(); !id) return propagate(id);
    return figures;
  }

 private:
  Party() : directory_(directory_of(Place::temporary)) {}
  static tl::unexpected<Error> exhausted() {
    return failure(ErrorCode::out_of_memory, "the arena is exhausted");
  }

  Result<void> note(const std::string& what, double seconds, Figures& figures) {
    auto id = snapshotter_->take();
    if (!id) return propagate(id);
    auto info = store_->info(*id);
    if (!info) return propagate(info);
    figures[what] = seconds / kChanged;
    figures[what + ".dirty_pages"] = static_cast<double>(info->reported_pages);
    figures[what + ".snapshot_KiB"] = static_cast<double>(info->bytes_written) / 1024;
    return {};
  }

  ScratchDirectory directory_;
  std::optional<Arena> arena_;
  std::optional<Store> store_;
  std::optional<Snapshotter> snapshotter_;
  std::optional<ObjectPopulation> objects_;
  std::size_t next_ = 0;
};

}  // namespace

void register_clear_policy() {
  constexpr int kRounds = 7;
  const auto contest = Contest::create(kRounds, []() -> Result<std::vector<Entrant>> {
    std::vector<Entrant> all;
    for (const ClearPolicy policy : {ClearPolicy::on_free, ClearPolicy::never}) {
      auto party = Party::create(policy);
      if (!party) return propagate(party);
      all.push_back({policy == ClearPolicy::never ? "never" : "on_free",
                     [party = *party] { return party->turn(); }});
    }
    return all;
  });
  for (const std::string what : {"replace", "free"}) {
    for (const std::string policy : {"on_free", "never"}) {
      contest->add({.name = "clear_policy/" + what + "/" + policy,
                    .entrant = policy,
                    .time = what,
                    .reference = "never",
                    .label = "against never"});
    }
  }
}

}  // namespace pagetide::bench
