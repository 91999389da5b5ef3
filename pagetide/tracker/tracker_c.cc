#include "pagetide/tracker/tracker_c.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "pagetide/base/bytes.h"
#include "pagetide/tracker/backend_choice.h"
#include "pagetide/tracker/tracker.h"

namespace {

using pagetide::BackendKind;
using pagetide::ByteRange;
using pagetide::Collected;
using pagetide::CollectMode;
using pagetide::ConsumerId;
using pagetide::DirtyBitmap;
using pagetide::ErrorCode;
using pagetide::failure;
using pagetide::page_size;
using pagetide::PageRange;
using pagetide::Prefill;
using pagetide::propagate;
using pagetide::Result;
using pagetide::Tracker;
using pagetide::TrackerOptions;
using pagetide::TrackerStats;
using pagetide::WatchId;

// --- Enumerators: what each number of C stands for ---

template <typename T>
struct Meaning {
  int number;
  T value;
};

constexpr std::array<Meaning<ErrorCode>, 15> kErrors = {{
    {PAGETIDE_INVALID_ARGUMENT, ErrorCode::invalid_argument},
    {PAGETIDE_OUT_OF_MEMORY, ErrorCode::out_of_memory},
    {PAGETIDE_ADDRESS_TAKEN, ErrorCode::address_taken},
    {PAGETIDE_UNSUPPORTED, ErrorCode::unsupported},
    {PAGETIDE_PERMISSION_DENIED, ErrorCode::permission_denied},
    {PAGETIDE_SYSTEM_FAILURE, ErrorCode::system_failure},
    {PAGETIDE_NOT_FOUND, ErrorCode::not_found},
    {PAGETIDE_ALREADY_EXISTS, ErrorCode::already_exists},
    {PAGETIDE_BUSY, ErrorCode::busy},
    {PAGETIDE_NOT_A_STORE, ErrorCode::not_a_store},
    {PAGETIDE_VERSION_TOO_NEW, ErrorCode::version_too_new},
    {PAGETIDE_DAMAGED, ErrorCode::damaged},
    {PAGETIDE_NO_SPACE, ErrorCode::no_space},
    {PAGETIDE_IDENTITY_MISMATCH, ErrorCode::identity_mismatch},
    {PAGETIDE_FORKED, ErrorCode::forked},
}};
static_assert(kErrors.size() == static_cast<std::size_t>(ErrorCode::forked) + 1);

constexpr std::array<Meaning<BackendKind>, 7> kBackends = {{
    {PAGETIDE_BACKEND_AUTO, BackendKind::automatic},
    {PAGETIDE_BACKEND_UFFD_ASYNC, BackendKind::uffd_async},
    {PAGETIDE_BACKEND_UFFD_SIGBUS, BackendKind::uffd_sigbus},
    {PAGETIDE_BACKEND_UFFD_SYNC, BackendKind::uffd_sync},
    {PAGETIDE_BACKEND_SOFT_DIRTY, BackendKind::soft_dirty},
    {PAGETIDE_BACKEND_MPROTECT, BackendKind::write_protect},
    {PAGETIDE_BACKEND_COMPARE, BackendKind::compare},
}};
static_assert(kBackends.size() == static_cast<std::size_t>(BackendKind::compare) + 1);

constexpr std::array<Meaning<Prefill>, 4> kPrefills = {{
    {PAGETIDE_PREFILL_AUTO, Prefill::automatic},
    {PAGETIDE_PREFILL_ZERO_PAGE, Prefill::zero_page},
    {PAGETIDE_PREFILL_MARKER, Prefill::marker},
    {PAGETIDE_PREFILL_NONE, Prefill::none},
}};
static_assert(kPrefills.size() == static_cast<std::size_t>(Prefill::none) + 1);

constexpr std::array<Meaning<CollectMode>, 2> kCollectModes = {{
    {PAGETIDE_TAKE, CollectMode::take},
    {PAGETIDE_PEEK, CollectMode::peek},
}};

constexpr std::array<Meaning<DirtyBitmap Collected::*>, 2> kPageSets = {{
    {PAGETIDE_WRITTEN, &Collected::written},
    {PAGETIDE_ZEROED, &Collected::zeroed},
}};

// C passes any number as an enumerator.
template <typename T, std::size_t count>
Result<T> meaning_of(int number, const std::array<Meaning<T>, count>& table,
                     std::string_view type) {
  for (const Meaning<T>& meaning : table) {
    if (meaning.number == number) return meaning.value;
  }
  return failure(ErrorCode::invalid_argument, fmt::format("{} is not a {}.", number, type));
}

template <typename T, std::size_t count>
int number_of(T value, const std::array<Meaning<T>, count>& table) {
  return std::find_if(table.begin(), table.end(),
                      [&](const Meaning<T>& meaning) { return meaning.value == value; })
      ->number;
}

// The names that to_string() gives are literals, so they end with a zero byte.
template <typename T, std::size_t count>
const char* name_of(int number, const std::array<Meaning<T>, count>& table) {
  for (const Meaning<T>& meaning : table) {
    if (meaning.number == number) return to_string(meaning.value).data();
  }
  return "unknown";
}

// --- Errors ---

struct LastError {
  std::array<char, 1024> message;  // ends with a zero byte
  int system_errno;
};
constinit thread_local LastError last_error{};

// Allocates nothing: it also says that there is no memory.
int fail(ErrorCode code, std::string_view message, int system_errno = 0) noexcept {
  const std::size_t length = std::min(message.size(), last_error.message.size() - 1);
  std::copy_n(message.begin(), length, last_error.message.begin());
  last_error.message.at(length) = '\0';
  last_error.system_errno = system_errno;
  return number_of(code, kErrors);
}

// A program that calls us between its own system call and its look at errno must not notice.
class KeptErrno {
 public:
  KeptErrno() = default;
  KeptErrno(const KeptErrno&) = delete;
  KeptErrno& operator=(const KeptErrno&) = delete;
  ~KeptErrno() { errno = value_; }

