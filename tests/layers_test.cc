// The architecture's one-way layers and two rules of form, checked over the source tree. Every
// checker is a function over (path, text), so that the tests can show it wrong input.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace pagetide {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Findings = std::vector<std::string>;

struct Layer {
  std::string_view prefix;  // of paths from the root of the project
  int rank;                 // a file may include what has its own rank or a lower one
};

// The longest prefix first where one contains the other. Files directly in pagetide/ are the
// umbrella headers: above the library's layers, so that no layer can include them.
constexpr std::array<Layer, 9> kLayers = {{{"pagetide/base/", 0},
                                           {"pagetide/tracker/", 1},
                                           {"pagetide/allocator/", 2},
                                           {"pagetide/snapshot/", 3},
                                           {"pagetide/", 4},
                                           {"tools/", 5},
                                           {"tests/", 6},
                                           {"bench/", 6},
                                           {"examples/", 6}}};
constexpr int kUmbrellaRank = 4;

const Layer* layer_of(std::string_view path) {
  const auto* layer = std::find_if(kLayers.begin(), kLayers.end(), [&](const Layer& candidate) {
    return path.starts_with(candidate.prefix);
  });
  if (layer == kLayers.end()) return nullptr;
  const bool is_unknown_folder =
      layer->rank == kUmbrellaRank && path.substr(layer->prefix.size()).find('/') != path.npos;
  return is_unknown_folder ? nullptr : layer;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Why `path` may not have this include; empty when it may.
std::string include_problem(std::string_view path, const std::string& target, bool is_quoted) {
  const Layer* from = layer_of(path);
  if (from == nullptr) return "lies in a folder that is no layer; add it to kLayers";
  if (target.starts_with("./") || target.find("../") != std::string::npos) {
    return "is included by a relative path; write it from the root of the project";
  }
  const bool is_ours = std::any_of(kLayers.begin(), kLayers.end(), [&](const Layer& layer) {
    return target.starts_with(layer.prefix);
  });
  if (!is_ours) {
    return is_quoted ? "is in quotes and does not start at the root of the project" : "";
  }
  if (!is_quoted) return "is the project's own and must be in quotes";
  const Layer* to = layer_of(target);
  if (to == nullptr) return "lies in a folder that is no layer; add it to kLayers";
  return to->rank > from->rank ? "is in a higher layer" : "";
}

Findings check_includes(const std::string& path, const std::string& text) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*(["<])([^">]+)[">].*)re");
  Findings findings;
  for (const std::string& line : lines_of(text)) {
    std::smatch match;
    if (!std::regex_match(line, match, kInclude)) continue;
    const std::string problem = include_problem(path, match[2], match[1] == "\"");
    if (!problem.empty()) findings.push_back(path + ": " + match[2].str() + " " + problem);
  }
  return findings;
}

Findings check_pragma_once(const std::string& path, const std::string& text) {
  const auto lines = lines_of(text);
  if (std::find(lines.begin(), lines.end(), "#pragma once") != lines.end()) return {};
  return {path + ": has no '#pragma once'"};
}

// The page size comes from the system. A 4096 in code that is something else says what in a
// comment on its line.
Findings check_page_size(const std::string& path, const std::string& text) {
  static const std::regex kNumber(R"re(\b(4'?096|0x1'?000)[uUlLzZ]*\b)re");
  static const std::regex kComment(R"re(//\s*\S)re");
  Findings findings;
  std::size_t number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    const std::string code = line.substr(0, line.find("//"));
    if (!std::regex_search(code, kNumber) || std::regex_search(line, kComment)) continue;
    findings.push_back(path + ":" + std::to_string(number) +
                       ": 4096 is not the page size everywhere; ask the system, or say in a "
                       "comment on this line what it is");
  }
  return findings;
}

struct SourceFile {
  std::string path;  // from the root of the project
  std::string text;
};

