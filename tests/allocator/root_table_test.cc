#include "pagetide/allocator/root_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pagetide/allocator/type_name.h"
#include "pagetide/base/hash.h"
#include "tests/support/child_process.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"

namespace pagetide {
namespace {

using layout::kRootCapacity;

class RootTableTest : public testing::Test {
 protected:
  RootTableTest() : entries_(kRootCapacity), table_(entries_.data()) {}

  Root root(const std::string& name, std::uint64_t number = 7) {
    return {name, &entries_[number % kRootCapacity], number * 1000, number};
  }
  static std::string numbered(std::size_t i) { return "root " + std::to_string(i); }

  std::vector<layout::RootEntry> entries_;
  RootTable table_;
};

void expect_equal(const Root& a, const Root& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.address, b.address);
  EXPECT_EQ(a.type_hash, b.type_hash);
  EXPECT_EQ(a.size_bytes, b.size_bytes);
}

TEST_F(RootTableTest, finds_what_was_inserted) {
  must(table_.insert(root("index", 3)));
  must(table_.insert(root("log", 4)));
  expect_equal(must(table_.find("index")), root("index", 3));
  expect_equal(must(table_.find("log")), root("log", 4));
}

TEST_F(RootTableTest, does_not_find_what_is_not_there) {
  must(table_.insert(root("index")));
  for (const char* name : {"", "inde", "indexx", "Index", "other"}) {
    const auto found = table_.find(name);
    ASSERT_FALSE(found) << name;
    EXPECT_EQ(found.error().code(), ErrorCode::not_found);
    EXPECT_EQ(found.error().message(), std::string("the arena has no root named '") + name + "'.");
  }
}

TEST_F(RootTableTest, a_name_can_be_used_once_at_a_time) {
  must(table_.insert(root("index", 3)));
  const auto again = table_.insert(root("index", 4));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::already_exists);
  EXPECT_EQ(again.error().message(), "the arena already has a root named 'index'.");
  EXPECT_EQ(must(table_.find("index")).size_bytes, 3U);
  must(table_.erase("index"));
  must(table_.insert(root("index", 4)));
  EXPECT_EQ(must(table_.find("index")).size_bytes, 4U);
}

TEST_F(RootTableTest, set_takes_the_place_of_what_has_the_name) {
  must(table_.set(root("index", 3)));
  must(table_.insert(root("log", 5)));
  must(table_.set(root("index", 4)));
  expect_equal(must(table_.find("index")), root("index", 4));
  expect_equal(must(table_.find("log")), root("log", 5));
  EXPECT_EQ(table_.list().size(), 2U);
}

TEST_F(RootTableTest, set_refuses_what_insert_refuses) {
  for (const std::string& wrong : {std::string(), std::string(40, 'n'), std::string("a\0b", 3)}) {
    const auto r = table_.set(root(wrong));
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().message(), table_.insert(root(wrong)).error().message());
  }
  for (std::size_t i = 0; i < kRootCapacity; ++i) must(table_.set(root(numbered(i))));
  EXPECT_EQ(table_.set(root("one too many")).error().code(), ErrorCode::out_of_memory);
  EXPECT_TRUE(table_.set(root(numbered(7), 8)));
}

TEST_F(RootTableTest, names_have_1_to_39_bytes_and_no_zero) {
  EXPECT_TRUE(table_.insert(root(std::string(39, 'n'))));
  EXPECT_TRUE(table_.find(std::string(39, 'n')));
  EXPECT_TRUE(table_.insert(root("n")));
  EXPECT_TRUE(table_.insert(root("größe \xff ' %")));
  for (const std::string& wrong :
       {std::string(), std::string(40, 'n'), std::string(1000, 'n'), std::string("a\0b", 3)}) {
    const auto r = table_.insert(root(wrong));
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(r.error().message(), "'" + wrong +
                                       "' cannot name a root: a name has 1 to 39 bytes and no zero "
                                       "byte.");
    EXPECT_FALSE(table_.find(wrong));
    EXPECT_FALSE(table_.erase(wrong));
  }
  EXPECT_EQ(table_.list().size(), 3U);
}