 private:
  int value_ = errno;
};

// A pointer without which a call cannot be done.
struct Required {
  const void* pointer;
  const char* name;
};

int fail_for_null(const char* name) noexcept {
  std::array<char, 80> message{};
  (void)std::snprintf(message.data(), message.size(), "%s must not be a null pointer.", name);
  return fail(ErrorCode::invalid_argument, message.data());
}

// Everything that C calls runs in here: checks its pointers, makes a number of its Result and an
// error of what it throws.
template <typename Answer = int, typename Call>
Answer at_border(std::initializer_list<Required> required, Call&& call) noexcept {
  const KeptErrno kept_errno;
  for (const Required& argument : required) {
    if (argument.pointer == nullptr) return fail_for_null(argument.name);
  }
  try {
    auto result = call();
    if (!result) {
      return fail(result.error().code(), result.error().message(), result.error().system_errno());
    }
    if constexpr (std::is_void_v<typename decltype(result)::value_type>) {
      return PAGETIDE_OK;
    } else {
      return static_cast<Answer>(*result);
    }
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::out_of_memory, "the program is out of memory.", ENOMEM);
  } catch (const std::exception& thrown) {
    return fail(ErrorCode::system_failure, thrown.what());
  }
}

// --- Arguments ---

Result<ByteRange> range_of(const void* address, std::size_t size) {
  const ByteRange range = ByteRange::of(address, size);
  if (range.end() >= range.begin) return range;
  return failure(ErrorCode::invalid_argument,
                 fmt::format("{} bytes at {} reach beyond the end of memory.", size, address));
}

// A struct whose first member is its size: what its caller may know of it.
Result<std::size_t> checked_size(std::size_t size, std::string_view type) {
  // Far above what any version will have; more is a member that was never set.
  constexpr std::size_t kMostBytes = 1024;
  if (size >= sizeof(size) && size <= kMostBytes) return size;
  return failure(
      ErrorCode::invalid_argument,
      fmt::format("the size of a {0} cannot be {1}; set it to sizeof({0}).", type, size));
}

pagetide_tracker_options default_options(std::size_t size) {
  const TrackerOptions options;
  return {size,
          PAGETIDE_BACKEND_AUTO,
          options.never_syscall_target ? 1 : 0,
          options.writers_held_in_takes ? 1 : 0,
          options.hot_pages.enabled ? 1 : 0,
          options.hot_pages.stale_page_ns,
          options.hot_pages.fault_ns,
          options.hot_pages.ioctl_ns,
          options.hot_pages.relearn_takes,
          options.settings.handler_threads,
          options.settings.max_extra_mappings};
}

