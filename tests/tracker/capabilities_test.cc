#include "pagetide/tracker/capabilities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <string>

#include "pagetide/tracker/disabled_features.h"
#include "pagetide/tracker/tracker.h"
#include "tests/support/child_process.h"
#include "tests/support/environment.h"
#include "tests/support/mapping.h"
#include "tests/support/memory_facts.h"
#include "tests/support/must.h"
#include "tests/support/skip.h"

namespace pagetide {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kDisabledMessage =
    "cannot open userfaultfd: switched off by PAGETIDE_DISABLE. The compare back end works without "
    "it (BackendKind::compare); `pagetide doctor` shows what this machine has.";
constexpr std::string_view kCompareReason =
    "uffd_async: cannot open userfaultfd: switched off by PAGETIDE_DISABLE; "
    "uffd_sigbus: not tried, since system calls may write to the memory; "
    "uffd_sync: cannot open userfaultfd: switched off by PAGETIDE_DISABLE; "
    "soft_dirty: not tried, since threads may write during a take; "
    "mprotect: not tried, since system calls may write to the memory";

TEST(DisabledFeaturesTest, are_the_whole_names_of_the_list) {
  {
    const Disabled disabled("one,userfaultfd,two");
    EXPECT_TRUE(is_disabled("userfaultfd"));
    EXPECT_TRUE(is_disabled("one"));
    EXPECT_TRUE(is_disabled("two"));
    EXPECT_FALSE(is_disabled("user"));
    EXPECT_FALSE(is_disabled("userfaultfd,two"));
    EXPECT_FALSE(is_disabled("three"));
  }
  EXPECT_FALSE(is_disabled("userfaultfd"));
}

TEST(DisabledFeaturesTest, an_empty_list_disables_nothing) {
  for (const char* list : {"", ",", ",,userfaultfdx,", "user faultfd"}) {
    const Disabled disabled(list);
    EXPECT_FALSE(is_disabled("userfaultfd")) << list;
  }
}

TEST(DisabledFeaturesTest, spaces_around_a_name_do_not_matter) {
  const Disabled disabled("other , userfaultfd ");
  EXPECT_TRUE(is_disabled("userfaultfd"));
}

TEST(DisabledFeaturesTest, names_that_stand_for_nothing_are_listed) {
  const Disabled disabled("warp,userfaultfd, tea");
  EXPECT_EQ(unknown_disabled_features(), "warp, tea");
}

TEST(CapabilitiesTest, without_userfaultfd_compare_is_chosen_and_the_reason_says_why) {
  const Disabled disabled("userfaultfd");
  const Capabilities found = probe_capabilities();
  EXPECT_EQ(found.chosen, BackendKind::compare);
  EXPECT_EQ(found.reason, kCompareReason);
  for (const char* name : {"uffd_async", "prefill.markers", "kernel.holes_reported"}) {
    const Capability* item = found.find(name);
    ASSERT_NE(item, nullptr) << name;
    EXPECT_FALSE(item->available) << name;
    EXPECT_EQ(item->detail, kDisabledMessage) << name;
    EXPECT_FALSE(item->without.empty()) << name;
  }
}

TEST(CapabilitiesTest, every_item_has_a_name_of_its_own_and_a_detail) {
  const Capabilities found = probe_capabilities();
  for (const Capability& item : found.items) {
    EXPECT_EQ(found.find(item.name), &item) << item.name;
    EXPECT_FALSE(item.detail.empty()) << item.name;
  }
  EXPECT_EQ(found.find("no such thing"), nullptr);
  ASSERT_NE(found.find("compare"), nullptr);
  EXPECT_TRUE(found.find("compare")->available);
  EXPECT_FALSE(found.reason.empty());
}

TEST(CapabilitiesTest, names_the_running_kernel) {
  utsname name{};
  ASSERT_EQ(::uname(&name), 0);
  const Capabilities found = probe_capabilities();
  const Capability* item = found.find("kernel.release");
  ASSERT_NE(item, nullptr);
  EXPECT_THAT(item->detail, HasSubstr(std::string("Linux ") + name.release));
}

TEST(CapabilitiesTest, a_probe_that_passes_overrules_what_the_version_says_of_a_bug) {
  const Capabilities found = probe_capabilities();
  for (const KernelBug& bug : found.kernel_bugs) {
    const Capability* probe = found.find(bug.shown_by);
    ASSERT_EQ(probe != nullptr, !bug.shown_by.empty()) << bug.id;
    if (probe != nullptr && probe->available) {
      EXPECT_EQ(bug.state, KernelBug::State::not_affected) << bug.id;
    }
  }
}

TEST(CapabilitiesTest, what_is_chosen_is_what_an_automatic_tracker_gets) {
  const Capabilities found = probe_capabilities();
  const Tracker tracker = must(Tracker::create());
  EXPECT_EQ(tracker.backend(), found.chosen);
  EXPECT_EQ(tracker.reason(), found.reason);
  EXPECT_EQ(check_backend(BackendKind::uffd_async).has_value(),
            found.chosen == BackendKind::uffd_async);
}

TEST(CapabilitiesTest, a_working_kernel_passes_every_probe) {
  if (auto r = check_backend(BackendKind::uffd_async); !r)
    PAGETIDE_SKIP(r.error().message().c_str());
  const Capabilities found = probe_capabilities();
  EXPECT_EQ(found.chosen, BackendKind::uffd_async);
  for (const char* name :
       {"kernel.release", "uffd_async", "uffd_sigbus", "mprotect", "compare", "prefill.markers"}) {
    ASSERT_NE(found.find(name), nullptr) << name;
    EXPECT_TRUE(found.find(name)->available) << found.find(name)->detail;
  }
}

TEST(CapabilitiesTest, an_answer_is_found_anew_when_the_disabled_features_change) {
  const bool usable = check_backend(BackendKind::uffd_async).has_value();
  {
    const Disabled disabled("userfaultfd");
    const auto r = check_backend(BackendKind::uffd_async);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::unsupported);
    EXPECT_EQ(r.error().message(), kDisabledMessage);
  }
  EXPECT_EQ(check_backend(BackendKind::uffd_async).has_value(), usable);
}

