// The C API, called from C++: names, errors, options, watched ranges, fork and threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/pagetide.h"
#include "pagetide/tracker/backend_choice.h"
#include "pagetide/tracker/tracker.h"
#include "tests/support/child_process.h"
#include "tests/support/environment.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/skip.h"
#include "tests/tracker/tracker_c_support.h"

namespace pagetide {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- Names and numbers ---

TEST(TrackerCNames, of_back_ends_are_those_of_the_cpp_api) {
  for (int kind = 0; kind <= static_cast<int>(BackendKind::compare); ++kind) {
    EXPECT_EQ(pagetide_backend_name(kind), to_string(static_cast<BackendKind>(kind)));
  }
  EXPECT_STREQ(pagetide_backend_name(7), "unknown");
  EXPECT_STREQ(pagetide_backend_name(-1), "unknown");
}

TEST(TrackerCNames, of_prefill_policies_are_those_of_the_cpp_api) {
  for (int policy = 0; policy <= static_cast<int>(Prefill::none); ++policy) {
    EXPECT_EQ(pagetide_prefill_name(policy), to_string(static_cast<Prefill>(policy)));
  }
  EXPECT_STREQ(pagetide_prefill_name(4), "unknown");
  EXPECT_STREQ(pagetide_prefill_name(-1), "unknown");
}

TEST(TrackerCStructs, have_the_sizes_that_programs_were_compiled_with) {
  EXPECT_EQ(sizeof(pagetide_tracker_options), 56U);
  EXPECT_EQ(sizeof(pagetide_tracker_stats), 80U);
}

TEST(TrackerC, pages_have_the_size_of_the_cpp_api) {
  EXPECT_EQ(pagetide_page_size(), page_size());
}

// --- Null handles ---

struct NullCall {
  const char* missing;
  std::function<std::int64_t()> call;
};

class NullPointers : public testing::Test {
 protected:
  NullPointers() : watched_(4) {}