// The part of `given` that this library knows, over the defaults.
Result<pagetide_tracker_options> known_options(const pagetide_tracker_options& given) {
  auto size = checked_size(given.size, "pagetide_tracker_options");
  if (!size) return propagate(size);
  pagetide_tracker_options known = default_options(sizeof known);
  std::memcpy(&known, &given, std::min(*size, sizeof known));
  const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
  for (std::size_t at = sizeof known; at < *size; ++at) {
    if (bytes[at] == 0) continue;
    return failure(ErrorCode::unsupported,
                   "the tracker's options set something that this version of Pagetide does not "
                   "have; the program was compiled for a newer one.");
  }
  return known;
}

Result<TrackerOptions> tracker_options(const pagetide_tracker_options* given) {
  if (given == nullptr) return TrackerOptions{};
  auto known = known_options(*given);
  if (!known) return propagate(known);
  auto backend = meaning_of(known->backend, kBackends, "pagetide_backend");
  if (!backend) return propagate(backend);
  // For every back end, so that the mistake does not wait for a machine where AUTO takes uffd_sync.
  if (known->sync_handler_threads == 0) {
    return failure(ErrorCode::invalid_argument,
                   "the option sync_handler_threads must be at least 1; "
                   "pagetide_tracker_options_init() sets it to 1.");
  }
  return TrackerOptions{.backend = *backend,
                        .never_syscall_target = known->never_syscall_target != 0,
                        .writers_held_in_takes = known->writers_held_in_takes != 0,
                        .hot_pages = {.enabled = known->adapt_to_hot_pages != 0,
                                      .stale_page_ns = known->hot_stale_page_ns,
                                      .fault_ns = known->hot_fault_ns,
                                      .ioctl_ns = known->hot_ioctl_ns,
                                      .relearn_takes = known->hot_relearn_takes},
                        .settings = {.handler_threads = known->sync_handler_threads,
                                     .max_extra_mappings = known->mprotect_max_extra_mappings}};
}

// --- Watched ranges ---

// 0 is kept for "no watch", which is what forgotten C variables hold.
pagetide_watch_id to_c(WatchId id) {
  return id.value + 1;
}
WatchId from_c(pagetide_watch_id id) {
  return WatchId{id - 1};
}

// Fails when `watch` has fewer pages than are given.
Result<void> check_pages(const Tracker& tracker, pagetide_watch_id watch, std::size_t page_count) {
  auto range = tracker.range(from_c(watch));
  if (!range) return propagate(range);
  const std::size_t pages = range->size / page_size();
  if (page_count <= pages) return {};
  return failure(ErrorCode::invalid_argument,
                 fmt::format("the watched range has {} pages, {} were given; are they of another "
                             "watch?",
                             pages, page_count));
}

}  // namespace

// --- Handles ---

struct pagetide_tracker {  // NOLINT(readability-identifier-naming)
  explicit pagetide_tracker(Tracker t) : tracker(std::move(t)) {}
  Tracker tracker;
};

struct pagetide_collected {  // NOLINT(readability-identifier-naming)
  Collected value;
  std::vector<ByteRange> parts;  // of the latest collect; kept for its memory
};

namespace {

int collect_whole(pagetide_tracker* tracker, pagetide_watch_id watch, pagetide_consumer_id consumer,
                  CollectMode mode, pagetide_collected* collected) {
  return at_border({{tracker, "tracker"}, {collected, "collected"}}, [&]() -> Result<void> {
    return tracker->tracker.collect_into(from_c(watch), mode, collected->value,
                                         ConsumerId{consumer});
  });
}

// Calls use(a Tracker, a ByteRange), which returns Result<void>, for a range in memory.
template <typename Use>
int with_range(pagetide_tracker* tracker, const void* address, std::size_t size, Use&& use) {
  return at_border({{tracker, "tracker"}, {address, "address"}}, [&]() -> Result<void> {
    auto range = range_of(address, size);
    if (!range) return propagate(range);
    return use(tracker->tracker, *range);
  });
}

// Calls use(a DirtyBitmap), which returns a number or a Result, for one of the two sets.
template <typename Answer, typename Use>
Answer with_set(const pagetide_collected* collected, int set, Required other, Use&& use) {
  return at_border<Answer>({{collected, "collected"}, other}, [&]() -> Result<Answer> {
    auto member = meaning_of(set, kPageSets, "pagetide_page_set");
    if (!member) return propagate(member);
    return use(collected->value.**member);
  });
}

}  // namespace

