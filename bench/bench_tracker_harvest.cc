// What the tracker adds to the kernel's scan, and what it costs to watch much more address space
// than is in use.
//
//   harvest/KIND/WHO     one memory, scanned and armed by a take of the tracker and by a bare
//                        PAGEMAP_SCAN with the same masks and as large an output vector, whose
//                        output nobody looks at. `clean`: nothing was written, ns a page of the
//                        memory. `sparse`: 10 % were, scattered; ns a written page.
//   reservation/PLACE/WHO  64 GiB of PROT_NONE with 256 pages in use, `packed` side by side or
//                        `spread`, one every 256 MiB. Time is a take after all of them were
//                        written; clean_us is one after nothing was, first_us is the first one,
//                        which arms them, and tables_KiB is by how much it grew the page tables.
//                        `bare_scan_arming_all` also arms what nobody touched, by a mask without
//                        "present or swapped".

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/bare_kernel.h"
#include "bench/bench_tracker.h"
#include "bench/contest.h"
#include "bench/support.h"
#include "bench/watched_pages.h"
#include "pagetide/base/bytes.h"
#include "pagetide/base/syscalls.h"

namespace pagetide::bench {

namespace {

using namespace literals;

constexpr double kUs = 1e6;

Result<Tracker> open_tracker(BackendKind kind) {
  return Tracker::create({kind});
}

// --- harvest ---

// Memory that a tracker watches, and a second way to scan it.
struct HarvestGround {
  explicit HarvestGround(Tracker t, BareScan s)
      : pages(4 * bench_bytes()),
        picker(pages.count()),
        tracker(std::move(t)),
        bare(std::move(s)) {}

  Pages pages;
  PagePicker picker;
  Tracker tracker;
  BareScan bare;
  std::unique_ptr<WatchedPages> watched;
};

Result<std::shared_ptr<HarvestGround>> harvest_ground() {
  auto tracker = open_tracker(BackendKind::uffd_async);
  if (!tracker) return propagate(tracker);
  auto bare = BareScan::open();
  if (!bare) return propagate(bare);
  auto ground = std::make_shared<HarvestGround>(std::move(*tracker), std::move(*bare));
  auto watched = WatchedPages::create(ground->tracker, ground->pages.range());
  if (!watched) return propagate(watched);
  ground->watched = std::move(*watched);
  write_all_pages(ground->pages.range());
  auto armed = ground->watched->collect(CollectMode::take, ground->pages.count());
  if (!armed) return propagate(armed);
  return ground;
}

// `take` gives the seconds of scanning and arming the whole, which must find `expected` pages.
using Take = std::function<Result<double>(HarvestGround&, std::size_t expected)>;

Result<Figures> harvest(HarvestGround& ground, const Take& take) {
  auto clean = take(ground, 0);
  if (!clean) return propagate(clean);
  const auto chosen = ground.picker.pick(ground.pages.count() / 10);
  write_pages(ground.pages.range(), chosen);
  auto sparse = take(ground, chosen.size());
  if (!sparse) return propagate(sparse);
  return Figures{{"clean", *clean / static_cast<double>(ground.pages.count())},
                 {"sparse", *sparse / static_cast<double>(chosen.size())}};
}

Result<double> scan_bare(BareScan& scan, ByteRange range, const BareQuery& query,
                         std::size_t expected) {
  Result<std::size_t> found = std::size_t{0};
  const double seconds = seconds_of([&] { found = scan.scan(range, query); });
  if (!found) return propagate(found);
  if (*found < expected) return failure(ErrorCode::damaged, "the scan missed written pages");
  return seconds;
}

Result<std::vector<Entrant>> harvest_entrants() {
  auto made = harvest_ground();
  if (!made) return propagate(made);
  const auto ground = *made;
  const Take by_tracker = [](HarvestGround& on, std::size_t expected) {
    return on.watched->collect(CollectMode::take, expected);
  };
  const Take by_bare_scan = [](HarvestGround& on, std::size_t expected) {
    return scan_bare(on.bare, on.pages.range(), {.write_protect = true}, expected);
  };
  return std::vector<Entrant>{
      {"tracker", [ground, by_tracker] { return harvest(*ground, by_tracker); }},
      {"bare_scan", [ground, by_bare_scan] { return harvest(*ground, by_bare_scan); }}};
}

void register_harvest_contest() {
  const auto contest = Contest::create(15, harvest_entrants);
  for (const char* kind : {"clean", "sparse"}) {
    for (const char* entrant : {"tracker", "bare_scan"}) {
      contest->add({.name = std::string("harvest/") + kind + "/" + entrant,
                    .entrant = entrant,
                    .time = kind,
                    .reference = "bare_scan",
                    .label = "against a bare PAGEMAP_SCAN"});
    }
  }
}

// --- reservation ---

// How far apart the pages in use are.
struct Place {
  const char* name;
  std::size_t step_bytes;
};
constexpr std::array<Place, 2> kPlaces = {{{"packed", 4_KiB}, {"spread", 256_MiB}}};

// Address space of which next to nothing is in use.
class Reservation {
 public:
  static constexpr std::size_t kBytes = 64_GiB;
  static constexpr std::size_t kPagesInUse = 256;

