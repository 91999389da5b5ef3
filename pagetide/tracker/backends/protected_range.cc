#include "pagetide/tracker/backends/protected_range.h"

#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include "pagetide/base/bytes.h"
#include "pagetide/tracker/word_masks.h"

namespace pagetide {

namespace {

using StepWords = ProtectedRange::StepWords;

// Written by handlers, so never inside watched memory: see ProtectedRange.
std::atomic<std::int64_t> extra_mappings = 0;

// How much a handler opens, by how much of the budget is used up. Beyond the last line it opens
// the whole run of armed pages, which makes no new mapping.
struct Opening {
  std::size_t block_pages;
  std::size_t eighths;
};
constexpr std::array<Opening, 3> kOpenings = {{{1, 6}, {16, 7}, {512, 8}}};
// Takes stop arming runs that stand alone at half, so that handlers have room to be precise.
constexpr std::size_t kArmingEighths = 4;

// Calls visit(PageRange) for each run of set bits.
template <typename Visit>
void for_each_run(const StepWords& words, Visit&& visit) {
  const auto find = [&](std::size_t page, bool value) {
    while (page < ProtectedRange::kStepPages) {
      const std::uint64_t word =
          (value ? words.at(page / 64) : ~words.at(page / 64)) >> (page % 64);
      if (word != 0) return page + static_cast<std::size_t>(std::countr_zero(word));
      page = round_down(page, 64) + 64;
    }
    return ProtectedRange::kStepPages;
  };
  for (std::size_t first = find(0, true); first < ProtectedRange::kStepPages;) {
    const std::size_t end = find(first, false);
    visit(PageRange{first, end - first});
    first = find(end, true);
  }
}

}  // namespace

// --- the budget ---

bool MappingBudget::reserve_two(std::size_t limit) {
  if (extra_mappings.fetch_add(2) + 2 <= static_cast<std::int64_t>(limit)) return true;
  extra_mappings.fetch_sub(2);
  return false;
}

void MappingBudget::change(std::int64_t by) {
  extra_mappings.fetch_add(by);
}

std::size_t MappingBudget::used() {
  return static_cast<std::size_t>(std::max<std::int64_t>(0, extra_mappings.load()));
}

// --- bits ---

Result<ProtectedRange::SharedBits> ProtectedRange::SharedBits::create(std::size_t page_count) {
  auto words = VirtualArray<std::uint64_t>::create(divide_up(page_count, 64));
  if (!words) return propagate(words);
  return SharedBits(std::move(*words));
}

std::uint64_t ProtectedRange::SharedBits::word(std::size_t i) const {
  return ref(i).load(std::memory_order_acquire);
}

void ProtectedRange::SharedBits::set(PageRange pages) {
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) { add(i, mask); });
}

void ProtectedRange::SharedBits::reset(PageRange pages) {
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) { ref(i).fetch_and(~mask); });
}

// The first page in [page, end) whose bit is `value`; `end` when there is none.
std::size_t ProtectedRange::SharedBits::find(std::size_t page, std::size_t end, bool value) const {
  while (page < end) {
    const std::uint64_t bits = (value ? word(page / 64) : ~word(page / 64)) >> (page % 64);
    if (bits != 0) return std::min(end, page + static_cast<std::size_t>(std::countr_zero(bits)));
    page = round_down(page, 64) + 64;
  }
  return end;
}

PageRange ProtectedRange::SharedBits::first_run(PageRange pages) const {
  const std::size_t first = find(pages.first, pages.end(), true);
  return {first, find(first, pages.end(), false) - first};
}

PageRange ProtectedRange::SharedBits::run_around(std::size_t page, std::size_t page_count) const {
  std::size_t first = page;
  while (first > 0) {
    const std::size_t in_word = (first - 1) % 64 + 1;  // bits of its word that lie before `first`
    const auto set =
        static_cast<std::size_t>(std::countl_one(word((first - 1) / 64) << (64 - in_word)));
    first -= std::min(set, in_word);
    if (set < in_word) break;
  }
  return {first, find(page, page_count, false) - first};
}

// --- making and ending ---

bool ProtectedRange::has_any(const StepWords& words) {
  return std::any_of(words.begin(), words.end(), [](std::uint64_t word) { return word != 0; });
}

