// Two comparisons of a kernel mailing list thread of February and March 2023, out of which
// UFFD_FEATURE_WP_UNPOPULATED came, made again here with our policies beside them.
//
// protect_untouched/WAY: time to write-protect 1 GiB of untouched anonymous memory.
//   default            UFFDIO_WRITEPROTECT alone; it passes over what nobody touched
//   pre_read           a read of every page first
//   madvise            MADV_POPULATE_READ first
//   wp_unpopulated     UFFDIO_WRITEPROTECT with UFFD_FEATURE_WP_UNPOPULATED: markers
//   ..._huge           the same where huge pages are allowed (MADV_HUGEPAGE)
//   prefill_POLICY     Tracker::prefill()
// The published numbers are microseconds for 10 GiB, given here by the GiB; nothing is scaled the
// other way. lkml_vm_us: Peter Xu, a virtual machine, huge pages not mentioned. lkml_us,
// lkml_huge_us: Muhammad Usama Anjum, THP=madvise and THP=always. The program there was
// uffd-wp-perf.c of github.com/xzpeter/clibs. Nobody knows those machines; only the ratios mean
// something, and lkml_*_ratio are theirs as `ratio` is ours: against wp_unpopulated.
//
// pte_none/WAY/written: untouched memory, of which a part is written, and the written pages are
// found and armed; the time of all of it. `none` prepares nothing and takes for written what is
// written and present or swapped; the others map zero pages and arm them first. Published for
// a self-test with and without mapped zero pages: 39.203 s and 26.0355 s, so zero pages had
// lkml_ratio 0.66. How much that self-test wrote is not known to us, and it decides the ratio.

#include <sys/mman.h>

#include <array>
#include <cerrno>
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

namespace pagetide::bench {

namespace {

using namespace literals;

constexpr double kNs = 1e9;

// --- protect_untouched ---

enum class Populate : std::uint8_t { nothing, read_pages, madvise };
enum class PageKind : std::uint8_t { base, huge };

// In microseconds for 10 GiB. Where huge pages matter, that column is of THP=always.
struct Published {
  double vm_us = 0;
  double us = 0;
  double huge_us = 0;
};
constexpr Published kPublishedMarkers = {20850, 11712, 14448};

struct Way {
  const char* name;
  std::uint64_t features;
  Populate populate;
  PageKind pages;
  Published published;
};

constexpr std::array<Way, 6> kWays = {{
    {"default", 0, Populate::nothing, PageKind::base, {2, 4, 4}},
    {"pre_read", 0, Populate::read_pages, PageKind::base, {3277099, 1111453, 0}},
    {"madvise", 0, Populate::madvise, PageKind::base, {2250361, 278276, 0}},
    {"wp_unpopulated", kernel::kUffdFeatureWpUnpopulated, Populate::nothing, PageKind::base,
     kPublishedMarkers},
    {"pre_read_huge", 0, Populate::read_pages, PageKind::huge, {0, 0, 22521}},
    {"madvise_huge", 0, Populate::madvise, PageKind::huge, {0, 0, 4909}},
}};
constexpr std::array<Prefill, 3> kPolicies = {Prefill::zero_page, Prefill::marker, Prefill::none};

constexpr const char* kMarkers = "wp_unpopulated";

std::size_t untouched_bytes() {
  return 4 * bench_bytes();
}
double gibs(std::size_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(1_GiB);
}

Result<void> allow_huge(ByteRange range) {
  if (::madvise(range.data(), range.size, MADV_HUGEPAGE) == 0) return {};
  return system_failure("ask for huge pages (MADV_HUGEPAGE)", errno);
}

Result<void> populate(ByteRange range, Populate how) {
  if (how == Populate::madvise) return populate_by_reading(range);
  if (how == Populate::nothing) return {};
  for (std::uintptr_t at = range.begin; at < range.end(); at += page_size()) {
    (void)*reinterpret_cast<const volatile char*>(at);
  }
  return {};
}

// The seconds for a GiB of `protect`, and what it added to the page tables.
template <typename Protect>
Result<Figures> protect_figures(std::size_t bytes, Protect&& protect) {
  const double tables = page_tables_kib();
  Result<void> r;
  const double seconds = seconds_of([&] { r = protect(); });
  if (!r) return propagate(r);
  return Figures{{"protect_untouched", seconds / gibs(bytes)},
                 {"protect_untouched.tables_KiB", (page_tables_kib() - tables) / gibs(bytes)}};
}

Result<Figures> protect_by(const Way& way) {
  const Pages pages(untouched_bytes());
  if (pages.range().empty()) return system_failure("map memory", ENOMEM);
  const ByteRange range = pages.range();
  if (way.pages == PageKind::huge) {
    if (auto r = allow_huge(range); !r) return propagate(r);
  }
  auto uffd = BareUffd::open(way.features);
  if (!uffd) return propagate(uffd);
  if (auto r = uffd->watch(range); !r) return propagate(r);
  auto figures = protect_figures(range.size, [&]() -> Result<void> {
    if (auto r = populate(range, way.populate); !r) return r;
    return uffd->protect(range);
  });
  uffd->unwatch(range);
  return figures;
}

Result<Figures> protect_by_prefill(Prefill policy) {
  auto tracker = Tracker::create({BackendKind::uffd_async});
  if (!tracker) return propagate(tracker);
  const Pages pages(untouched_bytes());
  auto watched = WatchedPages::create(*tracker, pages.range());
  if (!watched) return propagate(watched);
  return protect_figures(pages.range().size,
                         [&] { return tracker->prefill(pages.range(), policy); });
}

std::string name_of(Prefill policy) {
  return "prefill_" + std::string(to_string(policy));
}

Result<std::vector<Entrant>> protect_entrants() {
  std::vector<Entrant> all;
  for (const Way& way : kWays) all.push_back({way.name, [&way] { return protect_by(way); }});
  for (const Prefill policy : kPolicies) {
    all.push_back({name_of(policy), [policy] { return protect_by_prefill(policy); }});
  }
  return all;
}

std::vector<std::pair<std::string, double>> columns_of(const Published& published) {
  std::vector<std::pair<std::string, double>> columns;
  const auto add = [&](const std::string& name, double of_way, double of_markers) {
    if (of_way == 0) return;
    columns.emplace_back(name + "_us", of_way / 10);
    columns.emplace_back(name + "_ratio", of_markers / of_way);
  };
  add("lkml_vm", published.vm_us, kPublishedMarkers.vm_us);
  add("lkml", published.us, kPublishedMarkers.us);
  add("lkml_huge", published.huge_us, kPublishedMarkers.huge_us);
  return columns;
}

void register_protect_contest() {
  const auto contest = Contest::create(4, protect_entrants);
  const auto add = [&](const std::string& entrant, const Published& published) {
    contest->add({.name = "protect_untouched/" + entrant,
                  .entrant = entrant,
                  .time = "protect_untouched",
                  .reference = kMarkers,
                  .label = "a GiB; against wp_unpopulated",
                  .published = columns_of(published),
                  .unit = benchmark::kMicrosecond});
  };
  for (const Way& way : kWays) add(way.name, way.published);
  for (const Prefill policy : kPolicies) add(name_of(policy), {});
}

// --- pte_none ---

enum class ZeroPages : std::uint8_t { none, uffdio_zeropage, populate_read };
constexpr std::array<std::pair<const char*, ZeroPages>, 3> kZeroPages = {
    {{"none", ZeroPages::none},
     {"uffdio_zeropage", ZeroPages::uffdio_zeropage},
     {"populate_read", ZeroPages::populate_read}}};
constexpr std::array<int, 3> kPercents = {1, 10, 100};

Result<void> prepare(BareUffd& uffd, ByteRange range, ZeroPages way) {
  if (way == ZeroPages::none) return {};
  auto mapped =
      way == ZeroPages::uffdio_zeropage ? uffd.map_zero_pages(range) : populate_by_reading(range);
  if (!mapped) return mapped;
  return uffd.protect(range);
}

class PteNone {
 public:
  static Result<std::shared_ptr<PteNone>> create() {
    auto uffd = BareUffd::open(kernel::kUffdFeatureWpAsync);
    if (!uffd) return propagate(uffd);
    auto scan = BareScan::open();
    if (!scan) return propagate(scan);
    return std::make_shared<PteNone>(std::move(*uffd), std::move(*scan));
  }
  PteNone(BareUffd uffd, BareScan scan) : uffd_(std::move(uffd)), scan_(std::move(scan)) {}