  std::vector<NullCall> calls() {
    pagetide_tracker* t = watched_.tracker();
    pagetide_collected* c = watched_.collected();
    const pagetide_watch_id w = watched_.watch();
    char* at = watched_.memory().page(0);
    const std::size_t size = page_size();
    return {
        {"options",
         [] { return pagetide_tracker_options_init(nullptr, sizeof(pagetide_tracker_options)); }},
        {"tracker", [] { return pagetide_tracker_create(nullptr, nullptr); }},
        {"tracker", [] { return pagetide_tracker_backend(nullptr); }},
        {"tracker", [this] { return pagetide_tracker_get_stats(nullptr, &stats_); }},
        {"stats", [=] { return pagetide_tracker_get_stats(t, nullptr); }},
        {"tracker", [=, this] { return pagetide_tracker_watch(nullptr, at, size, &id_); }},
        {"address", [=, this] { return pagetide_tracker_watch(t, nullptr, size, &id_); }},
        {"watch", [=] { return pagetide_tracker_watch(t, at, size, nullptr); }},
        {"tracker", [=] { return pagetide_tracker_unwatch(nullptr, w); }},
        {"tracker", [=] { return pagetide_tracker_mark_dirty(nullptr, at, size); }},
        {"address", [=] { return pagetide_tracker_mark_dirty(t, nullptr, size); }},
        {"tracker", [=] { return pagetide_tracker_mark_always_dirty(nullptr, at, size); }},
        {"address", [=] { return pagetide_tracker_mark_always_dirty(t, nullptr, size); }},
        {"tracker", [=] { return pagetide_tracker_purge(nullptr, at, size); }},
        {"address", [=] { return pagetide_tracker_purge(t, nullptr, size); }},
        {"tracker", [=] { return pagetide_tracker_note_purged(nullptr, at, size); }},
        {"address", [=] { return pagetide_tracker_note_purged(t, nullptr, size); }},
        {"tracker", [=] { return pagetide_tracker_prefill(nullptr, at, size, 0); }},
        {"address", [=] { return pagetide_tracker_prefill(t, nullptr, size, 0); }},
        {"tracker", [this] { return pagetide_tracker_add_consumer(nullptr, &consumer_); }},
        {"consumer", [=] { return pagetide_tracker_add_consumer(t, nullptr); }},
        {"tracker", [] { return pagetide_tracker_remove_consumer(nullptr, 1); }},
        {"collected", [] { return pagetide_collected_create(nullptr); }},
        {"tracker", [=] { return pagetide_tracker_reserve(nullptr, w, 0, c); }},
        {"collected", [=] { return pagetide_tracker_reserve(t, w, 0, nullptr); }},
        {"tracker", [=] { return pagetide_tracker_take(nullptr, w, 0, c); }},
        {"collected", [=] { return pagetide_tracker_take(t, w, 0, nullptr); }},
        {"tracker", [=] { return pagetide_tracker_peek(nullptr, w, 0, c); }},
        {"collected", [=] { return pagetide_tracker_peek(t, w, 0, nullptr); }},
        {"tracker",
         [=] { return pagetide_tracker_collect(nullptr, w, 0, PAGETIDE_TAKE, nullptr, 0, c); }},
        {"parts", [=] { return pagetide_tracker_collect(t, w, 0, PAGETIDE_TAKE, nullptr, 1, c); }},
        {"collected",
         [=] { return pagetide_tracker_collect(t, w, 0, PAGETIDE_TAKE, nullptr, 0, nullptr); }},
        {"tracker", [=] { return pagetide_tracker_put_back(nullptr, w, 0, c); }},
        {"collected", [=] { return pagetide_tracker_put_back(t, w, 0, nullptr); }},
        {"tracker", [=, this] { return pagetide_tracker_report_unchanged(nullptr, w, &word_, 4); }},
        {"words", [=] { return pagetide_tracker_report_unchanged(t, w, nullptr, 4); }},
        {"collected", [] { return pagetide_collected_pages(nullptr); }},
        {"collected", [] { return pagetide_collected_count(nullptr, PAGETIDE_WRITTEN); }},
        {"collected", [] { return pagetide_collected_has(nullptr, PAGETIDE_WRITTEN, 0); }},
        {"collected",
         [this] { return pagetide_collected_next_run(nullptr, PAGETIDE_WRITTEN, &run_); }},
        {"run", [=] { return pagetide_collected_next_run(c, PAGETIDE_WRITTEN, nullptr); }},
        {"collected",
         [this] { return pagetide_collected_export(nullptr, PAGETIDE_WRITTEN, &word_, 1); }},
        {"words", [=] { return pagetide_collected_export(c, PAGETIDE_WRITTEN, nullptr, 1); }},
        {"collected", [] { return pagetide_collected_is_poisoned(nullptr); }},
    };
  }