TEST(TrackerChoiceTest, automatic_falls_back_to_compare_and_says_why) {
  const Disabled disabled("userfaultfd");
  Tracker tracker = must(Tracker::create({BackendKind::automatic}));
  EXPECT_EQ(tracker.backend(), BackendKind::compare);
  EXPECT_EQ(tracker.reason(), kCompareReason);
  // And it works.
  const Mapping mapping(4);
  const WatchId watch = must(tracker.watch(mapping.range()));
  mapping.write(2, 1);
  const Collected collected = must(tracker.collect(watch, CollectMode::take));
  EXPECT_EQ(collected.written.count(), 1U);
  EXPECT_TRUE(collected.written.test(2));
}

TEST(TrackerChoiceTest, what_the_owner_promises_opens_further_back_ends) {
  const Disabled disabled("uffd_async");
  EXPECT_EQ(choose_backend({.never_syscall_target = true}).kind, BackendKind::uffd_sigbus);
  const Disabled fewer("userfaultfd,soft_dirty");
  EXPECT_EQ(choose_backend({.never_syscall_target = true}).kind, BackendKind::write_protect);
  EXPECT_EQ(choose_backend({}).kind, BackendKind::compare);
}

TEST(TrackerChoiceTest, soft_dirty_is_not_tried_while_writers_may_run) {
  const Disabled disabled("userfaultfd");
  EXPECT_THAT(choose_backend({}).reason, HasSubstr("soft_dirty: not tried"));
  const BackendChoice held = choose_backend({.writers_held_in_takes = true});
  if (check_backend(BackendKind::soft_dirty)) {
    EXPECT_EQ(held.kind, BackendKind::soft_dirty);
  } else {
    EXPECT_THAT(held.reason, HasSubstr("soft_dirty: "));
    EXPECT_THAT(held.reason, testing::Not(HasSubstr("soft_dirty: not tried")));
  }
}

TEST(TrackerChoiceTest, every_back_end_can_be_switched_off_and_says_so) {
  for (const BackendKind kind :
       {BackendKind::uffd_async, BackendKind::uffd_sigbus, BackendKind::uffd_sync,
        BackendKind::soft_dirty, BackendKind::write_protect}) {
    const std::string name(to_string(kind));
    const Disabled disabled(name.c_str());
    const auto r = Tracker::create({.backend = kind});
    ASSERT_FALSE(r) << name;
    EXPECT_EQ(r.error().message(), "cannot use " + name + ": switched off by PAGETIDE_DISABLE.");
    EXPECT_EQ(unknown_disabled_features(), "") << name;
  }
}

