#include "pagetide/tracker/backends/fault_recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/kernel/kernel_abi.h"
#include "pagetide/tracker/word_masks.h"

namespace pagetide {

namespace {

// mmap_lock is held for reading meanwhile: some milliseconds. A multiple of a huge page, so that
// none is cut in two.
constexpr std::size_t kMaxArmBytes = std::size_t{32} << 20;
// One page table.
constexpr std::size_t kMaxPrefillBytes = std::size_t{2} << 20;

// Calls visit(PageRange) for the runs of set bits within `pages`, until it gives an error.
template <typename Visit>
Result<void> for_each_run(const VirtualArray<std::uint64_t>& words, PageRange pages,
                          Visit&& visit) {
  PageRange run{pages.first, 0};
  Result<void> result;
  const auto add = [&](std::size_t first, std::size_t count) {
    if (run.end() == first) {
      run.count += count;
      return;
    }
    if (!run.empty() && result) result = visit(run);
    run = {first, count};
  };
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    std::uint64_t word = words[i] & mask;
    while (word != 0) {
      const int first = std::countr_zero(word);
      const int count = std::countr_one(word >> first);
      add(i * 64 + static_cast<std::size_t>(first), static_cast<std::size_t>(count));
      word &= count == 64 ? 0 : ~(~(~std::uint64_t{0} << count) << first);
    }
  });
  if (!run.empty() && result) result = visit(run);
  return result;
}

// Both only touch words that change: an untouched page of a table costs no memory.
void add_to(std::uint64_t& word, std::uint64_t bits) {
  if ((bits & ~word) != 0) word |= bits;
}
void remove_from(std::uint64_t& word, std::uint64_t bits) {
  if ((bits & word) != 0) word &= ~bits;
}

void add_to_set(DirtyBitmap& set, std::size_t i, std::uint64_t bits) {
  if (bits != 0) set.add_to_word(i, bits);
}

void mark_dirty(FaultGroup& group, std::uint64_t pages) {
  if (pages != 0) std::atomic_ref(group.dirty).fetch_or(pages);
}

// The features that were agreed on. A refused handshake may be tried again on the descriptor.
Result<std::uint64_t> agree(int uffd, std::uint64_t needed, std::uint64_t wished) {
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = needed | wished;
  int r = sys::ioctl(uffd, UFFDIO_API, &api);
  if (r == -EINVAL && wished != 0) {
    wished = 0;
    api = {};
    api.api = UFFD_API;
    api.features = needed;
    r = sys::ioctl(uffd, UFFDIO_API, &api);
  }
  if (r < 0 || (api.features & needed) != needed) {
    return failure(
        ErrorCode::unsupported,
        "this kernel's userfaultfd has no write protection for this back end; Linux 5.7 or "
        "newer with CONFIG_HAVE_ARCH_USERFAULTFD_WP is needed. BackendKind::compare works "
        "without it.",
        -r);
  }
  // Some kernels accept what they do not have.
  return needed | (wished & api.features);
}

}  // namespace

Result<std::unique_ptr<FaultRecorder>> FaultRecorder::create(UniqueFd uffd, std::uint64_t features,
                                                             FaultTable& table) {
  auto agreed = agree(uffd.get(), features | UFFD_FEATURE_PAGEFAULT_FLAG_WP,
                      kernel::kUffdFeatureWpUnpopulated);
  if (!agreed) return propagate(agreed);
  auto populated = PopulatedPages::open();
  if (!populated) return propagate(populated);
  auto mappings = MappingQuery::open();
  if (!mappings) return propagate(mappings);
  const bool makes_markers = (*agreed & kernel::kUffdFeatureWpUnpopulated) != 0;
  return std::unique_ptr<FaultRecorder>(new FaultRecorder(
      std::move(uffd), makes_markers, table, std::move(*populated), std::move(*mappings)));
}

FaultRecorder::FaultRecorder(UniqueFd uffd, bool makes_markers, FaultTable& table,
                             PopulatedPages populated, MappingQuery mappings)
    : uffd_(std::move(uffd)),
      table_(table),
      populated_(std::move(populated)),
      mappings_(std::move(mappings)),
      owner_(::getpid()),
      makes_markers_(makes_markers) {}