Result<std::unique_ptr<ProtectedRange>> ProtectedRange::create(ByteRange range,
                                                               std::size_t max_extra_mappings) {
  const std::size_t page_count = range.size / page_size();
  auto armed = SharedBits::create(page_count);
  if (!armed) return propagate(armed);
  auto written = SharedBits::create(page_count);
  if (!written) return propagate(written);
  auto shared = VirtualArray<Shared>::create(1);
  if (!shared) return propagate(shared);
  auto lock = HandlerLock::create();
  if (!lock) return propagate(lock);
  std::unique_ptr<ProtectedRange> made(new ProtectedRange(range, max_extra_mappings,
                                                          std::move(*armed), std::move(*written),
                                                          std::move(*shared), std::move(*lock)));
  auto faults = FaultWatch::add(SIGSEGV, range, on_fault, made.get());
  if (!faults) return propagate(faults);
  made->faults_ = std::move(*faults);
  return made;
}

ProtectedRange::ProtectedRange(ByteRange range, std::size_t max_extra_mappings, SharedBits armed,
                               SharedBits written, VirtualArray<Shared> shared, HandlerLock lock)
    : range_(range),
      page_count_(range.size / page_size()),
      max_extra_mappings_(max_extra_mappings),
      armed_(std::move(armed)),
      written_(std::move(written)),
      shared_(std::move(shared)),
      lock_(std::move(lock)) {}

ProtectedRange::~ProtectedRange() {
  disarm({0, page_count_});
  // What is still armed is memory that is gone, and its mappings with it.
  for (PageRange run = armed_.first_run({0, page_count_}); !run.empty();
       run = armed_.first_run({run.end(), page_count_ - run.end()})) {
    MappingBudget::change(mappings_when_disarmed(run));
    armed_.reset(run);
  }
}

// --- the handler ---

FaultAnswer ProtectedRange::on_fault(void* owner, const MemoryFault& fault) noexcept {
  // Nothing is mapped there (SEGV_MAPERR), or it is about something else than access rights.
  if (fault.code != SEGV_ACCERR) return {};
  auto& range = *static_cast<ProtectedRange*>(owner);
  return range.let_through((fault.address - range.range_.begin) / page_size());
}

FaultAnswer ProtectedRange::let_through(std::size_t page) {
  const std::lock_guard hold(lock_);
  Shared& shared = shared_[0];
  if (!armed_.test(page)) {
    count(shared.counts.faults_settled);
    return {FaultAnswer::Kind::settled, std::atomic_ref(shared.generation).load()};
  }
  return {open_around(page) ? FaultAnswer::Kind::resolved : FaultAnswer::Kind::not_mine};
}

bool ProtectedRange::open_around(std::size_t page) {
  for (const Opening& opening : kOpenings) {
    if (!MappingBudget::reserve_two(max_extra_mappings_ * opening.eighths / 8)) continue;
    const PageRange block{round_down(page, opening.block_pages), opening.block_pages};
    std::size_t opened = 0;
    const bool done = disarm_armed(block.intersect({0, page_count_}), opened);
    MappingBudget::change(-2);
    if (!done) break;
    note_opened(opened);
    return true;
  }
  // Over budget, or at the system's own limit: move no border into a mapping, remove two.
  const PageRange run = armed_.run_around(page, page_count_);
  if (!disarm_run(run)) return false;
  note_opened(run.count);
  return true;
}

void ProtectedRange::note_opened(std::size_t pages) {
  ProtectionCounts& counts = shared_[0].counts;
  count(counts.faults);
  if (pages <= 1) return;
  count(counts.coarse_faults);
  count(counts.surplus_pages, pages - 1);
}

// --- collecting ---

PageRange ProtectedRange::unknown(PageRange pages) const {
  std::size_t first = pages.end();
  std::size_t end = pages.first;
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    const std::uint64_t bits = ~(armed_.word(i) | written_.word(i)) & mask;
    if (bits == 0) return;
    first = std::min(first, i * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
    end = i * 64 + 64 - static_cast<std::size_t>(std::countl_zero(bits));
  });
  return first < end ? PageRange{first, end - first} : PageRange{};
}

std::size_t ProtectedRange::count_armed(PageRange pages) const {
  std::size_t count = 0;
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    count += static_cast<std::size_t>(std::popcount(armed_.word(i) & mask));
  });
  return count;
}

