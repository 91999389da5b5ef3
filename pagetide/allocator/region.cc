#include "pagetide/allocator/region.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "pagetide/base/lock_rank.h"
#include "pagetide/base/syscalls.h"

namespace pagetide {

namespace {

using namespace literals;

// See Region. Probed in plain, ASan and TSan processes; under TSan only the small area works.
constexpr std::uintptr_t kSmallAreaBegin = 0x5500'0000'0000;
constexpr std::uintptr_t kSmallAreaEnd = 0x5555'0000'0000;
constexpr std::uintptr_t kLargeAreaBegin = 0x2000'0000'0000;
constexpr std::uintptr_t kLargeAreaEnd = 0x5000'0000'0000;
// Bases are multiples of this; also the step of the search.
constexpr std::size_t kBaseAlignment = 1_GiB;

// The regions of this process, to name them when one is in the way of another.
struct OwnRegions {
  std::mutex mutex;
  std::vector<ByteRange> ranges;
};
OwnRegions& own_regions() {
  static auto* const regions = new OwnRegions;  // outlives every arena of static life
  return *regions;
}

ByteRange own_region_in(ByteRange range) {
  const std::lock_guard lock(own_regions().mutex);
  for (const ByteRange& own : own_regions().ranges) {
    if (!own.intersect(range).empty()) return own;
  }
  return {};
}

// What occupies `range` according to /proc/self/maps; empty when that cannot be told.
std::string occupant_of(ByteRange range) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    std::istringstream fields(line);
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    char dash = 0;
    fields >> std::hex >> begin >> dash >> end;
    if (begin >= range.end() || end <= range.begin) continue;
    std::string permissions;
    std::string offset;
    std::string device;
    std::string inode;
    std::string name;
    fields >> permissions >> offset >> device >> inode;
    std::getline(fields >> std::ws, name);
    return fmt::format("{:#x}-{:#x} {}", begin, end, name.empty() ? "anonymous memory" : name);
  }
  return {};
}

Result<void> reserve_at(ByteRange range) {
  const int r = sys::reserve_address_range(range);
  if (r == 0) return {};
  if (r == -EEXIST) {
    if (const auto other = own_region_in(range); !other.empty()) {
      return failure(ErrorCode::address_taken,
                     fmt::format("cannot reserve {} bytes at {:#x}: another arena of this process "
                                 "is there ({:#x}-{:#x}). Destroy it first; where several arenas "
                                 "are used, open the stored ones before new ones are created, or "
                                 "give each a base of its own.",
                                 range.size, range.begin, other.begin, other.end()),
                     EEXIST);
    }
    const std::string occupant = occupant_of(range);
    return failure(
        ErrorCode::address_taken,
        fmt::format("cannot reserve {} bytes at {:#x}: the range is taken by {}. An arena only "
                    "works at its recorded base; free that range, open the arena earlier in "
                    "the program, or start the program with another mapping layout.",
                    range.size, range.begin, occupant.empty() ? "another mapping" : occupant),
        EEXIST);
  }
  return system_failure(
      fmt::format("reserve {} bytes of address space at {:#x}", range.size, range.begin), -r,
      "Check ulimit -v and the reservation's size.");
}

// The first free place in [begin, end); nullopt when there is none.
Result<std::optional<ByteRange>> reserve_within(std::uintptr_t begin, std::uintptr_t end,
                                                std::size_t size) {
  for (std::uintptr_t at = begin; at + size <= end; at += kBaseAlignment) {
    auto r = reserve_at({at, size});
    if (r) return std::optional<ByteRange>(ByteRange{at, size});
    if (r.error().code() != ErrorCode::address_taken) return propagate(r);
  }
  return std::optional<ByteRange>();
}

Result<ByteRange> choose_and_reserve(std::size_t size) {
  auto found = reserve_within(kSmallAreaBegin, kSmallAreaEnd, size);
  if (!found) return propagate(found);
  if (!*found) {
    found = reserve_within(kLargeAreaBegin, kLargeAreaEnd, size);
    if (!found) return propagate(found);
  }
  if (*found) return **found;
  return failure(
      ErrorCode::out_of_memory,
      fmt::format("no free address range of {} bytes; reserve less, or name a base.", size));
}

// Gives addresses back that have not found their owner: where memory runs out on the way.
class ReservedRange {
 public:
  explicit ReservedRange(ByteRange range) : range_(range) {}
  ReservedRange(const ReservedRange&) = delete;
  ReservedRange& operator=(const ReservedRange&) = delete;
  ~ReservedRange() {
    if (!owned_) sys::release_address_range(range_);
  }
  void set_owned() { owned_ = true; }

 private:
  ByteRange range_;
  bool owned_ = false;
};

}  // namespace