std::vector<SourceFile> source_files(const std::vector<std::string>& folders) {
  const std::filesystem::path root = PAGETIDE_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const std::string& folder : folders) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const auto extension = entry.path().extension();
      if (extension != ".h" && extension != ".hpp" && extension != ".cc") continue;
      std::ifstream stream(entry.path(), std::ios::binary);
      std::ostringstream text;
      text << stream.rdbuf();
      files.push_back({entry.path().lexically_relative(root).generic_string(), text.str()});
    }
  }
  return files;
}

template <typename Check>
Findings check_all(const std::vector<SourceFile>& files, Check check) {
  Findings findings;
  for (const SourceFile& file : files) {
    const Findings found = check(file.path, file.text);
    findings.insert(findings.end(), found.begin(), found.end());
  }
  return findings;
}

const std::vector<std::string> kAllFolders = {"pagetide", "tools", "examples", "bench", "tests"};

// The rules on made-up files.

Findings including(const std::string& path, const std::string& target) {
  return check_includes(path, "#pragma once\n#include " + target + "\nint x;\n");
}

TEST(LayerRules, LetAFileIncludeItsOwnLayerAndLowerOnes) {
  EXPECT_THAT(including("pagetide/base/error.cc", "\"pagetide/base/error.h\""), IsEmpty());
  EXPECT_THAT(including("pagetide/tracker/tracker.h", "\"pagetide/base/error.h\""), IsEmpty());
  EXPECT_THAT(including("pagetide/allocator/clear/a.cc", "\"pagetide/tracker/tracker.h\""),
              IsEmpty());
  EXPECT_THAT(including("pagetide/snapshot/store.cc", "\"pagetide/allocator/arena.h\""), IsEmpty());
  EXPECT_THAT(including("pagetide/pagetide.hpp", "\"pagetide/snapshot/store.h\""), IsEmpty());
  EXPECT_THAT(including("tools/cli/main.cc", "\"pagetide/pagetide.hpp\""), IsEmpty());
  EXPECT_THAT(including("tools/cli/main.cc", "\"tools/cli/log.h\""), IsEmpty());
  EXPECT_THAT(including("tests/base/a.cc", "\"tests/support/skip.h\""), IsEmpty());
  EXPECT_THAT(including("bench/a.cc", "\"tools/cli/log.h\""), IsEmpty());
  EXPECT_THAT(including("examples/a.cc", "\"pagetide/snapshot/store.h\""), IsEmpty());
  EXPECT_THAT(including("pagetide/base/error.h", "<tl/expected.hpp>"), IsEmpty());
}

TEST(LayerRules, RefuseAnIncludeOfAHigherLayer) {
  const std::vector<std::array<std::string, 2>> wrong = {
      {"pagetide/base/a.h", "pagetide/tracker/tracker.h"},
      {"pagetide/base/a.h", "pagetide/pagetide.hpp"},
      {"pagetide/tracker/a.cc", "pagetide/allocator/arena.h"},
      {"pagetide/tracker/a.cc", "pagetide/snapshot/store.h"},
      {"pagetide/allocator/clear/a.cc", "pagetide/snapshot/store.h"},
      {"pagetide/snapshot/a.cc", "pagetide/pagetide.hpp"},
      {"pagetide/snapshot/a.cc", "tools/cli/log.h"},
      {"pagetide/base/a.cc", "tests/support/skip.h"},
      {"pagetide/base/a.cc", "bench/table.h"},
      {"pagetide/base/a.cc", "examples/index.h"},
      {"tools/cli/main.cc", "tests/support/skip.h"},
      {"tools/cli/main.cc", "examples/index.h"}};
  for (const auto& [path, target] : wrong) {
    EXPECT_THAT(including(path, "\"" + target + "\""),
                ElementsAre(HasSubstr(target + " is in a higher layer")))
        << path;
  }
}

TEST(LayerRules, SeeThroughSpacesInADirective) {
  EXPECT_THAT(check_includes("pagetide/base/a.h", "  #  include  \"tools/x.h\"  // why\n"),
              ElementsAre(HasSubstr("higher layer")));
}

