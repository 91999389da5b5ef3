#include "examples/package_index/package_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "examples/package_index/plain_index.h"
#include "examples/package_index/queries.h"
#include "examples/package_index/updates.h"
#include "pagetide/allocator/arena.h"
#include "tests/support/must.h"
#include "tests/support/test_scale.h"

namespace package_index {
namespace {

using pagetide::must;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr auto kDepends = DependencyKind::depends;
constexpr auto kRecommends = DependencyKind::recommends;

PackageRecord record(const std::string& name, std::vector<Dependency> dependencies = {}) {
  return {name, "1.0-1", "amd64", "libs", "a package named " + name, std::move(dependencies)};
}

// Each dependency a group of its own.
PackageRecord needing(const std::string& name, const std::vector<std::string>& targets,
                      DependencyKind kind = kDepends) {
  PackageRecord made = record(name);
  for (const std::string& target : targets) {
    made.dependencies.push_back(
        {target, ">= 1", static_cast<std::uint32_t>(made.dependencies.size()), kind});
  }
  return made;
}

class PackageGraphTest : public ::testing::Test {
 protected:
  // In both, so that they are equal.
  void put(const PackageRecord& added) {
    graph_.put(added);
    plain_.put(added);
  }
  std::vector<std::string> found() const { return differences(graph_, plain_); }