FaultRecorder::~FaultRecorder() {
  unwatch_all();
}

Result<void> FaultRecorder::check_owner() const {
  if (::getpid() == owner_) return {};
  return failure(ErrorCode::forked,
                 "this tracker was opened by the parent process; open a new one after fork().");
}

FaultRecorder::Watch* FaultRecorder::find(ByteRange whole) {
  const auto found = std::find_if(watches_.begin(), watches_.end(),
                                  [&](const auto& watch) { return watch->range == whole; });
  return found == watches_.end() ? nullptr : found->get();
}

// Calls apply(watch, part of `range` inside it).
template <typename Apply>
void FaultRecorder::for_each_watched(ByteRange range, Apply&& apply) {
  for (const auto& watch : watches_) {
    const ByteRange part = range.page_cover().intersect(watch->range);
    if (!part.empty()) apply(*watch, part);
  }
}

// --- watching ---

Result<void> FaultRecorder::watch(ByteRange range) {
  if (auto r = check_owner(); !r) return r;
  auto parts = mappings_.trackable_parts_of(range);
  if (!parts) return propagate(parts);
  const std::size_t words = divide_up(range.size / page_size(), 64);
  auto watch = std::make_unique<Watch>();
  watch->range = range;
  for (const MappedPart& part : *parts) {
    if (part.is_shared) watch->shared_parts.push_back(PageRange::covering(part.range, range));
  }
  auto groups = VirtualArray<FaultGroup>::create(words);
  if (!groups) return propagate(groups);
  watch->groups = std::move(*groups);
  for (Words* table : {&watch->armed, &watch->chosen}) {
    auto created = Words::create(words);
    if (!created) return propagate(created);
    *table = std::move(*created);
  }
  auto slot = table_.add(range, watch->groups.span(), uffd_.get());
  if (!slot) return propagate(slot);
  watch->slot = *slot;
  if (auto r = register_range(range); !r) {
    table_.remove(*slot);
    return r;
  }
  watches_.push_back(std::move(watch));
  return {};
}

Result<void> FaultRecorder::register_range(ByteRange range) {
  uffdio_register request{};
  request.range = {range.begin, range.size};
  request.mode = UFFDIO_REGISTER_MODE_WP;
  const int r = sys::ioctl(uffd_.get(), UFFDIO_REGISTER, &request);
  if (r == 0 && (request.ioctls & std::uint64_t{1} << _UFFDIO_WRITEPROTECT) != 0) return {};
  return system_failure(
      "register memory with userfaultfd", r == 0 ? EINVAL : -r,
      r == -EBUSY
          ? "Another userfaultfd of this process already watches a part of it; only one can."
          : "The range must be mapped in whole, by anonymous memory or memfd; mappings of "
            "other files can be tracked with BackendKind::uffd_async.");
}

// The order matters: while the memory is registered its slot must be found, and whoever waits for
// a fault is woken after it cannot fault again.
void FaultRecorder::end(Watch& watch) {
  uffdio_range request{watch.range.begin, watch.range.size};
  // Before closing, always: kernels before 6.8.10 leave protection bits behind on close.
  (void)sys::ioctl(uffd_.get(), UFFDIO_UNREGISTER, &request);
  // Unregistering wakes nobody who waits for a write-protect fault.
  (void)sys::ioctl(uffd_.get(), UFFDIO_WAKE, &request);
  table_.remove(watch.slot);
}

void FaultRecorder::unwatch(ByteRange range) {
  const auto found = std::find_if(watches_.begin(), watches_.end(),
                                  [&](const auto& watch) { return watch->range == range; });
  if (found == watches_.end()) return;
  if (check_owner()) end(**found);
  watches_.erase(found);
}

void FaultRecorder::unwatch_all() {
  while (is_watching()) unwatch(watches_.back()->range);
}

// --- collecting ---