TEST(LayerRules, RefuseRelativePaths) {
  EXPECT_THAT(including("pagetide/tracker/a.cc", "\"../base/error.h\""),
              ElementsAre(HasSubstr("relative path")));
  EXPECT_THAT(including("tests/base/a.cc", "\"pagetide/base/../tracker/a.h\""),
              ElementsAre(HasSubstr("relative path")));
  EXPECT_THAT(including("tests/base/a.cc", "\"./a.h\""), ElementsAre(HasSubstr("relative path")));
  EXPECT_THAT(including("pagetide/base/a.cc", "\"error.h\""),
              ElementsAre(HasSubstr("does not start at the root")));
}

TEST(LayerRules, RefuseTheProjectsOwnHeadersInAngleBrackets) {
  EXPECT_THAT(including("pagetide/base/a.cc", "<pagetide/base/error.h>"),
              ElementsAre(HasSubstr("must be in quotes")));
}

TEST(LayerRules, RefuseFoldersThatAreNoLayer) {
  EXPECT_THAT(including("pagetide/misc/a.cc", "\"pagetide/base/error.h\""),
              ElementsAre(HasSubstr("no layer")));
  EXPECT_THAT(including("tools/cli/main.cc", "\"pagetide/misc/a.h\""),
              ElementsAre(HasSubstr("no layer")));
}

TEST(PragmaOnceRule, WantsTheLineItself) {
  EXPECT_THAT(check_pragma_once("a.h", "#pragma once\n\nint x;\n"), IsEmpty());
  EXPECT_THAT(check_pragma_once("a.h", "// #pragma once\nint x;\n"),
              ElementsAre("a.h: has no '#pragma once'"));
  EXPECT_THAT(check_pragma_once("a.h", ""), ElementsAre("a.h: has no '#pragma once'"));
}

TEST(PageSizeRule, RefusesBareNumbers) {
  for (const char* line :
       {"x = 4096;", "x = 4096UL;", "x = 4'096;", "x = 0x1000;", "f(4096, y);", "x = 4096;  //"}) {
    EXPECT_THAT(check_page_size("a.cc", std::string("\n") + line + "\n"),
                ElementsAre(HasSubstr("a.cc:2: 4096")))
        << line;
  }
}

TEST(PageSizeRule, LetsOtherNumbersAndExplainedOnesPass) {
  for (const char* line : {"x = 4096;  // entries of the table, no page size", "x = 40960;",
                           "x = 14096;", "x = 0x10000;", "x = k4096;", "// pages are 4096 bytes"}) {
    EXPECT_THAT(check_page_size("a.cc", std::string(line) + "\n"), IsEmpty()) << line;
  }
}

// The rules on the tree.

TEST(SourceTree, IsWhereTheTestLooksForIt) {
  EXPECT_GE(source_files(kAllFolders).size(), 30U);
  const auto library = source_files({"pagetide"});
  EXPECT_TRUE(std::any_of(library.begin(), library.end(), [](const SourceFile& file) {
    return file.path == "pagetide/base/error.h" && !file.text.empty();
  }));
}

TEST(SourceTree, KeepsTheLayers) {
  EXPECT_THAT(check_all(source_files(kAllFolders), check_includes), IsEmpty());
}

TEST(SourceTree, HasPragmaOnceInEveryHeaderOfTheLibrary) {
  auto files = source_files({"pagetide"});
  std::erase_if(files, [](const SourceFile& file) { return file.path.ends_with(".cc"); });
  EXPECT_FALSE(files.empty());
  EXPECT_THAT(check_all(files, check_pragma_once), IsEmpty());
}

TEST(SourceTree, HasNoHardCodedPageSizeInTheLibrary) {
  EXPECT_THAT(check_all(source_files({"pagetide"}), check_page_size), IsEmpty());
}

}  // namespace
}  // namespace pagetide