  WatchedByC watched_;
  pagetide_tracker_stats stats_{};
  pagetide_watch_id id_ = 0;
  pagetide_consumer_id consumer_ = 0;
  pagetide_page_run run_{};
  std::uint64_t word_ = 0;
};

TEST_F(NullPointers, are_errors_that_name_the_argument) {
  for (const NullCall& null_call : calls()) {
    EXPECT_EQ(null_call.call(), PAGETIDE_INVALID_ARGUMENT) << null_call.missing;
    EXPECT_EQ(last_message(), std::string(null_call.missing) + " must not be a null pointer.");
    EXPECT_EQ(pagetide_last_errno(), 0);
  }
}

TEST_F(NullPointers, give_null_where_the_answer_is_an_address) {
  EXPECT_EQ(pagetide_tracker_reason(nullptr), nullptr);
  EXPECT_EQ(last_message(), "tracker must not be a null pointer.");
  EXPECT_EQ(pagetide_collected_cause(nullptr), nullptr);
  EXPECT_EQ(last_message(), "collected must not be a null pointer.");
}

TEST_F(NullPointers, can_be_destroyed) {
  pagetide_tracker_destroy(nullptr);
  pagetide_collected_destroy(nullptr);
}

// --- Errors ---

TEST(TrackerCErrors, there_is_no_message_before_the_first_error_of_a_thread) {
  (void)pagetide_tracker_backend(nullptr);
  std::string message = "unset";
  std::thread([&] { message = last_message(); }).join();
  EXPECT_EQ(message, "");
  EXPECT_EQ(last_message(), "tracker must not be a null pointer.");
}

TEST(TrackerCErrors, stay_until_the_next_one) {
  WatchedByC watched(4);
  EXPECT_EQ(pagetide_tracker_unwatch(watched.tracker(), 77), PAGETIDE_INVALID_ARGUMENT);
  watched.take();
  EXPECT_EQ(last_message(), "no such watch; it was unwatched.");
}

TEST(TrackerCErrors, of_system_calls_come_with_their_errno) {
  WatchedByC watched(4);
  ASSERT_TRUE(lock_memory(watched.memory().pages(0, 1)));
  EXPECT_EQ(pagetide_tracker_purge(watched.tracker(), watched.memory().page(0), page_size()),
            PAGETIDE_SYSTEM_FAILURE);
  EXPECT_EQ(last_message(),
            "cannot purge memory (MADV_DONTNEED): Invalid argument. Memory locked with mlock() "
            "cannot be purged; unlock it.");
  EXPECT_EQ(pagetide_last_errno(), EINVAL);
  EXPECT_EQ(pagetide_tracker_backend(nullptr), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_last_errno(), 0);
}

TEST(TrackerCErrors, leave_errno_alone_and_so_does_success) {
  errno = EDOM;
  {
    const TrackerHandle tracker = create(PAGETIDE_BACKEND_AUTO);
    const Mapping mapping(4);
    ASSERT_TRUE(lock_memory(mapping.pages(0, 1)));
    errno = EDOM;
    watch_all(tracker.get(), mapping);
    EXPECT_EQ(errno, EDOM);
    errno = EDOM;
    EXPECT_EQ(pagetide_tracker_purge(tracker.get(), mapping.page(0), page_size()),
              PAGETIDE_SYSTEM_FAILURE);
    EXPECT_EQ(errno, EDOM);
    errno = EDOM;
    (void)pagetide_check_backend(PAGETIDE_BACKEND_SOFT_DIRTY);
  }
  EXPECT_EQ(errno, EDOM);
}

// --- Options ---

TEST(TrackerCOptions, have_the_defaults_of_the_cpp_api) {
  const pagetide_tracker_options options = default_options();
  const TrackerOptions expected;
  EXPECT_EQ(options.size, sizeof options);
  EXPECT_EQ(options.backend, PAGETIDE_BACKEND_AUTO);
  EXPECT_EQ(options.never_syscall_target, 0);
  EXPECT_EQ(options.writers_held_in_takes, 0);
  EXPECT_EQ(options.adapt_to_hot_pages, 0);
  EXPECT_EQ(options.hot_stale_page_ns, expected.hot_pages.stale_page_ns);
  EXPECT_EQ(options.hot_fault_ns, expected.hot_pages.fault_ns);
  EXPECT_EQ(options.hot_ioctl_ns, expected.hot_pages.ioctl_ns);
  EXPECT_EQ(options.hot_relearn_takes, expected.hot_pages.relearn_takes);
  EXPECT_EQ(options.sync_handler_threads, expected.settings.handler_threads);
  EXPECT_EQ(options.mprotect_max_extra_mappings, expected.settings.max_extra_mappings);
}

// How much of them the program of an older version had.
constexpr std::size_t kOlderSize = offsetof(pagetide_tracker_options, writers_held_in_takes);

TEST(TrackerCOptions, of_an_older_program_are_set_to_its_end_and_no_further) {
  pagetide_tracker_options options;
  std::memset(&options, 0x5a, sizeof options);
  ASSERT_EQ(pagetide_tracker_options_init(&options, kOlderSize), PAGETIDE_OK);
  EXPECT_EQ(options.size, kOlderSize);
  EXPECT_EQ(options.never_syscall_target, 0);
  EXPECT_EQ(options.writers_held_in_takes, 0x5a5a5a5a);
}

TEST(TrackerCOptions, of_a_newer_program_are_zero_where_unknown) {
  NewerOptions<pagetide_tracker_options> options;
  std::memset(&options, 0x5a, sizeof options);
  ASSERT_EQ(pagetide_tracker_options_init(&options.known, sizeof options), PAGETIDE_OK);
  EXPECT_EQ(options.known.size, sizeof options);
  EXPECT_THAT(options.added, ElementsAre(0, 0));
}

TEST(TrackerCOptions, with_a_size_that_was_never_set_are_refused) {
  for (const std::size_t size : {std::size_t{0}, sizeof(size_t) - 1, std::size_t{1025}, SIZE_MAX}) {
    pagetide_tracker_options options = default_options();
    EXPECT_EQ(pagetide_tracker_options_init(&options, size), PAGETIDE_INVALID_ARGUMENT);
    options.size = size;
    pagetide_tracker* tracker = nullptr;
    EXPECT_EQ(pagetide_tracker_create(&options, &tracker), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(tracker, nullptr);
    EXPECT_THAT(last_message(), HasSubstr("set it to sizeof(pagetide_tracker_options)."));
  }
}

TEST(TrackerCOptions, of_a_newer_program_work_while_it_sets_nothing_unknown) {
  NewerOptions<pagetide_tracker_options> options;
  ASSERT_EQ(pagetide_tracker_options_init(&options.known, sizeof options), PAGETIDE_OK);
  options.known.backend = PAGETIDE_BACKEND_COMPARE;
  const TrackerHandle tracker = create(options.known);
  EXPECT_EQ(pagetide_tracker_backend(tracker.get()), PAGETIDE_BACKEND_COMPARE);
}

TEST(TrackerCOptions, that_are_unknown_and_set_are_an_error) {
  for (const std::size_t byte :
       {sizeof(pagetide_tracker_options), sizeof(NewerOptions<pagetide_tracker_options>) - 1}) {
    NewerOptions<pagetide_tracker_options> options;
    ASSERT_EQ(pagetide_tracker_options_init(&options.known, sizeof options), PAGETIDE_OK);
    const char one = 1;
    std::memcpy(reinterpret_cast<char*>(&options) + byte, &one, 1);
    pagetide_tracker* tracker = nullptr;
    EXPECT_EQ(pagetide_tracker_create(&options.known, &tracker), PAGETIDE_UNSUPPORTED);
    EXPECT_EQ(last_message(),
              "the tracker's options set something that this version of Pagetide does not have; "
              "the program was compiled for a newer one.");
    EXPECT_EQ(tracker, nullptr);
  }
}

// The back end and why, by both APIs, with some features switched off.
void expect_same_choice(const char* disabled, const pagetide_tracker_options* options,
                        const TrackerOptions& expected_options) {
  const Disabled some(disabled);
  pagetide_tracker* created = nullptr;
  must_c(pagetide_tracker_create(options, &created));
  const TrackerHandle tracker(created, pagetide_tracker_destroy);
  const Tracker expected = must(Tracker::create(expected_options));
  EXPECT_EQ(pagetide_backend_name(pagetide_tracker_backend(created)),
            to_string(expected.backend()));
  EXPECT_EQ(pagetide_tracker_reason(created), expected.reason());
}

TEST(TrackerCOptions, give_the_back_end_and_reason_of_the_cpp_api) {
  expect_same_choice("", nullptr, {});
  pagetide_tracker_options options = default_options();
  expect_same_choice("", &options, {});
  options.backend = PAGETIDE_BACKEND_COMPARE;
  expect_same_choice("", &options, {BackendKind::compare});
}

// The reason names what was not tried for want of a promise.
TEST(TrackerCOptions, pass_each_promise_on) {
  const char* disabled = "uffd_async,uffd_sync";
  pagetide_tracker_options options = default_options();
  expect_same_choice(disabled, &options, {});
  options.never_syscall_target = 1;
  expect_same_choice(disabled, &options, {.never_syscall_target = true});
  options = default_options();
  options.writers_held_in_takes = 1;
  expect_same_choice(disabled, &options, {.writers_held_in_takes = true});
}

std::ptrdiff_t count_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(TrackerCOptions, pass_the_number_of_handler_threads_on) {
  if (auto r = check_backend(BackendKind::uffd_sync); !r) {
    PAGETIDE_SKIP(r.error().message().c_str());
  }
  for (const std::size_t threads : {std::size_t{1}, std::size_t{3}}) {
    pagetide_tracker_options options = default_options();
    options.backend = PAGETIDE_BACKEND_UFFD_SYNC;
    options.sync_handler_threads = threads;
    const std::ptrdiff_t before = count_threads();
    const TrackerHandle tracker = create(options);
    EXPECT_EQ(count_threads() - before, static_cast<std::ptrdiff_t>(threads));
  }
}

TEST(TrackerCOptions, without_a_handler_thread_are_refused_for_every_back_end) {
  for (const int backend :
       {PAGETIDE_BACKEND_AUTO, PAGETIDE_BACKEND_UFFD_SYNC, PAGETIDE_BACKEND_COMPARE}) {
    pagetide_tracker_options options = default_options();
    options.backend = backend;
    options.sync_handler_threads = 0;
    pagetide_tracker* tracker = nullptr;
    EXPECT_EQ(pagetide_tracker_create(&options, &tracker), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(last_message(),
              "the option sync_handler_threads must be at least 1; "
              "pagetide_tracker_options_init() sets it to 1.");
    EXPECT_EQ(tracker, nullptr);
  }
}

// Every second page written, which would need a mapping each; and how many are then reported.
TEST(TrackerCOptions, pass_the_bound_of_mappings_on) {
  constexpr std::size_t kPages = 256;
  const auto reported = [](std::size_t max_extra_mappings) {
    pagetide_tracker_options options = default_options();
    options.backend = PAGETIDE_BACKEND_MPROTECT;
    options.mprotect_max_extra_mappings = max_extra_mappings;
    WatchedByC watched(Mapping(kPages), create(options));
    watched.memory().fill(1);
    watched.take();
    for (std::size_t page = 0; page < kPages; page += 2) watched.memory().write(page, 2);
    return watched.take().size();
  };
  EXPECT_EQ(reported(0), kPages / 2);
  EXPECT_GT(reported(16), kPages / 2);
}

TEST(TrackerCOptions, beyond_the_end_of_an_older_programs_are_ignored) {
  pagetide_tracker_options options;
  std::memset(&options, 0x5a, sizeof options);
  ASSERT_EQ(pagetide_tracker_options_init(&options, kOlderSize), PAGETIDE_OK);
  ASSERT_NE(options.writers_held_in_takes, 0);
  expect_same_choice("uffd_async,uffd_sync", &options, {});
}

TEST(TrackerCOptions, with_a_number_that_is_no_back_end_are_refused) {
  for (const int backend : {-1, 7, INT32_MAX}) {
    pagetide_tracker_options options = default_options();
    options.backend = backend;
    pagetide_tracker* tracker = nullptr;
    EXPECT_EQ(pagetide_tracker_create(&options, &tracker), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(last_message(), std::to_string(backend) + " is not a pagetide_backend.");
    EXPECT_EQ(pagetide_check_backend(backend), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(tracker, nullptr);
  }
}

TEST(TrackerCBackends, are_checked_as_by_the_cpp_api) {
  for (const char* disabled : {"", "userfaultfd", "soft_dirty,mprotect"}) {
    const Disabled some(disabled);
    for (int kind = PAGETIDE_BACKEND_UFFD_ASYNC; kind <= PAGETIDE_BACKEND_COMPARE; ++kind) {
      const auto expected = check_backend(static_cast<BackendKind>(kind));
      const int result = pagetide_check_backend(kind);
      ASSERT_EQ(result == PAGETIDE_OK, expected.has_value());
      if (expected) continue;
      EXPECT_EQ(pagetide_error_name(result), to_string(expected.error().code()));
      EXPECT_EQ(last_message(), expected.error().message());
      EXPECT_EQ(pagetide_last_errno(), expected.error().system_errno());
    }
  }
}

TEST(TrackerCBackends, auto_is_not_one_to_be_checked) {
  EXPECT_EQ(pagetide_check_backend(PAGETIDE_BACKEND_AUTO), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(last_message(),
            "PAGETIDE_BACKEND_AUTO is not one back end, so it cannot be checked; "
            "pagetide_tracker_create() finds the best one that works.");
}

TEST(TrackerCBackends, that_cannot_be_had_make_no_tracker) {
  const Disabled some("userfaultfd");
  pagetide_tracker_options options = default_options();
  options.backend = PAGETIDE_BACKEND_UFFD_ASYNC;
  pagetide_tracker* tracker = nullptr;
  EXPECT_EQ(pagetide_tracker_create(&options, &tracker), PAGETIDE_UNSUPPORTED);
  EXPECT_EQ(tracker, nullptr);
}

// --- Watching ---

TEST(TrackerCWatch, names_are_never_zero_and_never_used_again) {
  WatchedByC watched(4);
  EXPECT_NE(watched.watch(), 0U);
  ASSERT_EQ(pagetide_tracker_unwatch(watched.tracker(), watched.watch()), PAGETIDE_OK);
  const pagetide_watch_id again = watch_all(watched.tracker(), watched.memory());
  EXPECT_NE(again, watched.watch());
  EXPECT_EQ(pagetide_tracker_take(watched.tracker(), watched.watch(), 0, watched.collected()),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_tracker_take(watched.tracker(), again, 0, watched.collected()), PAGETIDE_OK);
}

TEST(TrackerCWatch, refuses_what_the_cpp_api_refuses) {
  WatchedByC watched(4);
  char* at = watched.memory().page(0);
  pagetide_watch_id id = 5;
  EXPECT_EQ(pagetide_tracker_watch(watched.tracker(), at, page_size(), &id),
            PAGETIDE_ALREADY_EXISTS);
  EXPECT_THAT(last_message(), EndsWith("a part is watched already."));
  const Mapping other(4);
  EXPECT_EQ(pagetide_tracker_watch(watched.tracker(), other.page(0) + 1, page_size(), &id),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_tracker_watch(watched.tracker(), other.page(0), 0, &id),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_tracker_watch(watched.tracker(), other.page(0), SIZE_MAX, &id),
            PAGETIDE_INVALID_ARGUMENT);
  EXPECT_THAT(last_message(), HasSubstr("reach beyond the end of memory"));
  EXPECT_EQ(id, 5U) << "a call that fails stores nothing";
}

TEST(TrackerCWatch, that_is_gone_is_an_error_of_every_function) {
  WatchedByC watched(4);
  pagetide_tracker* tracker = watched.tracker();
  pagetide_collected* collected = watched.collected();
  const std::uint64_t words = 0;
  ASSERT_EQ(pagetide_tracker_unwatch(tracker, watched.watch()), PAGETIDE_OK);
  for (const pagetide_watch_id gone : {watched.watch(), pagetide_watch_id{0}, UINT64_MAX}) {
    EXPECT_EQ(pagetide_tracker_unwatch(tracker, gone), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(pagetide_tracker_reserve(tracker, gone, 1, collected), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(pagetide_tracker_take(tracker, gone, 0, collected), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(pagetide_tracker_peek(tracker, gone, 0, collected), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(pagetide_tracker_collect(tracker, gone, 0, PAGETIDE_TAKE, nullptr, 0, collected),
              PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(pagetide_tracker_put_back(tracker, gone, 0, collected), PAGETIDE_INVALID_ARGUMENT);
    EXPECT_EQ(pagetide_tracker_report_unchanged(tracker, gone, &words, 0),
              PAGETIDE_INVALID_ARGUMENT);
  }
}

TEST(TrackerCWatch, ends_with_the_tracker) {
  // userfaultfd lets nobody else register memory that is still registered.
  const Mapping mapping(4);
  for (int round = 0; round < 2; ++round) {
    const TrackerHandle tracker = create(PAGETIDE_BACKEND_AUTO);
    pagetide_watch_id watch = 0;
    EXPECT_EQ(pagetide_tracker_watch(tracker.get(), mapping.page(0), 4 * page_size(), &watch),
              PAGETIDE_OK)
        << last_message();
  }
}

TEST(TrackerCWatch, ranges_that_wrap_around_are_refused) {
  WatchedByC watched(4);
  pagetide_tracker* tracker = watched.tracker();
  char* at = watched.memory().page(0);
  EXPECT_EQ(pagetide_tracker_mark_dirty(tracker, at, SIZE_MAX), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_tracker_mark_always_dirty(tracker, at, SIZE_MAX), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_tracker_purge(tracker, at, SIZE_MAX), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_tracker_note_purged(tracker, at, SIZE_MAX), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_EQ(pagetide_tracker_prefill(tracker, at, SIZE_MAX, 0), PAGETIDE_INVALID_ARGUMENT);
  EXPECT_THAT(watched.take(), IsEmpty());
}

// --- fork ---

TEST(TrackerCFork, a_child_is_refused_and_can_destroy) {
  WatchedByC watched(8, PAGETIDE_BACKEND_AUTO);
  watched.take();
  watched.memory().write(3, 1);
  EXPECT_EQ(run_in_child([&]() -> std::string {
              pagetide_tracker* tracker = watched.tracker();
              if (pagetide_tracker_take(tracker, watched.watch(), 0, watched.collected()) !=
                  PAGETIDE_FORKED) {
                return "take";
              }
              if (last_message() !=
                  "this tracker was opened by the parent process; open a new one after fork().") {
                return last_message();
              }
              pagetide_watch_id other = 0;
              const Mapping mapping(4);
              if (pagetide_tracker_watch(tracker, mapping.page(0), page_size(), &other) !=
                  PAGETIDE_FORKED) {
                return "watch";
              }
              pagetide_tracker_destroy(tracker);
              return {};
            }),
            "");
  watched.memory().write(4, 1);
  EXPECT_EQ(watched.take(), (Pages{3, 4}));
}

// What each call that can say so says in a child, in the order of the header.
std::vector<int> answers_in_child(const WatchedByC& watched) {
  pagetide_tracker* t = watched.tracker();
  pagetide_collected* c = watched.collected();
  const pagetide_watch_id w = watched.watch();
  pagetide_consumer_id consumer = 0;
  const std::uint64_t words = 1;
  return {pagetide_tracker_unwatch(t, w),
          pagetide_tracker_add_consumer(t, &consumer),
          pagetide_tracker_reserve(t, w, 1, c),
          pagetide_tracker_peek(t, w, 0, c),
          pagetide_tracker_collect(t, w, 0, PAGETIDE_TAKE, nullptr, 0, c),
          pagetide_tracker_put_back(t, w, 0, c),
          pagetide_tracker_report_unchanged(t, w, &words, 1)};
}

std::vector<int> answers_of_what_does_nothing_in_child(const WatchedByC& watched) {
  pagetide_tracker* t = watched.tracker();
  char* at = watched.memory().page(5);
  pagetide_tracker_stats stats;
  stats.size = sizeof stats;
  return {pagetide_tracker_remove_consumer(t, 1),
          pagetide_tracker_mark_dirty(t, at, 1),
          pagetide_tracker_mark_always_dirty(t, at, 1),
          pagetide_tracker_note_purged(t, at, 1),
          pagetide_tracker_prefill(t, at, 1, PAGETIDE_PREFILL_AUTO),
          pagetide_tracker_get_stats(t, &stats)};
}

TEST(TrackerCFork, every_other_call_of_a_child_is_refused_or_does_nothing) {
  WatchedByC watched(8, PAGETIDE_BACKEND_AUTO);
  watched.take();
  EXPECT_EQ(run_in_child([&]() -> std::string {
              for (const int answer : answers_in_child(watched)) {
                if (answer != PAGETIDE_FORKED) return pagetide_error_name(answer);
              }
              for (const int answer : answers_of_what_does_nothing_in_child(watched)) {
                if (answer != PAGETIDE_OK) return last_message();
              }
              return {};
            }),
            "");
  EXPECT_EQ(watched.take(), Pages());
}

// --- Threads ---

TEST(TrackerCThreads, may_watch_and_collect_ranges_of_their_own_with_one_tracker) {
  const TrackerHandle tracker = create(PAGETIDE_BACKEND_COMPARE);
  std::vector<std::thread> threads;
  std::array<int, 4> wrong{};
  for (int& mistakes : wrong) {
    threads.emplace_back([&] {
      const Mapping mapping(4);
      const CollectedHandle collected = new_collected();
      for (int round = 1; round <= 100; ++round) {
        const pagetide_watch_id watch = watch_all(tracker.get(), mapping);
        const int first = pagetide_tracker_take(tracker.get(), watch, 0, collected.get());
        mapping.write(2, static_cast<char>(round));
        const int second = pagetide_tracker_take(tracker.get(), watch, 0, collected.get());
        const bool found = pages_of(collected.get(), PAGETIDE_WRITTEN) == Pages{2};
        const int gone = pagetide_tracker_unwatch(tracker.get(), watch);
        mistakes += first == 0 && second == 0 && gone == 0 && found ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, testing::Each(0));
}

}  // namespace
}  // namespace pagetide
