#include "pagetide/snapshot/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "pagetide/snapshot/store_impl.h"

namespace pagetide {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;

// A payload page, as page maps name it.
using BadPage = std::pair<std::uint32_t, std::uint32_t>;

class Verifier {
 public:
  Verifier(Store::Impl& store, const Progress& progress, VirtualArray<std::byte> buffer)
      : store_(store),
        progress_(progress),
        segments_(store.segments()),
        buffer_(std::move(buffer)) {}

  VerifyReport run() {
    count_pages();
    for (std::uint64_t id = 1; id < store_.root.next_id; ++id) check_snapshot(id);
    for (std::uint64_t id = 1; id < store_.root.next_id; ++id) check_image(id);
    return std::move(report_);
  }

 private:
  void problem(Error error) { report_.problems.push_back(std::move(error)); }
  void problem(std::string text) { problem(Error(ErrorCode::damaged, std::move(text))); }

  // For progress alone: unreadable headers count as nothing.
  void count_pages() {
    for (std::uint64_t id = 1; id < store_.root.next_id; ++id) {
      if (auto header = store_.read_header(id)) total_pages_ += header->segment_pages;
    }
  }

  void check_snapshot(std::uint64_t id) {
    ++report_.snapshots;
    auto manifest = store_.read_manifest(id);
    if (!manifest) {
      problem(std::move(manifest).error().with_context(fmt::format("snapshot {}", id)));
      return;
    }
    const format::ManifestHeader& h = manifest->header;
    if (h.parent >= id) problem(fmt::format("snapshot {} names {} as its parent.", id, h.parent));
    if (h.segment_pages > 0) check_segment(*manifest);
  }

  // Reads the pages that a snapshot brought, page by page where something is wrong.
  void check_segment(const format::Manifest& manifest) {
    const std::uint64_t id = manifest.header.id;
    auto pages = segments_.check(id);
    if (!pages) {
      bad_segments_.insert(static_cast<std::uint32_t>(id));
      return problem(std::move(pages).error().with_context(fmt::format("snapshot {}", id)));
    }
    if (*pages > manifest.header.segment_pages) {
      problem(fmt::format("snapshot {}: {} holds {} pages, its manifest says {}.", id,
                          store_.file(format::segment_name(id)), *pages,
                          manifest.header.segment_pages));
    }
    std::size_t hash = 0;
    for (const format::Extent& extent : manifest.delta) {
      if (extent.kind != format::ExtentKind::data) continue;
      check_extent(extent, &manifest.delta_hashes[hash]);
      hash += extent.page_count;
      if (progress_) progress_(report_.pages, total_pages_);
    }
  }

  void check_extent(const format::Extent& extent, const Hash128* hashes) {
    const std::size_t step = buffer_.size() / page_size();
    for (std::uint32_t done = 0; done < extent.page_count;) {
      format::Extent part = extent;
      part.first_page += done;
      part.segment_page += done;
      part.page_count =
          static_cast<std::uint32_t>(std::min<std::size_t>(step, extent.page_count - done));
      const Hash128* expected = hashes + done;
      auto r = segments_.read(part, buffer(),
                              [&](std::size_t i) -> const Hash128& { return expected[i]; });
      if (!r && part.page_count > 1) {
        check_pages(part, expected);
      } else if (!r) {
        bad_page(part, std::move(r).error());
      }
      report_.pages += part.page_count;
      report_.bytes += part.page_count * page_size();
      done += part.page_count;
    }
  }

  void check_pages(format::Extent part, const Hash128* expected) {
    for (std::uint32_t i = 0; i < part.page_count; ++i) {
      const format::Extent one{part.first_page + i, 1, part.kind, part.segment,
                               part.segment_page + i};
      auto r =
          segments_.read(one, buffer(), [&](std::size_t) -> const Hash128& { return expected[i]; });
      if (!r) bad_page(one, std::move(r).error());
    }
  }

  void bad_page(const format::Extent& page, Error error) {
    bad_pages_.insert(
        {static_cast<std::uint32_t>(page.segment), static_cast<std::uint32_t>(page.segment_page)});
    problem(std::move(error).with_context(
        fmt::format("snapshot {}, page {} of the region", page.segment, page.first_page)));
  }

  // Whether the snapshot as a whole can be put together.
  void check_image(std::uint64_t id) {
    auto image = store_.resolve(id);
    if (!image) {
      // Its own manifest was reported above; a parent's too, under the parent's id.
      report_.unusable.push_back({id});
      return;
    }
    check_full_index(id, *image);
    bool usable = true;
    image->pages.for_each_extent([&](const format::Extent& extent) {
      const auto segment = static_cast<std::uint32_t>(extent.segment);
      const auto first = static_cast<std::uint32_t>(extent.segment_page);
      const auto bad = bad_pages_.lower_bound({segment, first});
      const bool hit = bad != bad_pages_.end() && bad->first == segment &&
                       bad->second < first + extent.page_count;
      if (hit || bad_segments_.contains(segment)) usable = false;
    });
    if (!usable) report_.unusable.push_back({id});
  }

  // A full index must say what the parent chain says.
  void check_full_index(std::uint64_t id, const SnapshotImage& image) {
    auto manifest = store_.read_manifest(id);
    if (!manifest || !manifest->has_full_index() || manifest->header.parent == 0) return;
    auto chain = store_.resolve(manifest->header.parent);
    if (!chain) return;  // reported under the parent's id; the full index stands alone
    chain->apply_delta(*manifest);
    if (!(chain->heap == image.heap)) {
      problem(fmt::format(
          "snapshot {}: its full index and its parent disagree about the heap's metadata.", id));
    }
    for (std::size_t page = 0; page < std::max(image.pages.end(), chain->pages.end()); ++page) {
      if (image.pages.same_content(chain->pages, page)) continue;
      problem(fmt::format("snapshot {}: its full index and its parent disagree about page {}.", id,
                          page));
      return;
    }
  }

  std::byte* buffer() { return buffer_.span().data(); }

  Store::Impl& store_;
  const Progress& progress_;
  SegmentReader segments_;
  VerifyReport report_;
  VirtualArray<std::byte> buffer_;
  std::uint64_t total_pages_ = 0;
  std::set<BadPage> bad_pages_;
  std::set<std::uint32_t> bad_segments_;
};

}  // namespace

Result<VerifyReport> verify(Store& store, const Progress& progress) {
  if (!store.impl().writable()) {
    if (auto r = store.impl().read_root(); !r) return propagate(r);
  }
  auto buffer = VirtualArray<std::byte>::create(std::max(kBufferBytes, page_size()));
  if (!buffer) return propagate(buffer);
  return Verifier(store.impl(), progress, std::move(*buffer)).run();
}

}  // namespace pagetide