  pagetide::Arena arena_ = must(pagetide::Arena::create({.reserve_bytes = 256U << 20}));
  PackageGraph& graph_ = *must(arena_.construct<PackageGraph>(arena_.resource()));
  PlainIndex plain_;
};

TEST_F(PackageGraphTest, keeps_what_it_is_given) {
  put({"a",
       "1:2-3",
       "all",
       "web",
       "first",
       {{"b", ">= 2", 0, kDepends}, {"c", "", 0, kDepends}, {"d", "= 1", 1, kRecommends}}});
  put(record("b"));
  EXPECT_EQ(graph_.record("a"), plain_.record("a"));
  EXPECT_EQ(graph_.package_count(), 2U);
  EXPECT_EQ(graph_.name_count(), 4U);
  EXPECT_EQ(graph_.edge_count(), 3U);
  EXPECT_EQ(graph_.find("c"), nullptr);
  EXPECT_NE(graph_.find_name("c"), nullptr);
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(PackageGraphTest, replaces_a_package_of_the_same_name) {
  put(needing("a", {"b", "c"}));
  put(needing("a", {"c", "d", "d"}));
  EXPECT_EQ(graph_.package_count(), 1U);
  EXPECT_EQ(graph_.find_name("b"), nullptr);
  EXPECT_EQ(graph_.find_name("d")->dependents.size(), 2U);
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(PackageGraphTest, keeps_the_name_of_a_removed_package_while_others_need_it) {
  put(needing("a", {"b"}));
  put(needing("b", {"a"}));
  EXPECT_TRUE(graph_.remove("b"));
  plain_.remove("b");
  EXPECT_EQ(graph_.find("b"), nullptr);
  EXPECT_EQ(graph_.find_name("b")->dependents.size(), 1U);
  EXPECT_THAT(found(), IsEmpty());
  EXPECT_TRUE(graph_.remove("a"));
  plain_.remove("a");
  EXPECT_EQ(graph_.name_count(), 0U);
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(PackageGraphTest, knows_a_package_that_needs_itself) {
  put(needing("a", {"a", "b", "a"}));
  EXPECT_THAT(found(), IsEmpty());
  put(needing("a", {"a"}));
  EXPECT_THAT(found(), IsEmpty());
  EXPECT_TRUE(graph_.remove("a"));
  EXPECT_EQ(graph_.name_count(), 0U);
  EXPECT_EQ(graph_.check(), "");
}

TEST_F(PackageGraphTest, says_when_there_is_nothing_to_change) {
  put(needing("a", {"b"}));
  EXPECT_FALSE(graph_.remove("b"));  // only a name
  EXPECT_FALSE(graph_.remove("c"));
  EXPECT_FALSE(graph_.change_version("b", "2"));
  EXPECT_FALSE(graph_.change_version("c", "2"));
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(PackageGraphTest, gives_all_memory_back) {
  const auto before = must(arena_.heap().check());
  std::vector<std::string> targets;
  for (int i = 0; i < 200; ++i) targets.push_back("a target with a long name " + std::to_string(i));
  for (int i = 0; i < 200; ++i) graph_.put(needing("package " + std::to_string(i), targets));
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(graph_.remove("package " + std::to_string(i)));
  EXPECT_EQ(must(arena_.heap().check()).live_blocks, before.live_blocks);
}

// Removing, replacing and updating at random: graph and plain index stay the same.
TEST_F(PackageGraphTest, equals_the_plain_index_after_random_changes) {
  std::mt19937_64 random(pagetide::test_seed());
  const auto name = [&] { return "p" + std::to_string(random() % 60); };
  for (std::size_t step = 0; step < pagetide::scaled(4000); ++step) {
    const std::string target = name();
    switch (random() % 4) {
      case 0:
        EXPECT_EQ(graph_.remove(target), plain_.remove(target));
        break;
      case 1: {
        const std::string version(random() % 40, 'v');
        EXPECT_EQ(graph_.change_version(target, version), plain_.change_version(target, version));
        break;
      }
      default: {
        std::vector<std::string> targets(random() % 6);
        std::generate(targets.begin(), targets.end(), name);
        put(needing(target, targets, random() % 3 == 0 ? kRecommends : kDepends));
      }
    }
    if (step % 20 != 0) continue;
    ASSERT_THAT(found(), IsEmpty()) << "step " << step;
  }
  ASSERT_THAT(found(), IsEmpty());
}

// The comparison sees every kind of difference.

class DifferencesTest : public PackageGraphTest {
 protected:
  void SetUp() override {
    put(needing("a", {"b", "c"}));
    put(needing("b", {"c"}));
    put(record("c"));
    ASSERT_THAT(found(), IsEmpty());
  }
};

TEST_F(DifferencesTest, names_a_missing_package) {
  graph_.remove("a");
  EXPECT_THAT(found(), ::testing::Contains(HasSubstr("a is missing")));
}

TEST_F(DifferencesTest, names_a_package_too_many) {
  graph_.put(record("d"));
  EXPECT_THAT(found(), ElementsAre("d should not be there"));
}

TEST_F(DifferencesTest, names_a_string_that_differs) {
  PackageRecord changed = record("c");
  changed.version = "2";
  graph_.put(changed);
  EXPECT_THAT(found(), ElementsAre("c: version is '2' and should be '1.0-1'"));
  changed = record("c");
  changed.architecture = "all";
  graph_.put(changed);
  EXPECT_THAT(found(), ElementsAre("c: architecture is 'all' and should be 'amd64'"));
  changed = record("c");
  changed.section = "web";
  graph_.put(changed);
  EXPECT_THAT(found(), ElementsAre("c: section is 'web' and should be 'libs'"));
  changed = record("c");
  changed.summary = "";
  graph_.put(changed);
  EXPECT_THAT(found(), ElementsAre("c: summary is '' and should be 'a package named c'"));
}

TEST_F(DifferencesTest, names_dependencies_that_differ) {
  graph_.put(needing("b", {"a"}));
  EXPECT_THAT(found(), UnorderedElementsAre(HasSubstr("b: its 1 dependencies are not the 1"),
                                            "c: the packages that depend on it are others",
                                            "a: the packages that depend on it are others"));
}

TEST_F(DifferencesTest, names_a_constraint_that_differs) {
  PackageRecord changed = needing("b", {"c"});
  changed.dependencies.front().constraint = ">= 2";
  graph_.put(changed);
  EXPECT_THAT(found(), ElementsAre(HasSubstr("b: its 1 dependencies")));
}

TEST_F(DifferencesTest, see_the_order_and_the_group_of_dependencies) {
  graph_.put(needing("a", {"c", "b"}));
  EXPECT_THAT(found(), ::testing::Contains(HasSubstr("a: its 2 dependencies")));
  PackageRecord grouped = needing("a", {"b", "c"});
  grouped.dependencies.back().group = 0;
  graph_.put(grouped);
  EXPECT_THAT(found(), ::testing::Contains(HasSubstr("a: its 2 dependencies")));
}

TEST_F(DifferencesTest, are_limited_in_number) {
  for (int i = 0; i < 30; ++i) graph_.put(record("more " + std::to_string(i)));
  EXPECT_EQ(differences(graph_, plain_, 5).size(), 5U);
}

// The graph's own check, on a graph that was damaged from outside.

TEST_F(DifferencesTest, see_a_broken_edge) {
  auto& edge = const_cast<Edge&>(graph_.find("b")->dependencies.front());
  edge.to = const_cast<Package*>(graph_.find("a"));
  EXPECT_THAT(found(), ElementsAre(HasSubstr("depends on it")));
}

TEST_F(DifferencesTest, see_a_broken_way_back) {
  auto& dependents = const_cast<Package*>(graph_.find("c"))->dependents;
  ASSERT_EQ(dependents.size(), 2U);
  std::swap(dependents[0], dependents[1]);
  EXPECT_FALSE(graph_.check().empty());
  std::swap(dependents[0], dependents[1]);
  EXPECT_EQ(graph_.check(), "");
  dependents.pop_back();
  EXPECT_FALSE(graph_.check().empty());
}

// Updates.

TEST(Updates, touch_about_one_package_in_a_hundred_each_way) {
  std::size_t counts[4] = {};
  for (int i = 0; i < 100'000; ++i) {
    ++counts[static_cast<std::size_t>(fate_of("package-" + std::to_string(i), 3))];
  }
  EXPECT_NEAR(static_cast<double>(counts[static_cast<std::size_t>(Fate::change_version)]), 600,
              120);
  EXPECT_NEAR(static_cast<double>(counts[static_cast<std::size_t>(Fate::remove)]), 200, 70);
  EXPECT_NEAR(static_cast<double>(counts[static_cast<std::size_t>(Fate::remove_and_add_again)]),
              200, 70);
}

TEST(Updates, differ_from_round_to_round) {
  std::size_t both = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string name = "package-" + std::to_string(i);
    if (fate_of(name, 1) != Fate::keep && fate_of(name, 2) != Fate::keep) ++both;
  }
  EXPECT_LT(both, 40U);  // 10 are expected by chance
}

TEST(Updates, mark_versions_once) {
  EXPECT_EQ(later_version("1.2-3", 4), "1.2-3+round4");
  EXPECT_EQ(later_version("1.2-3+round4", 11), "1.2-3+round11");
}

TEST_F(PackageGraphTest, stays_equal_to_the_plain_index_over_rounds_of_updates) {
  for (int i = 0; i < 3000; ++i) {
    put(needing("package-" + std::to_string(i),
                {"libc6", "package-" + std::to_string(i / 2), "package-" + std::to_string(i + 7)}));
  }
  for (std::uint64_t round = 1; round <= 5; ++round) {
    std::size_t in_graph = 0;
    std::size_t in_plain = 0;
    apply_round(graph_, round, [&] { ++in_graph; });
    apply_round(plain_, round, [&] { ++in_plain; });
    EXPECT_EQ(in_graph, in_plain);
    EXPECT_GT(in_graph, 10U);
    ASSERT_THAT(found(), IsEmpty());
  }
  EXPECT_LT(graph_.package_count(), 3000U);
}

// Queries.

TEST_F(PackageGraphTest, finds_the_longest_chain) {
  put(needing("a", {"b", "d"}));
  put(needing("b", {"c"}));
  put(needing("c", {"d"}));
  put(record("d"));
  EXPECT_THAT(longest_chain(graph_), ElementsAre("a", "b", "c", "d"));
}

TEST_F(PackageGraphTest, counts_a_circle_as_one_link_of_a_chain) {
  put(needing("a", {"b"}));
  put(needing("b", {"c", "a"}));
  put(needing("c", {"a", "e"}));
  put(needing("e", {"f"}));
  put(record("f"));
  put(needing("x", {"y"}));
  put(record("y"));
  EXPECT_THAT(longest_chain(graph_), ElementsAre("a", "e", "f"));
}

TEST_F(PackageGraphTest, follows_no_recommendation_and_no_mere_name_in_a_chain) {
  put(needing("a", {"b", "only-a-name"}, kRecommends));
  put(needing("b", {"only-a-name"}));
  EXPECT_EQ(longest_chain(graph_).size(), 1U);
}

TEST_F(PackageGraphTest, has_no_chain_when_it_is_empty) {
  EXPECT_THAT(longest_chain(graph_), IsEmpty());
  EXPECT_EQ(answer(graph_), Answers{});
}

TEST_F(PackageGraphTest, walks_long_chains_without_recursion) {
  const int length = 100'000;
  for (int i = 0; i < length; ++i) {
    graph_.put(needing("p" + std::to_string(i), {"p" + std::to_string(i + 1)}));
  }
  EXPECT_EQ(longest_chain(graph_).size(), static_cast<std::size_t>(length));
}

TEST_F(PackageGraphTest, answers_about_one_package) {
  put(needing("a", {"b", "b", "c"}));
  put(needing("b", {"d"}));
  put(record("d"));
  put(needing("z", {"b"}));
  const auto about = answer(graph_, "b");
  ASSERT_TRUE(about);
  EXPECT_EQ(about->version, "1.0-1");
  EXPECT_THAT(about->dependencies, ElementsAre("d"));
  EXPECT_THAT(about->dependents, ElementsAre("a", "z"));
  EXPECT_EQ(answer(graph_, "a")->needed, 2U);  // b and d; of c there is no record
  EXPECT_FALSE(answer(graph_, "c"));
}

TEST_F(PackageGraphTest, answers_about_all) {
  put(needing("a", {"libc6", "libc6", "b"}));
  put(needing("b", {"libc6"}));
  const Answers answers = answer(graph_);
  EXPECT_EQ(answers.packages, 2U);
  EXPECT_EQ(answers.edges, 4U);
  EXPECT_EQ(answers.only_named, 1U);
  EXPECT_EQ(answers.libc6_dependents, 2U);
  EXPECT_EQ(answers.most_needed, "libc6");
  EXPECT_EQ(answers.most_needed_count, 3U);
}

}  // namespace
}  // namespace package_index