// --- Errors, back ends ---

const char* pagetide_error_name(int error) {
  return error >= 0 ? "ok" : name_of(error, kErrors);
}

const char* pagetide_last_error_message(void) {
  return last_error.message.data();
}

int pagetide_last_errno(void) {
  return last_error.system_errno;
}

const char* pagetide_backend_name(int backend) {
  return name_of(backend, kBackends);
}

const char* pagetide_prefill_name(int policy) {
  return name_of(policy, kPrefills);
}

int pagetide_check_backend(int backend) {
  return at_border({}, [&]() -> Result<void> {
    auto kind = meaning_of(backend, kBackends, "pagetide_backend");
    if (!kind) return propagate(kind);
    if (*kind == BackendKind::automatic) {
      return failure(ErrorCode::invalid_argument,
                     "PAGETIDE_BACKEND_AUTO is not one back end, so it cannot be checked; "
                     "pagetide_tracker_create() finds the best one that works.");
    }
    return pagetide::check_backend(*kind);
  });
}

size_t pagetide_page_size(void) {
  return page_size();
}

// --- A tracker ---

int pagetide_tracker_options_init(pagetide_tracker_options* options, size_t size) {
  return at_border({{options, "options"}}, [&]() -> Result<void> {
    auto checked = checked_size(size, "pagetide_tracker_options");
    if (!checked) return propagate(checked);
    const pagetide_tracker_options defaults = default_options(size);
    std::memset(static_cast<void*>(options), 0, size);
    std::memcpy(static_cast<void*>(options), &defaults, std::min(size, sizeof defaults));
    return {};
  });
}

int pagetide_tracker_create(const pagetide_tracker_options* options, pagetide_tracker** tracker) {
  return at_border({{tracker, "tracker"}}, [&]() -> Result<void> {
    auto known = tracker_options(options);
    if (!known) return propagate(known);
    auto created = Tracker::create(*known);
    if (!created) return propagate(created);
    *tracker = std::make_unique<pagetide_tracker>(std::move(*created)).release();
    return {};
  });
}

void pagetide_tracker_destroy(pagetide_tracker* tracker) {
  const KeptErrno kept_errno;
  delete tracker;
}

int pagetide_tracker_backend(const pagetide_tracker* tracker) {
  return at_border({{tracker, "tracker"}}, [&]() -> Result<int> {
    return number_of(tracker->tracker.backend(), kBackends);
  });
}

const char* pagetide_tracker_reason(const pagetide_tracker* tracker) {
  const char* reason = nullptr;
  (void)at_border({{tracker, "tracker"}}, [&]() -> Result<void> {
    reason = tracker->tracker.reason().c_str();
    return {};
  });
  return reason;
}

int pagetide_tracker_get_stats(const pagetide_tracker* tracker, pagetide_tracker_stats* stats) {
  return at_border({{tracker, "tracker"}, {stats, "stats"}}, [&]() -> Result<void> {
    auto size = checked_size(stats->size, "pagetide_tracker_stats");
    if (!size) return propagate(size);
    const TrackerStats now = tracker->tracker.stats();
    const pagetide_tracker_stats known = {std::min(*size, sizeof known),
                                          now.takes,
                                          now.peeks,
                                          now.pages_reported,
                                          now.pages_purged,
                                          now.pages_unchanged,
                                          now.hot_blocks,
                                          now.poisoned_takes,
                                          now.last_collect_ns,
                                          now.total_collect_ns};
    std::memset(static_cast<void*>(stats), 0, *size);
    std::memcpy(static_cast<void*>(stats), &known, known.size);
    return {};
  });
}

// --- Watched ranges ---

int pagetide_tracker_watch(pagetide_tracker* tracker, void* address, size_t size,
                           pagetide_watch_id* watch) {
  if (watch == nullptr) return fail_for_null("watch");
  return with_range(tracker, address, size, [&](Tracker& t, ByteRange range) -> Result<void> {
    auto id = t.watch(range);
    if (!id) return propagate(id);
    *watch = to_c(*id);
    return {};
  });
}