Result<void> FaultRecorder::collect(ByteRange whole, ByteRange part, CollectMode mode,
                                    DirtyBitmap& written) {
  if (auto r = check_owner(); !r) return r;
  Watch* watch = find(whole);
  if (watch == nullptr) {
    return failure(ErrorCode::invalid_argument, "cannot collect: the range is not watched.");
  }
  const PageRange pages = PageRange::covering(part, whole);
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    FaultGroup& group = watch->groups[i];
    if (mode == CollectMode::peek) {
      add_to_set(written, i, std::atomic_ref(group.dirty).load() & mask);
      return;
    }
    const ConsumedFaults faults = consume_faults(group, mask);
    add_to_set(written, i, faults.pages);
    if (faults.may_protect) add_to(watch->chosen[i], faults.pages);
  });
  if (auto r = choose_populated(*watch, pages); !r) return finish_chosen(*watch, pages, r);
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    add_to_set(written, i, watch->chosen[i] & mask);
    if (mode == CollectMode::peek) remove_from(watch->chosen[i], mask);
  });
  return finish_chosen(*watch, pages, arm_chosen(*watch, pages));
}

// Adds the pages that are populated and not armed: written since the beginning, or since their
// purge. One that becomes populated later is not armed, so the next collect finds it.
Result<void> FaultRecorder::choose_populated(Watch& watch, PageRange pages) {
  const auto choose = [&](ByteRange run) {
    for_each_word(PageRange::covering(run, watch.range), [&](std::size_t i, std::uint64_t mask) {
      add_to(watch.chosen[i], mask & ~watch.armed[i]);
    });
  };
  Result<void> result;
  PageRange run{pages.first, 0};
  const auto look = [&] {
    if (run.empty() || !result) return;
    result = populated_.for_each(run.bytes_from(watch.range.begin), PageState::populated, choose);
  };
  // Words of which every page is armed are passed over.
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    if ((mask & ~watch.armed[i]) == 0) return;
    const std::size_t first = std::max(i * 64, pages.first);
    if (run.end() != first) {
      look();
      run = {first, 0};
    }
    run.count = std::min((i + 1) * 64, pages.end()) - run.first;
  });
  look();
  // The kernel drops page table entries of shared mappings whose pages live on, so an empty one may
  // hold a write. Once armed it leaves a marker.
  for (const PageRange& shared : watch.shared_parts) {
    for_each_word(shared.intersect(pages), [&](std::size_t i, std::uint64_t mask) {
      add_to(watch.chosen[i], mask & ~watch.armed[i]);
    });
  }
  return result;
}

Result<void> FaultRecorder::arm_chosen(Watch& watch, PageRange pages) {
  return for_each_run(watch.chosen, pages,
                      [&](PageRange run) { return arm(run.bytes_from(watch.range.begin)); });
}

// Ends an operation: the chosen pages are armed. After an error nobody knows which of them are,
// and none counts as armed: they are found populated again.
Result<void> FaultRecorder::finish_chosen(Watch& watch, PageRange pages, Result<void> result) {
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    const std::uint64_t chosen = watch.chosen[i] & mask;
    if (chosen == 0) return;
    if (result) {
      add_to(watch.armed[i], chosen);
    } else {
      remove_from(watch.armed[i], chosen);
    }
    watch.chosen[i] &= ~mask;
  });
  return result;
}

Result<void> FaultRecorder::arm(ByteRange range) {
  while (!range.empty()) {
    const std::uintptr_t step_end = round_down(range.begin + kMaxArmBytes, kMaxArmBytes);
    const ByteRange step{range.begin, std::min(step_end, range.end()) - range.begin};
    uffdio_writeprotect request{};
    request.range = {step.begin, step.size};
    request.mode = UFFDIO_WRITEPROTECT_MODE_WP;
    const int r = sys::ioctl(uffd_.get(), UFFDIO_WRITEPROTECT, &request);
    if (r == -ENOENT && step.size > page_size()) {
      // Kernels before 6.4 take no range of several mappings at once.
      const std::size_t half = round_up(step.size / 2, page_size());
      if (auto first = arm({step.begin, half}); !first) return first;
      if (auto second = arm({step.begin + half, step.size - half}); !second) return second;
    } else if (r < 0) {
      return system_failure(
          "write-protect tracked pages (UFFDIO_WRITEPROTECT)", -r,
          "The memory may have been unmapped or mapped anew; the range is taken as "
          "written in whole.");
    }
    range = {step.end(), range.end() - step.end()};
  }
  return {};
}