  explicit Reservation(const Place& place) : step_bytes_(std::max(place.step_bytes, page_size())) {
    void* memory =
        ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) range_ = ByteRange::of(memory, kBytes);
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation() {
    if (!range_.empty()) ::munmap(range_.data(), range_.size);
  }

  ByteRange range() const { return range_; }

  Result<void> use() {
    for (std::size_t i = 0; i < kPagesInUse; ++i) {
      if (const int r = sys::protect_read_write(page(i)); r < 0) {
        return system_failure("make a page of the reservation usable", -r);
      }
    }
    write();
    return {};
  }
  void write() {
    ++value_;
    for (std::size_t i = 0; i < kPagesInUse; ++i) {
      *reinterpret_cast<volatile std::uint64_t*>(page(i).data()) = value_;
    }
  }

 private:
  ByteRange page(std::size_t i) const { return {range_.begin + i * step_bytes_, page_size()}; }

  std::size_t step_bytes_;
  ByteRange range_;
  std::uint64_t value_ = 0;
};

// `take` gives the seconds of scanning and arming the whole.
Result<Figures> take_thrice(Reservation& reservation,
                            const std::function<Result<double>(std::size_t expected)>& take) {
  if (auto r = reservation.use(); !r) return propagate(r);
  Figures figures;
  const double tables = page_tables_kib();
  auto first = take(Reservation::kPagesInUse);
  if (!first) return propagate(first);
  figures["reservation.tables_KiB"] = page_tables_kib() - tables;
  auto clean = take(0);
  if (!clean) return propagate(clean);
  reservation.write();
  auto dirty = take(Reservation::kPagesInUse);
  if (!dirty) return propagate(dirty);
  figures["reservation"] = *dirty;
  figures["reservation.first_us"] = *first * kUs;
  figures["reservation.clean_us"] = *clean * kUs;
  return figures;
}

Result<Figures> take_by_tracker(Tracker& tracker, const Place& place) {
  Reservation reservation(place);
  if (reservation.range().empty()) return system_failure("reserve 64 GiB", ENOMEM);
  auto watched = WatchedPages::create(tracker, reservation.range());
  if (!watched) return propagate(watched);
  return take_thrice(reservation, [&](std::size_t expected) {
    return (*watched)->collect(CollectMode::take, expected);
  });
}

Result<Figures> take_by_bare_scan(BareUffd& uffd, BareScan& scan, const BareQuery& query,
                                  const Place& place) {
  Reservation reservation(place);
  if (reservation.range().empty()) return system_failure("reserve 64 GiB", ENOMEM);
  if (auto r = uffd.watch(reservation.range()); !r) return propagate(r);
  auto figures = take_thrice(reservation, [&](std::size_t expected) {
    return scan_bare(scan, reservation.range(), query, expected);
  });
  uffd.unwatch(reservation.range());
  return figures;
}

Entrant tracker_entrant(BackendKind kind, const Place& place) {
  auto opened = open_tracker(kind);
  const std::string name(to_string(kind));
  if (!opened) {
    return {name, [error = opened.error()]() -> Result<Figures> {
              return failure(error.code(), error.message());
            }};
  }
  const auto tracker = std::make_shared<Tracker>(std::move(*opened));
  return {name, [tracker, &place] { return take_by_tracker(*tracker, place); }};
}

Result<std::vector<Entrant>> reservation_entrants(const Place& place) {
  auto opened = BareUffd::open(kernel::kUffdFeatureWpAsync);
  if (!opened) return propagate(opened);
  auto scanner = BareScan::open();
  if (!scanner) return propagate(scanner);
  const auto uffd = std::make_shared<BareUffd>(std::move(*opened));
  const auto scan = std::make_shared<BareScan>(std::move(*scanner));
  const auto bare = [uffd, scan, &place](std::uint64_t anyof) {
    return [uffd, scan, anyof, &place] {
      return take_by_bare_scan(*uffd, *scan, {.anyof = anyof, .write_protect = true}, place);
    };
  };
  return std::vector<Entrant>{tracker_entrant(BackendKind::uffd_async, place),
                              tracker_entrant(BackendKind::uffd_sigbus, place),
                              {"bare_scan", bare(BareQuery().anyof)},
                              {"bare_scan_arming_all", bare(0)}};
}

void register_reservation_contests() {
  for (const Place& place : kPlaces) {
    const auto contest = Contest::create(4, [&place] { return reservation_entrants(place); });
    for (const char* entrant : {"uffd_async", "uffd_sigbus", "bare_scan", "bare_scan_arming_all"}) {
      contest->add({.name = std::string("reservation/") + place.name + "/" + entrant,
                    .entrant = entrant,
                    .time = "reservation",
                    .reference = "bare_scan",
                    .label = "against a bare PAGEMAP_SCAN",
                    .unit = benchmark::kMicrosecond});
    }
  }
}

}  // namespace

void register_harvest_contests() {
  register_harvest_contest();
  register_reservation_contests();
}

}  // namespace pagetide::bench
