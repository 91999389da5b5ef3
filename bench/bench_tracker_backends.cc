// What an epoch costs over populated memory, by back end, with fork() and reading
// /proc/self/pagemap beside them. Each has memory of its own. One turn:
//
//   arm          watch the memory and take, ns a page of it; fork(): the pause of the call
//   scan_clean   a take with nothing written, ns a page of the memory
//   first_write  to 10 % of the pages, scattered; ns a written page. dense_ns: to one quarter of
//                the memory, page by page
//   scan_sparse  a peek after the first of these, ns a page of the memory
//   take_sparse  a take, ns a written page; rearm_ns: what it takes longer than the peek
//   scan_dense   the same after the second, of that quarter alone
//   take_dense
//
// `reported` is the number of pages in a take: more than `written` where a back end reports
// coarsely (mprotect, to keep the number of mappings down). `compare` arms nothing, so its first
// write is that of untracked memory. A back end that cannot be had here has one row, of arm, which
// says why.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/bare_kernel.h"
#include "bench/bench_tracker.h"
#include "bench/contest.h"
#include "bench/forked_image.h"
#include "bench/support.h"
#include "bench/watched_pages.h"
#include "pagetide/tracker/backend_choice.h"

namespace pagetide::bench {

namespace {

constexpr std::array<BackendKind, 6> kBackends = {
    BackendKind::uffd_async, BackendKind::uffd_sigbus,   BackendKind::uffd_sync,
    BackendKind::soft_dirty, BackendKind::write_protect, BackendKind::compare};

// Populated memory and what is written to in one turn.
class Ground {
 public:
  static Result<std::shared_ptr<Ground>> create() {
    auto ground = std::make_shared<Ground>();
    if (ground->range().empty()) return system_failure("map memory", ENOMEM);
    // What is not fork()'s to copy must not be part of its time.
    if (::madvise(ground->range().data(), ground->range().size, MADV_DONTFORK) != 0) {
      return system_failure("keep memory from children (MADV_DONTFORK)", errno);
    }
    write_all_pages(ground->range());
    return ground;
  }
  Ground() : pages_(bench_bytes()), picker_(pages_.count()) {}

  const Pages& pages() const { return pages_; }
  ByteRange range() const { return pages_.range(); }
  ByteRange dense_part() const { return {range().begin, round_up(range().size / 4, page_size())}; }
  double page_count() const { return static_cast<double>(pages_.count()); }
  std::size_t sparse_count() const { return pages_.count() / 10; }
  std::size_t dense_count() const { return dense_part().size / page_size(); }

  // Each returns the seconds for a page.
  double write_sparse() {
    const auto pages = picker_.pick(sparse_count());
    return seconds_of([&] { write_pages(range(), pages); }) / static_cast<double>(pages.size());
  }
  double write_dense() const {
    const double seconds = seconds_of([&] { write_all_pages(dense_part()); });
    return seconds / static_cast<double>(dense_count());
  }

 private:
  Pages pages_;
  PagePicker picker_;
};

constexpr double kNs = 1e9;

// A peek and a take of `part`, where `written` pages were written.
Result<void> measure_collects(WatchedPages& watched, ByteRange part, std::size_t written,
                              const std::string& kind, Figures& figures) {
  const auto peek = watched.collect(part, CollectMode::peek, written);
  if (!peek) return failure(peek.error().code(), peek.error().message());
  const auto take = watched.collect(part, CollectMode::take, written);
  if (!take) return failure(take.error().code(), take.error().message());
  const auto pages = static_cast<double>(written);
  figures["scan_" + kind] = *peek / static_cast<double>(part.size / page_size());
  figures["take_" + kind] = *take / pages;
  figures["take_" + kind + ".rearm_ns"] = (*take - *peek) / pages * kNs;
  figures["take_" + kind + ".written"] = pages;
  figures["take_" + kind + ".reported"] = static_cast<double>(watched.collected().written.count());
  return {};
}

Result<Figures> track(Tracker& tracker, Ground& ground) {
  Figures figures;
  std::unique_ptr<WatchedPages> watched;
  const double tables = page_tables_kib();
  Result<void> failed;
  const double arming = seconds_of([&] {
    auto made = WatchedPages::create(tracker, ground.range());
    if (!made) {
      failed = propagate(made);
      return;
    }
    watched = std::move(*made);
    // Whether what was written before is reported is up to the back end.
    if (auto first = watched->collect(CollectMode::take, 0); !first) failed = propagate(first);
  });
  if (!failed) return propagate(failed);
  figures["arm"] = arming / ground.page_count();
  figures["arm.tables_KiB"] = page_tables_kib() - tables;
  auto clean = watched->collect(CollectMode::take, 0);
  if (!clean) return propagate(clean);
  figures["scan_clean"] = *clean / ground.page_count();

  figures["first_write"] = ground.write_sparse();
  auto sparse =
      measure_collects(*watched, ground.range(), ground.sparse_count(), "sparse", figures);
  if (!sparse) return propagate(sparse);
  figures["first_write.dense_ns"] = ground.write_dense() * kNs;
  auto dense =
      measure_collects(*watched, ground.dense_part(), ground.dense_count(), "dense", figures);
  if (!dense) return propagate(dense);
  return figures;
}

Result<Entrant> backend_entrant(BackendKind kind) {
  const std::string name(to_string(kind));
  if (auto usable = check_backend(kind); !usable) {
    return Entrant{name, [usable]() -> Result<Figures> {
                     return failure(usable.error().code(), usable.error().message());
                   }};
  }
  auto opened = Tracker::create({kind});
  if (!opened) return propagate(opened);
  auto ground = Ground::create();
  if (!ground) return propagate(ground);
  auto tracker = std::make_shared<Tracker>(std::move(*opened));
  return Entrant{name, [tracker, ground = *ground] { return track(*tracker, *ground); }};
}

// An image by fork(): no scan, but a pause for all of the memory and copies under the writer.
Result<Entrant> fork_entrant() {
  auto ground = Ground::create();
  if (!ground) return propagate(ground);
  if (::madvise((*ground)->range().data(), (*ground)->range().size, MADV_DOFORK) != 0) {
    return system_failure("give memory to children (MADV_DOFORK)", errno);
  }
  return Entrant{"fork", [ground = *ground]() -> Result<Figures> {
                   Figures figures;
                   const double tables = page_tables_kib();
                   auto image = ForkedImage::take();
                   if (!image) return propagate(image);
                   figures["arm"] = (*image)->seconds() / ground->page_count();
                   figures["arm.tables_KiB"] = page_tables_kib() - tables;
                   figures["first_write"] = ground->write_sparse();
                   image->reset();
                   image = ForkedImage::take();
                   if (!image) return propagate(image);
                   figures["first_write.dense_ns"] = ground->write_dense() * kNs;
                   return figures;
                 }};
}

// The same kernel mechanism as uffd_async, read as it was before PAGEMAP_SCAN.
class PagemapReader {
 public:
  static Result<std::shared_ptr<PagemapReader>> create() {
    auto uffd = BareUffd::open(kernel::kUffdFeatureWpAsync);
    if (!uffd) return propagate(uffd);
    auto pagemap = BarePagemap::open();
    if (!pagemap) return propagate(pagemap);
    auto ground = Ground::create();
    if (!ground) return propagate(ground);
    if (auto r = uffd->watch((*ground)->range()); !r) return propagate(r);
    return std::make_shared<PagemapReader>(std::move(*uffd), std::move(*pagemap), *ground);
  }
  PagemapReader(BareUffd uffd, BarePagemap pagemap, std::shared_ptr<Ground> ground)
      : uffd_(std::move(uffd)), pagemap_(std::move(pagemap)), ground_(std::move(ground)) {}
  PagemapReader(const PagemapReader&) = delete;
  PagemapReader& operator=(const PagemapReader&) = delete;
  ~PagemapReader() { uffd_.unwatch(ground_->range()); }