std::size_t FaultRecorder::count_armed(ByteRange whole, ByteRange part) {
  Watch* watch = find(whole);
  if (watch == nullptr) return 0;
  std::size_t count = 0;
  for_each_word(PageRange::covering(part, whole), [&](std::size_t i, std::uint64_t mask) {
    const std::uint64_t dirty = std::atomic_ref(watch->groups[i].dirty).load();
    count += static_cast<std::size_t>(std::popcount(watch->armed[i] & ~dirty & mask));
  });
  return count;
}

void FaultRecorder::purged(ByteRange range) {
  for_each_watched(range, [](Watch& watch, ByteRange part) {
    for_each_word(PageRange::covering(part, watch.range), [&](std::size_t i, std::uint64_t mask) {
      remove_from(watch.armed[i], mask);
      // A page that was written since is populated and no longer armed: that says it all.
      (void)consume_faults(watch.groups[i], mask);
    });
  });
}

// --- prefilling ---

Result<void> FaultRecorder::prefill(ByteRange range, Prefill policy) {
  if (policy == Prefill::none) return {};
  if (auto r = check_owner(); !r) return r;
  Result<void> result;
  for_each_watched(range, [&](Watch& watch, ByteRange part) {
    if (!result) return;
    result =
        policy == Prefill::marker ? prefill_markers(watch, part) : prefill_zero_pages(watch, part);
  });
  return result;
}

Result<void> FaultRecorder::prefill_zero_pages(Watch& watch, ByteRange part) {
  // Without it a page that somebody wrote before it was armed could not be told.
  if (!populated_.knows_zero_pages()) return {};
  const PageRange pages = PageRange::covering(part, watch.range);
  std::size_t step = kMaxPrefillBytes;
  std::uintptr_t at = part.begin;
  while (at < part.end()) {
    uffdio_zeropage request{};
    request.range = {at, std::min(step, part.end() - at)};
    const int r = sys::ioctl(uffd_.get(), UFFDIO_ZEROPAGE, &request);
    if (request.zeropage > 0) {
      const ByteRange mapped{at, static_cast<std::size_t>(request.zeropage)};
      set_bits(watch.chosen.span(), PageRange::covering(mapped, watch.range));
      at = mapped.end();
      step = kMaxPrefillBytes;
    } else if (r == -EEXIST) {
      at += page_size();  // populated already: stays as it is
    } else if (r == -ENOENT && request.range.len > page_size()) {
      // One call takes no range of two mappings: up to the border, in ever smaller steps.
      step = round_up(request.range.len / 2, page_size());
    } else if (r != -EAGAIN) {
      return finish_chosen(watch, pages,
                           system_failure("prefill with zero pages (UFFDIO_ZEROPAGE)", -r,
                                          "Prefill::none works without it."));
    }
  }
  return arm_untouched(watch, pages, PageState::not_zero);
}

Result<void> FaultRecorder::prefill_markers(Watch& watch, ByteRange part) {
  if (!makes_markers_) return {};
  const PageRange pages = PageRange::covering(part, watch.range);
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    add_to(watch.chosen[i], mask & ~watch.armed[i]);
  });
  const auto leave = [&](ByteRange run) {
    clear_bits(watch.chosen.span(), PageRange::covering(run, watch.range));
  };
  if (auto r = populated_.for_each(part, PageState::populated, leave); !r) {
    return finish_chosen(watch, pages, r);
  }
  // A marker looks like a page in swap. So a page that is written and swapped out in the middle
  // of this call would be missed: nobody does that to memory that is just being handed out.
  return arm_untouched(watch, pages, PageState::in_memory);
}

// Arms the chosen pages. One may have been written after it was chosen and before it was armed:
// what is `touched` by now, when no more write gets through unrecorded, counts as written.
Result<void> FaultRecorder::arm_untouched(Watch& watch, PageRange pages, PageState touched) {
  const auto check = [&](ByteRange run) {
    for_each_word(PageRange::covering(run, watch.range), [&](std::size_t i, std::uint64_t mask) {
      mark_dirty(watch.groups[i], watch.chosen[i] & mask);
    });
  };
  auto result = arm_chosen(watch, pages);
  if (result) {
    result = for_each_run(watch.chosen, pages, [&](PageRange run) {
      return populated_.for_each(run.bytes_from(watch.range.begin), touched, check);
    });
  }
  return finish_chosen(watch, pages, result);
}

}  // namespace pagetide
