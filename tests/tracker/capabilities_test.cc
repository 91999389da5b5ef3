#include "pagetide/tracker/capabilities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <string>

#include "pagetide/tracker/disabled_features.h"
#include "pagetide/tracker/tracker.h"
#include "tests/support/mapping.h"
#include "tests/support/must.h"
#include "tests/support/skip.h"

namespace pagetide {
namespace {

using ::testing::HasSubstr;

// Sets PAGETIDE_DISABLE for the life of the object.
class Disabled {
 public:
  explicit Disabled(const char* features) { ::setenv("PAGETIDE_DISABLE", features, 1); }
  Disabled(const Disabled&) = delete;
  Disabled& operator=(const Disabled&) = delete;
  ~Disabled() { ::unsetenv("PAGETIDE_DISABLE"); }
};

constexpr std::string_view kDisabledMessage =
    "cannot open userfaultfd: switched off by PAGETIDE_DISABLE. The compare back end works without "
    "it (BackendKind::compare); `pagetide doctor` shows what this machine has.";

TEST(LostDirtyBitBugTest, is_in_6_7_to_6_8_9) {
  for (const char* release :
       {"6.7.0", "6.7", "6.7.12", "6.7.99-custom", "6.7-rc1", "6.8", "6.8.0", "6.8.0-31-generic",
        "6.8.9", "6.8.9-amd64", "6.8.4+deb13", "6.8-rc7"}) {
    EXPECT_TRUE(has_lost_dirty_bit_bug(release)) << release;
  }
}

TEST(LostDirtyBitBugTest, is_in_no_other_release) {
  for (const char* release : {"6.6.99",
                              "6.6.0-rc1",
                              "6.8.10",
                              "6.8.10-amd64",
                              "6.8.12",
                              "6.8.100",
                              "6.9.0",
                              "6.9.1",
                              "6.12.101",
                              "6.18.44-fc-v669",
                              "6.70.1",
                              "6.80.2",
                              "6.1.0-35-amd64",
                              "7.0",
                              "7.7.1",
                              "7.8.1",
                              "5.7.0",
                              "5.8.1",
                              "16.7.0",
                              "",
                              "six.seven",
                              "-6.7",
                              "6",
                              "6.",
                              "67",
                              "6.78"}) {
    EXPECT_FALSE(has_lost_dirty_bit_bug(release)) << release;
  }
}

TEST(LostDirtyBitBugTest, reads_no_further_than_the_text) {
  const std::string longer = "6.8.95";
  EXPECT_TRUE(has_lost_dirty_bit_bug(std::string_view(longer).substr(0, 5)));
  EXPECT_FALSE(has_lost_dirty_bit_bug(longer));
}

TEST(LostDirtyBitBugTest, numbers_that_do_not_fit_are_no_such_release) {
  EXPECT_FALSE(has_lost_dirty_bit_bug("99999999999999999999.7.1"));
  EXPECT_FALSE(has_lost_dirty_bit_bug("6.99999999999999999999.1"));
}

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
  EXPECT_EQ(found.reason, kDisabledMessage);
  for (const char* name :
       {"uffd_async.open", "uffd_async.round_trip", "uffd_async.zero_page_prefill"}) {
    const Capability* item = found.find(name);
    ASSERT_NE(item, nullptr) << name;
    EXPECT_FALSE(item->available) << name;
    EXPECT_EQ(item->detail, kDisabledMessage) << name;
  }
}

TEST(CapabilitiesTest, every_item_has_a_name_of_its_own_and_a_detail) {
  const Capabilities found = probe_capabilities();
  for (const Capability& item : found.items) {
    EXPECT_EQ(found.find(item.name), &item) << item.name;
    EXPECT_FALSE(item.detail.empty()) << item.name;
  }
  EXPECT_EQ(found.find("no such thing"), nullptr);
  ASSERT_NE(found.find("compare.always"), nullptr);
  EXPECT_TRUE(found.find("compare.always")->available);
  EXPECT_FALSE(found.reason.empty());
}

TEST(CapabilitiesTest, names_the_running_kernel) {
  utsname name{};
  ASSERT_EQ(::uname(&name), 0);
  const Capabilities found = probe_capabilities();
  const Capability* item = found.find("kernel.release");
  ASSERT_NE(item, nullptr);
  EXPECT_EQ(item->available, !has_lost_dirty_bit_bug(name.release));
  EXPECT_THAT(item->detail, HasSubstr(std::string("Linux ") + name.release));
}

TEST(CapabilitiesTest, what_is_chosen_is_what_an_automatic_tracker_gets) {
  const Capabilities found = probe_capabilities();
  const Tracker tracker = must(Tracker::create());
  EXPECT_EQ(tracker.backend(), found.chosen);
  EXPECT_EQ(tracker.reason(), found.reason);
  EXPECT_EQ(check_uffd_async().has_value(), found.chosen == BackendKind::uffd_async);
}

TEST(CapabilitiesTest, a_working_kernel_passes_every_probe) {
  if (auto r = check_uffd_async(); !r) PAGETIDE_SKIP(r.error().message().c_str());
  const Capabilities found = probe_capabilities();
  EXPECT_EQ(found.chosen, BackendKind::uffd_async);
  for (const char* name : {"kernel.release", "uffd_async.open", "uffd_async.round_trip",
                           "uffd_async.zero_page_prefill"}) {
    ASSERT_NE(found.find(name), nullptr) << name;
    EXPECT_TRUE(found.find(name)->available) << found.find(name)->detail;
  }
}

TEST(CapabilitiesTest, an_answer_is_found_anew_when_the_disabled_features_change) {
  const bool usable = check_uffd_async().has_value();
  {
    const Disabled disabled("userfaultfd");
    const auto r = check_uffd_async();
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::unsupported);
    EXPECT_EQ(r.error().message(), kDisabledMessage);
  }
  EXPECT_EQ(check_uffd_async().has_value(), usable);
}

TEST(TrackerChoiceTest, automatic_falls_back_to_compare_and_says_why) {
  const Disabled disabled("userfaultfd");
  Tracker tracker = must(Tracker::create({BackendKind::automatic}));
  EXPECT_EQ(tracker.backend(), BackendKind::compare);
  EXPECT_EQ(tracker.reason(), kDisabledMessage);
  // And it works.
  const Mapping mapping(4);
  const WatchId watch = must(tracker.watch(mapping.range()));
  mapping.write(2, 1);
  const Collected collected = must(tracker.collect(watch, CollectMode::take));
  EXPECT_EQ(collected.written.count(), 1U);
  EXPECT_TRUE(collected.written.test(2));
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