  Result<Figures> turn() {
    Figures figures;
    if (auto r = uffd_.protect(ground_->range()); !r) return propagate(r);
    if (auto r = read(ground_->range(), 0, "scan_clean", figures); !r) return propagate(r);
    (void)ground_->write_sparse();
    const std::size_t sparse = ground_->sparse_count();
    if (auto r = read(ground_->range(), sparse, "scan_sparse", figures); !r) return propagate(r);
    if (auto r = uffd_.protect(ground_->range()); !r) return propagate(r);
    (void)ground_->write_dense();
    const std::size_t dense = ground_->dense_count();
    if (auto r = read(ground_->dense_part(), dense, "scan_dense", figures); !r) {
      return propagate(r);
    }
    return figures;
  }

 private:
  Result<void> read(ByteRange part, std::size_t written, const std::string& name,
                    Figures& figures) {
    Result<std::size_t> found = std::size_t{0};
    const double seconds = seconds_of([&] { found = pagemap_.count_written(part); });
    if (!found) return propagate(found);
    if (*found != written) return failure(ErrorCode::damaged, "pagemap shows other pages");
    figures[name] = seconds / static_cast<double>(part.size / page_size());
    return {};
  }

  BareUffd uffd_;
  BarePagemap pagemap_;
  std::shared_ptr<Ground> ground_;
};

Result<Entrant> pagemap_entrant() {
  auto reader = PagemapReader::create();
  if (!reader) return propagate(reader);
  return Entrant{"read_pagemap", [reader = *reader] { return reader->turn(); }};
}

Result<std::vector<Entrant>> entrants() {
  std::vector<Entrant> all;
  for (const BackendKind kind : kBackends) {
    auto entrant = backend_entrant(kind);
    if (!entrant) return propagate(entrant);
    all.push_back(std::move(*entrant));
  }
  for (auto* make : {fork_entrant, pagemap_entrant}) {
    auto entrant = make();
    if (!entrant) return propagate(entrant);
    all.push_back(std::move(*entrant));
  }
  return all;
}

}  // namespace

void register_backend_contest() {
  const auto contest = Contest::create(4, entrants);
  const std::string best(to_string(BackendKind::uffd_async));
  const auto add = [&](const std::string& time, const std::string& entrant) {
    contest->add({.name = time + "/" + entrant,
                  .entrant = entrant,
                  .time = time,
                  .reference = best,
                  .label = "against " + best});
  };
  for (const char* time : {"arm", "first_write", "scan_clean", "scan_sparse", "scan_dense",
                           "take_sparse", "take_dense"}) {
    const std::string stage = time;
    for (const BackendKind kind : kBackends) {
      // One row says why it cannot be had here.
      if (stage == "arm" || check_backend(kind)) add(stage, std::string(to_string(kind)));
    }
    if (stage == "arm" || stage == "first_write") add(stage, "fork");
    if (stage.starts_with("scan_")) add(stage, "read_pagemap");
  }
}

}  // namespace pagetide::bench