  Result<Figures> turn(ZeroPages way, int percent) {
    const Pages pages(bench_bytes());
    if (pages.range().empty()) return system_failure("map memory", ENOMEM);
    if (auto r = uffd_.watch(pages.range()); !r) return propagate(r);
    auto figures = write_and_find(
        pages.range(), way, picker_.pick(pages.count() * static_cast<std::size_t>(percent) / 100));
    uffd_.unwatch(pages.range());
    return figures;
  }

 private:
  Result<Figures> write_and_find(ByteRange range, ZeroPages way,
                                 std::span<const std::uint32_t> pages) {
    Result<void> prepared;
    Result<std::size_t> found = std::size_t{0};
    const double preparing = seconds_of([&] { prepared = prepare(uffd_, range, way); });
    if (!prepared) return propagate(prepared);
    const double writing = seconds_of([&] { write_pages(range, pages); });
    const double scanning = seconds_of([&] { found = scan_.scan(range, {.write_protect = true}); });
    if (!found) return propagate(found);
    if (*found != pages.size()) return failure(ErrorCode::damaged, "other pages were found");
    const auto written = static_cast<double>(pages.size());
    const auto all = static_cast<double>(range.size / page_size());
    return Figures{{"pte_none", preparing + writing + scanning},
                   {"pte_none.prepare_ns", preparing / all * kNs},
                   {"pte_none.write_ns", writing / written * kNs},
                   {"pte_none.scan_ns", scanning / all * kNs}};
  }

  BareUffd uffd_;
  BareScan scan_;
  PagePicker picker_{bench_bytes() / page_size()};
};

Result<std::vector<Entrant>> pte_none_entrants(int percent) {
  auto made = PteNone::create();
  if (!made) return propagate(made);
  std::vector<Entrant> all;
  for (const auto& [name, way] : kZeroPages) {
    all.push_back({name, [test = *made, way = way, percent] { return test->turn(way, percent); }});
  }
  return all;
}

void register_pte_none_contests() {
  for (const int percent : kPercents) {
    const auto contest = Contest::create(5, [percent] { return pte_none_entrants(percent); });
    for (const auto& [name, way] : kZeroPages) {
      ContestRow row{.name = "pte_none/percent:" + std::to_string(percent) + "/" + name,
                     .entrant = name,
                     .time = "pte_none",
                     .reference = "none",
                     .label = "against no zero pages",
                     .unit = benchmark::kMicrosecond};
      if (way != ZeroPages::none) row.published = {{"lkml_ratio", 26.0355 / 39.203}};
      contest->add(std::move(row));
    }
  }
}

}  // namespace

void register_thread_2023_contests() {
  register_protect_contest();
  register_pte_none_contests();
}

}  // namespace pagetide::bench