int pagetide_tracker_unwatch(pagetide_tracker* tracker, pagetide_watch_id watch) {
  return at_border({{tracker, "tracker"}}, [&]() -> Result<void> {
    auto range = tracker->tracker.range(from_c(watch));
    if (!range) return propagate(range);
    tracker->tracker.unwatch(from_c(watch));
    return {};
  });
}

int pagetide_tracker_mark_dirty(pagetide_tracker* tracker, const void* address, size_t size) {
  return with_range(tracker, address, size, [](Tracker& t, ByteRange range) -> Result<void> {
    t.mark_dirty(range);
    return {};
  });
}

int pagetide_tracker_mark_always_dirty(pagetide_tracker* tracker, const void* address,
                                       size_t size) {
  return with_range(tracker, address, size, [](Tracker& t, ByteRange range) -> Result<void> {
    t.mark_always_dirty(range);
    return {};
  });
}

int pagetide_tracker_purge(pagetide_tracker* tracker, void* address, size_t size) {
  return with_range(tracker, address, size,
                    [](Tracker& t, ByteRange range) { return t.purge(range); });
}

int pagetide_tracker_note_purged(pagetide_tracker* tracker, const void* address, size_t size) {
  return with_range(tracker, address, size, [](Tracker& t, ByteRange range) -> Result<void> {
    t.note_purged(range);
    return {};
  });
}

int pagetide_tracker_prefill(pagetide_tracker* tracker, void* address, size_t size, int policy) {
  return with_range(tracker, address, size, [&](Tracker& t, ByteRange range) -> Result<void> {
    auto meant = meaning_of(policy, kPrefills, "pagetide_prefill");
    if (!meant) return propagate(meant);
    return t.prefill(range, *meant);
  });
}

// --- Consumers ---

int pagetide_tracker_add_consumer(pagetide_tracker* tracker, pagetide_consumer_id* consumer) {
  return at_border({{tracker, "tracker"}, {consumer, "consumer"}}, [&]() -> Result<void> {
    auto added = tracker->tracker.add_consumer();
    if (!added) return propagate(added);
    *consumer = added->value;
    return {};
  });
}

int pagetide_tracker_remove_consumer(pagetide_tracker* tracker, pagetide_consumer_id consumer) {
  return at_border({{tracker, "tracker"}}, [&]() -> Result<void> {
    tracker->tracker.remove_consumer(ConsumerId{consumer});
    return {};
  });
}

// --- Collecting ---

int pagetide_collected_create(pagetide_collected** collected) {
  return at_border({{collected, "collected"}}, [&]() -> Result<void> {
    *collected = std::make_unique<pagetide_collected>().release();
    return {};
  });
}

void pagetide_collected_destroy(pagetide_collected* collected) {
  const KeptErrno kept_errno;
  delete collected;
}

int pagetide_tracker_reserve(const pagetide_tracker* tracker, pagetide_watch_id watch,
                             size_t part_count, pagetide_collected* collected) {
  return at_border({{tracker, "tracker"}, {collected, "collected"}}, [&]() -> Result<void> {
    auto range = tracker->tracker.range(from_c(watch));
    if (!range) return propagate(range);
    if (part_count > collected->parts.max_size()) throw std::bad_alloc();
    collected->parts.reserve(part_count);
    tracker->tracker.reserve(from_c(watch), collected->value);
    return {};
  });
}

int pagetide_tracker_take(pagetide_tracker* tracker, pagetide_watch_id watch,
                          pagetide_consumer_id consumer, pagetide_collected* collected) {
  return collect_whole(tracker, watch, consumer, CollectMode::take, collected);
}

int pagetide_tracker_peek(pagetide_tracker* tracker, pagetide_watch_id watch,
                          pagetide_consumer_id consumer, pagetide_collected* collected) {
  return collect_whole(tracker, watch, consumer, CollectMode::peek, collected);
}