TEST(TrackerChoiceTest, every_back_end_that_works_here_can_be_asked_for) {
  for (const BackendKind kind :
       {BackendKind::uffd_async, BackendKind::uffd_sigbus, BackendKind::uffd_sync,
        BackendKind::soft_dirty, BackendKind::write_protect, BackendKind::compare}) {
    auto tracker = Tracker::create({.backend = kind});
    const auto usable = check_backend(kind);
    ASSERT_EQ(tracker.has_value(), usable.has_value()) << to_string(kind);
    if (usable) {
      EXPECT_EQ(tracker->backend(), kind);
    } else {
      EXPECT_EQ(tracker.error().message(), usable.error().message());
    }
  }
}

TEST(TrackerChoiceTest, a_tracker_can_have_several_handler_threads) {
  if (auto r = check_backend(BackendKind::uffd_sync); !r)
    PAGETIDE_SKIP(r.error().message().c_str());
  const auto threads = [] { return status_kib("Threads"); };
  const std::size_t before = threads();
  const Tracker tracker = must(
      Tracker::create({.backend = BackendKind::uffd_sync, .settings = {.handler_threads = 3}}));
  EXPECT_EQ(threads(), before + 3);
  const auto none =
      Tracker::create({.backend = BackendKind::uffd_sync, .settings = {.handler_threads = 0}});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::invalid_argument);
}

// And the advice is about what was missing.
TEST(TrackerChoiceTest, what_was_missing_for_a_moment_is_tried_again) {
  if (!check_backend(BackendKind::uffd_async)) PAGETIDE_SKIP("needs uffd_async");
  EXPECT_EQ(run_in_child([]() -> std::string {
              ::setenv("PAGETIDE_DISABLE", "tea", 1);  // nothing known yet under this value
              rlimit before{};
              ::getrlimit(RLIMIT_NOFILE, &before);
              rlimit few = before;
              few.rlim_cur = 3;
              ::setrlimit(RLIMIT_NOFILE, &few);
              const auto failed = check_backend(BackendKind::uffd_async);
              ::setrlimit(RLIMIT_NOFILE, &before);
              if (failed) return "it worked without descriptors";
              const std::string& message = failed.error().message();
              if (message.find("ulimit -n") == std::string::npos) return message;
              const auto again = check_backend(BackendKind::uffd_async);
              return again ? "" : again.error().message();
            }),
            "");
}

TEST(TrackerChoiceTest, the_parts_of_the_default_back_end_can_be_switched_off_too) {
  for (const char* part : {"pagemap", "pagemap_scan", "userfaultfd"}) {
    const Disabled disabled(part);
    EXPECT_FALSE(check_backend(BackendKind::uffd_async)) << part;
  }
}

TEST(TrackerChoiceTest, automatic_is_not_one_back_end) {
  EXPECT_FALSE(open_backend(BackendKind::automatic));
  EXPECT_FALSE(check_backend(BackendKind::automatic));
}

TEST(TrackerChoiceTest, a_back_end_asked_for_by_name_is_never_replaced) {
  const Disabled disabled("userfaultfd");
  const auto tracker = Tracker::create({BackendKind::uffd_async});
  ASSERT_FALSE(tracker);
  EXPECT_EQ(tracker.error().code(), ErrorCode::unsupported);
  EXPECT_EQ(tracker.error().message(), kDisabledMessage);
}

TEST(TrackerChoiceTest, a_back_end_asked_for_by_name_needs_no_reason) {
  const Tracker tracker = must(Tracker::create({BackendKind::compare}));
  EXPECT_EQ(tracker.backend(), BackendKind::compare);
  EXPECT_EQ(tracker.reason(), "");
}

TEST(BackendKindTest, has_the_names_that_options_use) {
  EXPECT_EQ(to_string(BackendKind::automatic), "auto");
  EXPECT_EQ(to_string(BackendKind::uffd_async), "uffd_async");
  EXPECT_EQ(to_string(BackendKind::compare), "compare");
}

}  // namespace
}  // namespace pagetide