TEST_F(RootTableTest, a_full_table_says_what_to_do_and_works_on_after_an_erase) {
  for (std::size_t i = 0; i < kRootCapacity; ++i) must(table_.insert(root(numbered(i), i)));
  const auto r = table_.insert(root("one too many"));
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(
      r.error().message(),
      "all 256 named roots of the arena are in use; keep further objects in a container that is "
      "one root.");
  for (std::size_t i = 0; i < kRootCapacity; ++i) {
    EXPECT_EQ(must(table_.find(numbered(i))).size_bytes, i);
  }
  must(table_.erase(numbered(100)));
  EXPECT_TRUE(table_.insert(root("one too many")));
}

TEST_F(RootTableTest, an_erased_root_leaves_nothing_behind) {
  must(table_.insert(root("secret", 5)));
  must(table_.erase("secret"));
  EXPECT_TRUE(is_all_zero(entries_.data(), entries_.size() * sizeof(layout::RootEntry)));
  const auto again = table_.erase("secret");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::not_found);
}

TEST_F(RootTableTest, a_table_over_the_same_bytes_has_the_same_roots) {
  must(table_.insert(root("index", 3)));
  const RootTable other(entries_.data());
  expect_equal(must(other.find("index")), root("index", 3));
  EXPECT_EQ(other.list().size(), 1U);
}

TEST_F(RootTableTest, damaged_bytes_are_read_within_their_bounds) {
  must(table_.insert(root("index", 3)));
  // No terminator: the name ends where its field does.
  entries_[1].name.fill('n');
  EXPECT_EQ(must(table_.find(std::string(40, 'n'))).name, std::string(40, 'n'));
  EXPECT_EQ(table_.list().size(), 2U);
  EXPECT_FALSE(table_.find(std::string(48, 'n')));
}

TEST_F(RootTableTest, random_use_equals_a_map) {
  RandomSource random;
  std::map<std::string, std::uint64_t> model;
  for (std::size_t step = 0; step < scaled(5000); ++step) {
    const std::string name = numbered(random.below(400));
    switch (random.below(4)) {
      case 0:
        ASSERT_EQ(table_.erase(name).has_value(), model.erase(name) == 1);
        break;
      case 1: {
        const auto found = table_.find(name);
        ASSERT_EQ(found.has_value(), model.contains(name));
        if (found) {
          ASSERT_EQ(found->size_bytes, model.at(name));
        }
        break;
      }
      default: {
        const bool fits = model.size() < kRootCapacity && !model.contains(name);
        ASSERT_EQ(table_.insert(root(name, step)).has_value(), fits);
        if (fits) model.emplace(name, step);
      }
    }
  }
  std::vector<Root> roots = table_.list();
  ASSERT_EQ(roots.size(), model.size());
  for (const Root& found : roots) EXPECT_EQ(found.size_bytes, model.at(found.name));
}

TEST_F(RootTableTest, of_racing_threads_one_gets_the_name) {
  for (std::size_t round = 0; round < scaled(50); ++round) {
    std::atomic<int> inserted{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        if (table_.insert(root(numbered(round)))) ++inserted;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(inserted.load(), 1);
    must(table_.erase(numbered(round)));
  }
}

// The lock that a thread holds when it is copied nobody would ever release in the child.
TEST_F(RootTableTest, a_forked_child_uses_it_whatever_other_threads_did) {
  must(table_.insert(root("stays")));
  std::atomic<bool> over = false;
  std::thread thread([&] {
    while (!over) {
      must(table_.set(root("changes")));
      must(table_.erase("changes"));
    }
  });
  for (std::size_t fork = 0; fork < scaled(100); ++fork) {
    ASSERT_EQ(run_in_child([&]() -> std::string {
                ::alarm(10);
                must(table_.set(root("new")));
                return must(table_.find("stays")).name == "stays" ? "" : "it is lost";
              }),
              "");
  }
  over = true;
  thread.join();
  must(table_.set(root("new")));
}

TEST(TypeNameTest, tells_types_apart_and_is_the_same_each_time) {
  struct Local {};
  EXPECT_EQ(type_hash<int>(), type_hash<int>());
  EXPECT_NE(type_hash<int>(), type_hash<unsigned>());
  EXPECT_NE(type_hash<int>(), type_hash<int*>());
  EXPECT_NE(type_hash<int>(), type_hash<const int>());
  EXPECT_NE(type_hash<Local>(), type_hash<std::vector<Local>>());
  EXPECT_NE(type_name<Local>().find("Local"), std::string_view::npos);
  static_assert(type_hash<int>() != type_hash<long>());
}

}  // namespace
}  // namespace pagetide
