#include "pagetide/tracker/kernel_bugs.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>

namespace pagetide {
namespace {

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

// What is said about one bug, by release.
std::string state(std::string_view id, std::string_view release) {
  for (const KernelBug& bug : known_kernel_bugs(release)) {
    if (bug.id == id) return std::string(to_string(bug.state));
  }
  return "not listed";
}

TEST(KernelBugsTest, follow_the_fixes_of_each_series) {
  const std::string_view hugetlb = "CVE-2026-72174";
  EXPECT_EQ(state(hugetlb, "5.18.3"), "not affected");
  EXPECT_EQ(state(hugetlb, "6.12.100"), "affected");
  EXPECT_EQ(state(hugetlb, "6.12.101"), "not affected");
  EXPECT_EQ(state(hugetlb, "6.18.41"), "affected");
  EXPECT_EQ(state(hugetlb, "6.18.44"), "not affected");
  EXPECT_EQ(state(hugetlb, "7.1.4"), "affected");
  EXPECT_EQ(state(hugetlb, "7.2"), "not affected");
}

TEST(KernelBugsTest, a_series_of_which_nothing_is_known_perhaps_has_one) {
  EXPECT_EQ(state("CVE-2026-72174", "6.1.140"), "perhaps");
  EXPECT_EQ(state("CVE-2025-21696", "6.6.70"), "perhaps");
  EXPECT_EQ(state("12f6b01a0bcb", "6.18.44"), "perhaps");
}

TEST(KernelBugsTest, an_old_enough_kernel_has_none_of_the_new_code) {
  for (const KernelBug& bug : known_kernel_bugs("4.19.0")) {
    EXPECT_EQ(bug.state, KernelBug::State::not_affected) << bug.id;
  }
}

TEST(KernelBugsTest, every_bug_has_a_name_of_its_own_and_says_what_it_means) {
  std::map<std::string_view, int> names;
  for (const KernelBug& bug : known_kernel_bugs("6.18.44")) {
    EXPECT_EQ(++names[bug.id], 1) << bug.id;
    EXPECT_FALSE(bug.what.empty());
    EXPECT_FALSE(bug.consequence.empty());
  }
}

}  // namespace
}  // namespace pagetide