struct Region::Impl {
  Impl(ByteRange r, Tracker t, Prefill p) : range(r), tracker(std::move(t)), prefill(p) {
    const std::lock_guard lock(own_regions().mutex);
    own_regions().ranges.push_back(range);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    {
      const std::lock_guard lock(own_regions().mutex);
      std::erase(own_regions().ranges, range);
    }
    tracker.unwatch(watch);
    sys::release_address_range(range);
  }

  // Calls commit(ByteRange) for what of `wanted` is not committed yet, and remembers it.
  template <typename Commit>
  int commit_new(ByteRange wanted, Commit&& commit) {
    const RankedLock lock(commit_mutex);
    for (std::uintptr_t at = wanted.begin; at < wanted.end();) {
      // The committed range that reaches farthest back, or the gap before the next one.
      const auto next = std::find_if(committed.begin(), committed.end(),
                                     [&](const ByteRange& one) { return one.end() > at; });
      const bool inside = next != committed.end() && next->begin <= at;
      const std::uintptr_t end = inside                    ? next->end()
                                 : next == committed.end() ? wanted.end()
                                                           : std::min(wanted.end(), next->begin);
      if (!inside) {
        const ByteRange gap{at, end - at};
        if (const int r = commit(gap); r < 0) return r;
        if (next != committed.begin() && std::prev(next)->end() == at) {
          std::prev(next)->size += gap.size;
        } else {
          committed.insert(next, gap);
        }
      }
      at = end;
    }
    return 0;
  }

  ByteRange range;
  ByteRange tracked;
  Tracker tracker;
  Prefill prefill;
  WatchId watch;
  // Ascending and apart. What is committed is never committed again: where the tracker itself
  // works by page protection that would undo it.
  RankedMutex commit_mutex{LockRank::region, "region"};
  std::vector<ByteRange> committed;
};

Region::Region(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Region::Region(Region&&) noexcept = default;
Region& Region::operator=(Region&&) noexcept = default;
Region::~Region() = default;

Result<Region> Region::reserve(const RegionOptions& options) {
  const std::size_t size = round_up(options.reserve_bytes, page_size());
  if (size == 0 || size < options.reserve_bytes || options.base % page_size() != 0) {
    return failure(
        ErrorCode::invalid_argument,
        fmt::format("cannot reserve {} bytes at {:#x}: the size must not be 0 and the base must "
                    "be a multiple of the page size {}.",
                    options.reserve_bytes, options.base, page_size()));
  }
  if (options.tracked_from % page_size() != 0 || options.tracked_from >= size) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("cannot track from byte {} of {}: it must be a multiple of the page "
                               "size {}, inside the reservation.",
                               options.tracked_from, size, page_size()));
  }
  auto tracker = Tracker::create({.backend = options.backend, .hot_pages = options.hot_pages});
  if (!tracker) return propagate(tracker);
  ByteRange range{options.base, size};
  if (options.base != 0) {
    if (auto r = reserve_at(range); !r) return propagate(r);
  } else {
    auto chosen = choose_and_reserve(size);
    if (!chosen) return propagate(chosen);
    range = *chosen;
  }
  ReservedRange reserved(range);
  auto impl = std::make_unique<Impl>(range, std::move(*tracker), options.prefill);
  reserved.set_owned();
  impl->tracked = {range.begin + options.tracked_from, range.size - options.tracked_from};
  auto watch = impl->tracker.watch(impl->tracked);
  if (!watch) return propagate(watch);
  impl->watch = *watch;
  // Keeps an untouched reservation of any size out of core dumps.
  (void)sys::advise(range, MADV_DONTDUMP);
  return Region(std::move(impl));
}

ByteRange Region::range() const {
  return impl_->range;
}
ByteRange Region::tracked_range() const {
  return impl_->tracked;
}
Prefill Region::prefill_policy() const {
  return impl_->prefill;
}
Tracker& Region::tracker() const {
  return impl_->tracker;
}
WatchId Region::watch() const {
  return impl_->watch;
}

Result<void> Region::commit(ByteRange range) {
  const int r = impl_->commit_new(range, sys::protect_read_write);
  if (r < 0) {
    return system_failure(fmt::format("commit {} bytes of a region", range.size), -r,
                          "The machine is out of memory, or vm.overcommit_memory=2 forbids more.");
  }
  (void)sys::advise(range, MADV_DODUMP);
  return {};
}

Result<void> Region::prefill(ByteRange range) {
  if (range.empty()) return {};
  return impl_->tracker.prefill(range, impl_->prefill);
}

Result<void> Region::purge(ByteRange range) {
  if (range.empty()) return {};
  return impl_->tracker.purge(range);
}

}  // namespace pagetide
