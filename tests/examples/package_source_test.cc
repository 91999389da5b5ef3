#include "examples/package_index/package_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/must.h"
#include "tests/support/temporary_directory.h"

namespace package_index {
namespace {

using pagetide::ErrorCode;
using pagetide::must;
using ::testing::HasSubstr;

class PackageSourceTest : public ::testing::Test {
 protected:
  PackageSource source_of(const std::string& text) {
    std::ofstream(directory_.file("input")) << text;
    return must(PackageSource::open(directory_.file("input")));
  }
  std::vector<PackageRecord> records_of(const std::string& text) {
    PackageSource source = source_of(text);
    std::vector<PackageRecord> records;
    PackageRecord record;
    while (must(source.next(record))) records.push_back(record);
    return records;
  }

  pagetide::TemporaryDirectory directory_;
};

TEST_F(PackageSourceTest, reads_the_fields_of_a_record) {
  const auto records = records_of(
      "Package: libfoo1\n"
      "Version: 1:2.0~rc1-3\n"
      "Architecture: amd64\n"
      "Maintainer: Somebody <some@body.example>\n"
      "Section: libs\n"
      "Depends: libc6 (>= 2.34), libbar:any (= 1) | libbaz , perl\n"
      "Pre-Depends: dpkg (>= 1.15.6~)\n"
      "Recommends: foo-doc\n"
      "Suggests: never-mind\n"
      "Description: a library: of foo\n"
      " More about it.\n"
      "Tag: role::shared-lib,\n"
      " uitoolkit::gtk\n"
      "\n");
  ASSERT_EQ(records.size(), 1U);
  using enum DependencyKind;
  const PackageRecord expected = {"libfoo1",
                                  "1:2.0~rc1-3",
                                  "amd64",
                                  "libs",
                                  "a library: of foo",
                                  {{"libc6", ">= 2.34", 0, depends},
                                   {"libbar", "= 1", 1, depends},
                                   {"libbaz", "", 1, depends},
                                   {"perl", "", 2, depends},
                                   {"dpkg", ">= 1.15.6~", 3, pre_depends},
                                   {"foo-doc", "", 4, recommends}}};
  EXPECT_EQ(records.front(), expected);
}

TEST_F(PackageSourceTest, separates_records_at_empty_lines) {
  const auto records =
      records_of("\n\nPackage: a\nVersion: 1\n\n\n\nPackage: b\n\nVersion: nameless\n\nPackage: c");
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].version, "1");
  EXPECT_EQ(records[1].name, "b");
  EXPECT_EQ(records[1].version, "");
  EXPECT_EQ(records[2].name, "c");
}

TEST_F(PackageSourceTest, takes_strange_dependency_lists) {
  const auto records = records_of("Package: a\nDepends: ,, b (>= 1 | , | c |, (>= 2)\n\n");
  ASSERT_EQ(records.size(), 1U);
  ASSERT_EQ(records[0].dependencies.size(), 2U);
  EXPECT_EQ(records[0].dependencies[0], (Dependency{"b", ">= 1", 0, DependencyKind::depends}));
  EXPECT_EQ(records[0].dependencies[1], (Dependency{"c", "", 1, DependencyKind::depends}));
}

TEST_F(PackageSourceTest, names_the_line_that_is_no_field) {
  PackageSource source = source_of("Package: a\nVersion: 1\nthis is prose\n\n");
  PackageRecord record;
  const auto result = source.next(record);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::invalid_argument);
  EXPECT_THAT(result.error().message(), HasSubstr("line 3: 'this is prose'"));
}

TEST_F(PackageSourceTest, stays_at_its_end) {
  PackageSource source = source_of("Package: a\n");
  PackageRecord record;
  EXPECT_TRUE(must(source.next(record)));
  EXPECT_FALSE(must(source.next(record)));
  EXPECT_FALSE(must(source.next(record)));
}

TEST_F(PackageSourceTest, reports_files_that_it_cannot_read) {
  const auto missing = PackageSource::open(directory_.file("missing"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::not_found);
  EXPECT_THAT(missing.error().message(), HasSubstr("apt-cache dumpavail >FILE"));

  PackageSource folder = must(PackageSource::open(directory_.path()));
  PackageRecord record;
  const auto result = folder.next(record);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message(), HasSubstr("Is a directory"));
}

TEST(HashRecord, tells_records_and_their_order_apart) {
  PackageRecord a{"a", "1", "amd64", "libs", "x", {}};
  PackageRecord b = a;
  b.name = "b";
  EXPECT_EQ(hash_record(0, a), hash_record(0, a));
  EXPECT_NE(hash_record(0, a), hash_record(0, b));
  EXPECT_NE(hash_record(hash_record(0, a), b), hash_record(hash_record(0, b), a));
  PackageRecord shifted = a;
  shifted.name = "a1";
  shifted.version = "";
  EXPECT_NE(hash_record(0, a), hash_record(0, shifted));
  PackageRecord with_dependency = a;
  with_dependency.dependencies.push_back({"c", "", 0, DependencyKind::depends});
  const auto first = hash_record(0, with_dependency);
  with_dependency.dependencies.back().kind = DependencyKind::recommends;
  EXPECT_NE(first, hash_record(0, with_dependency));
}

}  // namespace
}  // namespace package_index