int pagetide_tracker_collect(pagetide_tracker* tracker, pagetide_watch_id watch,
                             pagetide_consumer_id consumer, int mode, const pagetide_range* parts,
                             size_t part_count, pagetide_collected* collected) {
  if (parts == nullptr && part_count > 0) return fail_for_null("parts");
  return at_border({{tracker, "tracker"}, {collected, "collected"}}, [&]() -> Result<void> {
    auto meant = meaning_of(mode, kCollectModes, "pagetide_collect_mode");
    if (!meant) return propagate(meant);
    collected->parts.clear();
    for (const pagetide_range& part : std::span(parts, part_count)) {
      collected->parts.push_back(ByteRange::of(part.address, part.size));
    }
    return tracker->tracker.collect_into(from_c(watch), collected->parts, *meant, collected->value,
                                         ConsumerId{consumer});
  });
}

int pagetide_tracker_put_back(pagetide_tracker* tracker, pagetide_watch_id watch,
                              pagetide_consumer_id consumer, const pagetide_collected* collected) {
  return at_border({{tracker, "tracker"}, {collected, "collected"}}, [&]() -> Result<void> {
    if (auto r = check_pages(tracker->tracker, watch, collected->value.written.size()); !r)
      return r;
    tracker->tracker.put_back(from_c(watch), collected->value, ConsumerId{consumer});
    return {};
  });
}

int pagetide_tracker_report_unchanged(pagetide_tracker* tracker, pagetide_watch_id watch,
                                      const uint64_t* words, size_t page_count) {
  if (words == nullptr && page_count > 0) return fail_for_null("words");
  return at_border({{tracker, "tracker"}}, [&]() -> Result<void> {
    if (auto r = check_pages(tracker->tracker, watch, page_count); !r) return r;
    const std::span<const std::uint64_t> bits(words, pagetide::divide_up(page_count, 64));
    tracker->tracker.report_unchanged(from_c(watch), DirtyBitmap::from_words(bits, page_count));
    return {};
  });
}

// --- What was collected ---

int64_t pagetide_collected_pages(const pagetide_collected* collected) {
  return at_border<int64_t>({{collected, "collected"}}, [&]() -> Result<std::size_t> {
    return collected->value.written.size();
  });
}

int64_t pagetide_collected_count(const pagetide_collected* collected, int set) {
  return with_set<int64_t>(collected, set, {collected, "collected"}, [](const DirtyBitmap& pages) {
    return static_cast<int64_t>(pages.count());
  });
}

int pagetide_collected_has(const pagetide_collected* collected, int set, size_t page) {
  return with_set<int>(collected, set, {collected, "collected"}, [&](const DirtyBitmap& pages) {
    return page < pages.size() && pages.test(page) ? 1 : 0;
  });
}

int pagetide_collected_next_run(const pagetide_collected* collected, int set,
                                pagetide_page_run* run) {
  const auto find_next = [&](const DirtyBitmap& pages) -> Result<int> {
    const std::size_t from = run->first + run->count;
    if (from < run->first) {
      return failure(ErrorCode::invalid_argument,
                     fmt::format("{} pages from page {} are no run; begin with {{0, 0}}.",
                                 run->count, run->first));
    }
    const PageRange found = pages.next_run(from);
    if (found.empty()) return 0;
    *run = {found.first, found.count};
    return 1;
  };
  return with_set<int>(collected, set, {run, "run"}, find_next);
}

int pagetide_collected_export(const pagetide_collected* collected, int set, uint64_t* words,
                              size_t word_count) {
  const auto copy_out = [&](const DirtyBitmap& pages) -> Result<int> {
    const auto bits = pages.words();
    if (word_count < bits.size()) {
      return failure(ErrorCode::invalid_argument,
                     fmt::format("{} pages need {} words, there is room for {}.", pages.size(),
                                 bits.size(), word_count));
    }
    std::fill(std::copy(bits.begin(), bits.end(), words), words + word_count, 0);
    return PAGETIDE_OK;
  };
  return with_set<int>(collected, set, {words, "words"}, copy_out);
}

int pagetide_collected_is_poisoned(const pagetide_collected* collected) {
  return at_border({{collected, "collected"}},
                   [&]() -> Result<int> { return collected->value.poisoned ? 1 : 0; });
}

const char* pagetide_collected_cause(const pagetide_collected* collected) {
  const char* cause = nullptr;
  (void)at_border({{collected, "collected"}}, [&]() -> Result<void> {
    cause = collected->value.cause.c_str();
    return {};
  });
  return cause;
}
