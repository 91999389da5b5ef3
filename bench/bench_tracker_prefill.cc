// Memory that nobody touched yet.
//
//   fresh/BACKEND/POLICY   the first writes to 10 % of the pages, scattered, ns a written page
//                          prefill_ns   preparing the memory, a page of it
//                          scan_ns      a take before anything is written, a page of it
//                          take_ns      the take after the writes, a written page
//                          tables_KiB   growth of the page tables by prefilling
//                          reported     pages in that take; written is what was written
//   zero_pages/WAY         mapping zero pages, ns a page; then the memory is armed, and write_ns
//                          is a first write to 10 % of them, scattered
//
// Each turn maps and watches memory anew: dropping the pages would leave the page tables behind.

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
#include "pagetide/tracker/backend_choice.h"

namespace pagetide::bench {

namespace {

constexpr double kNs = 1e9;
constexpr const char* kUntracked = "untracked";

constexpr std::array<BackendKind, 4> kBackends = {BackendKind::uffd_async, BackendKind::uffd_sigbus,
                                                  BackendKind::uffd_sync,
                                                  BackendKind::write_protect};
constexpr std::array<Prefill, 3> kPolicies = {Prefill::zero_page, Prefill::marker, Prefill::none};

std::string name_of(BackendKind kind, Prefill policy) {
  return std::string(to_string(kind)) + "/" + std::string(to_string(policy));
}

// A tenth of the pages. One picker for all of a contest: everybody writes as scattered.
double write_a_tenth(PagePicker& picker, const Pages& pages) {
  const auto chosen = picker.pick(pages.count() / 10);
  const double seconds = seconds_of([&] { write_pages(pages.range(), chosen); });
  return seconds / static_cast<double>(chosen.size());
}

Result<Figures> use_fresh_memory(Tracker& tracker, Prefill policy, PagePicker& picker) {
  const Pages pages(bench_bytes());
  auto watched = WatchedPages::create(tracker, pages.range());
  if (!watched) return propagate(watched);
  const auto count = static_cast<double>(pages.count());
  const double tables = page_tables_kib();
  Result<void> r;
  const double prefilling = seconds_of([&] { r = tracker.prefill(pages.range(), policy); });
  if (!r) return propagate(r);
  Figures figures;
  figures["fresh.prefill_ns"] = prefilling / count * kNs;
  figures["fresh.tables_KiB"] = page_tables_kib() - tables;
  auto scan = (*watched)->collect(CollectMode::take, 0);
  if (!scan) return propagate(scan);
  figures["fresh.scan_ns"] = *scan / count * kNs;
  figures["fresh"] = write_a_tenth(picker, pages);
  const std::size_t written = pages.count() / 10;
  auto take = (*watched)->collect(CollectMode::take, written);
  if (!take) return propagate(take);
  figures["fresh.take_ns"] = *take / static_cast<double>(written) * kNs;
  figures["fresh.written"] = static_cast<double>(written);
  figures["fresh.reported"] = static_cast<double>((*watched)->collected().written.count());
  return figures;
}

Result<std::vector<Entrant>> fresh_entrants() {
  const auto picker = std::make_shared<PagePicker>(bench_bytes() / page_size());
  std::vector<Entrant> all;
  all.push_back({kUntracked, [picker]() -> Result<Figures> {
                   const Pages pages(bench_bytes());
                   if (pages.range().empty()) return system_failure("map memory", ENOMEM);
                   return Figures{{"fresh", write_a_tenth(*picker, pages)}};
                 }});
  for (const BackendKind kind : kBackends) {
    auto opened = Tracker::create({kind});
    if (!opened) {
      const auto refuse = [error = opened.error()]() -> Result<Figures> {
        return failure(error.code(), error.message());
      };
      for (const Prefill policy : kPolicies) all.push_back({name_of(kind, policy), refuse});
      continue;
    }
    const auto tracker = std::make_shared<Tracker>(std::move(*opened));
    for (const Prefill policy : kPolicies) {
      all.push_back({name_of(kind, policy), [tracker, policy, picker] {
                       return use_fresh_memory(*tracker, policy, *picker);
                     }});
    }
  }
  return all;
}

void register_fresh_contest() {
  const auto contest = Contest::create(4, fresh_entrants);
  const auto add = [&](const std::string& entrant) {
    contest->add({.name = "fresh/" + entrant,
                  .entrant = entrant,
                  .time = "fresh",
                  .reference = kUntracked,
                  .label = "against a first write to untracked memory"});
  };
  add(kUntracked);
  for (const BackendKind kind : kBackends) {
    for (const Prefill policy : kPolicies) add(name_of(kind, policy));
  }
}

enum class ZeroPages : std::uint8_t { uffdio_zeropage, populate_read, populate_read_huge };

Result<Figures> map_zero_pages(BareUffd& uffd, ZeroPages way, PagePicker& picker) {
  const Pages pages(bench_bytes());
  if (pages.range().empty()) return system_failure("map memory", ENOMEM);
  const ByteRange range = pages.range();
  if (way == ZeroPages::populate_read_huge &&
      ::madvise(range.data(), range.size, MADV_HUGEPAGE) != 0) {
    return system_failure("ask for huge pages", errno);
  }
  if (auto r = uffd.watch(range); !r) return propagate(r);
  const double tables = page_tables_kib();
  Result<void> r;
  const double seconds = seconds_of([&] {
    r = way == ZeroPages::uffdio_zeropage ? uffd.map_zero_pages(range) : populate_by_reading(range);
  });
  if (!r) return propagate(r);
  Figures figures;
  figures["zero_pages"] = seconds / static_cast<double>(pages.count());
  figures["zero_pages.tables_KiB"] = page_tables_kib() - tables;
  if (auto armed = uffd.protect(range); !armed) return propagate(armed);
  figures["zero_pages.write_ns"] = write_a_tenth(picker, pages) * kNs;
  uffd.unwatch(range);
  return figures;
}

Result<std::vector<Entrant>> zero_page_entrants() {
  auto opened = BareUffd::open(kernel::kUffdFeatureWpAsync);
  if (!opened) return propagate(opened);
  const auto uffd = std::make_shared<BareUffd>(std::move(*opened));
  const auto picker = std::make_shared<PagePicker>(bench_bytes() / page_size());
  std::vector<Entrant> all;
  for (const auto& [name, way] : {std::pair{"uffdio_zeropage", ZeroPages::uffdio_zeropage},
                                  {"populate_read", ZeroPages::populate_read},
                                  {"populate_read_huge", ZeroPages::populate_read_huge}}) {
    all.push_back(
        {name, [uffd, way = way, picker] { return map_zero_pages(*uffd, way, *picker); }});
  }
  return all;
}

void register_zero_page_contest() {
  const auto contest = Contest::create(5, zero_page_entrants);
  for (const char* entrant : {"uffdio_zeropage", "populate_read", "populate_read_huge"}) {
    contest->add({.name = std::string("zero_pages/") + entrant,
                  .entrant = entrant,
                  .time = "zero_pages",
                  .reference = "populate_read",
                  .label = "against MADV_POPULATE_READ of base pages"});
  }
}

}  // namespace

void register_prefill_contests() {
  register_fresh_contest();
  register_zero_page_contest();
}

}  // namespace pagetide::bench