void ProtectedRange::note_written(PageRange pages) {
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    const std::uint64_t bits = ~(armed_.word(i) | written_.word(i)) & mask;
    if (bits != 0) written_.add(i, bits);
  });
}

ProtectedRange::StepWords ProtectedRange::written(PageRange pages) const {
  StepWords found{};
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    found.at(i % found.size()) = written_.word(i) & mask;
  });
  return found;
}

ProtectedRange::StepWords ProtectedRange::take_written(PageRange pages) {
  StepWords found = written(pages);
  if (!has_any(found)) return found;
  const BlockedSignals blocked;
  const std::lock_guard hold(lock_);
  // Again, now that no handler is half done.
  found = written(pages);
  arm(found, round_down(pages.first, kStepPages));
  return found;
}

ProtectedRange::StepWords ProtectedRange::arm_unknown(PageRange pages) {
  StepWords wanted{};
  for_each_word(pages, [&](std::size_t i, std::uint64_t mask) {
    wanted.at(i % wanted.size()) = ~(armed_.word(i) | written_.word(i)) & mask;
  });
  if (!has_any(wanted)) return wanted;
  const BlockedSignals blocked;
  const std::lock_guard hold(lock_);
  arm(wanted, round_down(pages.first, kStepPages));
  return wanted;
}

void ProtectedRange::disarm(PageRange pages) {
  const BlockedSignals blocked;
  const std::lock_guard hold(lock_);
  std::size_t disarmed = 0;
  (void)disarm_armed(pages, disarmed);
}

ProtectionCounts ProtectedRange::counts() const {
  ProtectionCounts& from = shared_[0].counts;
  const auto read = [](std::uint64_t& counter) { return std::atomic_ref(counter).load(); };
  return {read(from.faults), read(from.faults_settled), read(from.coarse_faults),
          read(from.surplus_pages), read(from.runs_left_unarmed)};
}

// --- under the lock ---

void ProtectedRange::arm(const StepWords& wanted, std::size_t step_first) {
  for_each_run(wanted, [&](PageRange run) {
    if (!arm_run({step_first + run.first, run.count})) count(shared_[0].counts.runs_left_unarmed);
  });
}

bool ProtectedRange::arm_run(PageRange run) {
  const int change = -mappings_when_disarmed(run);
  if (change > 0 && !MappingBudget::reserve_two(max_extra_mappings_ * kArmingEighths / 8)) {
    return false;
  }
  armed_.set(run);
  if (!protect(run, PROT_READ)) {
    // A part may be protected already.
    (void)protect(run, PROT_READ | PROT_WRITE);
    armed_.reset(run);
    if (change > 0) MappingBudget::change(-change);
    return false;
  }
  written_.reset(run);
  if (change < 0) MappingBudget::change(change);
  count(shared_[0].generation);
  return true;
}

// False when a part could not be disarmed; the others are.
bool ProtectedRange::disarm_armed(PageRange pages, std::size_t& disarmed) {
  bool all_done = true;
  for (PageRange run = armed_.first_run(pages); !run.empty();
       run = armed_.first_run({run.end(), pages.end() - run.end()})) {
    if (disarm_run(run)) {
      disarmed += run.count;
    } else {
      all_done = false;
    }
  }
  return all_done;
}

bool ProtectedRange::disarm_run(PageRange run) {
  written_.set(run);
  if (!protect(run, PROT_READ | PROT_WRITE)) return false;
  MappingBudget::change(mappings_when_disarmed(run));
  armed_.reset(run);
  return true;
}

// A border between armed and other memory is where one mapping ends and the next begins: how many
// more there are when this run, which is armed, is so no longer.
int ProtectedRange::mappings_when_disarmed(PageRange run) const {
  const bool before = run.first > 0 && is_armed(run.first - 1);
  return (before ? 1 : -1) + (is_armed(run.end()) ? 1 : -1);
}

bool ProtectedRange::protect(PageRange pages, int protection) const {
  const ByteRange bytes = pages.bytes_from(range_.begin);
  return ::mprotect(bytes.data(), bytes.size, protection) == 0;
}

void ProtectedRange::count(std::uint64_t& counter, std::uint64_t by) {
  std::atomic_ref(counter).fetch_add(by, std::memory_order_relaxed);
}

}  // namespace pagetide
