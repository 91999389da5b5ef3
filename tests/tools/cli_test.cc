// The `pagetide` command as a user runs it: output, exit codes, what it says about damage.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <regex>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/heap_change_log.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/tracker/capabilities.h"
#include "pagetide/tracker/kernel_bugs.h"
#include "tests/tools/cli_fixture.h"

namespace pagetide {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The seconds and nanoseconds of "2025-11-30T11:45:09.123456789Z".
std::uint64_t ns_of_iso_time(const std::string& text) {
  std::tm time{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  if (rest == nullptr || *rest != '.' || std::string(rest).size() != 11 || rest[10] != 'Z')
    return 0;
  return static_cast<std::uint64_t>(::timegm(&time)) * 1'000'000'000U + std::stoull(rest + 1);
}

// --- log --------------------------------------------------------------------------------------

TEST_F(CliTest, LogAsJsonHasEveryFieldAsTheStoreHasIt) {
  const RunResult result = run({"log", store_, "--json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  const Json log = Json::parse(result.out);
  ASSERT_TRUE(log.is_array());
  ASSERT_EQ(log.size(), 4U);
  for (std::size_t i = 0; i < log.size(); ++i) {
    const Json& json = log[i];
    const SnapshotInfo& info = taken_.at(i + 1).info;
    EXPECT_EQ(json.at("id"), info.id.value);
    EXPECT_EQ(json.at("reported_pages"), info.reported_pages);
    EXPECT_EQ(json.at("changed_pages"), info.changed_pages);
    EXPECT_EQ(json.at("zero_pages"), info.zero_pages);
    EXPECT_EQ(json.at("bytes_written"), info.bytes_written);
    EXPECT_EQ(json.at("stop_ns"), info.stop_ns);
    EXPECT_EQ(json.at("heap_bytes"), info.heap_bytes);
    EXPECT_EQ(json.at("page_bytes"), info.page_bytes);
    EXPECT_EQ(json.at("image_pages"), info.image_pages);
    EXPECT_EQ(json.at("reserve_bytes"), info.reserve_bytes);
    EXPECT_EQ(json.at("has_full_index"), info.has_full_index);
    EXPECT_EQ(json.at("free_bytes_are_zero"), true);
    EXPECT_EQ(json.at("arena"), "orders");
    EXPECT_EQ(ns_of_iso_time(json.at("created")), info.created_ns);
  }
  EXPECT_TRUE(log[0].at("parent").is_null());
  EXPECT_EQ(log[1].at("parent"), 1);
  EXPECT_EQ(log[2].at("parent"), 2);
  EXPECT_EQ(log[3].at("parent"), 1) << "taken after a rollback to 1";
  EXPECT_GT(log[2].at("zero_pages"), 0) << "the block of ones was freed";
}

TEST_F(CliTest, LogIsATableOldestFirst) {
  const RunResult result = run({"log", store_});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_THAT(lines[0], ContainsRegex("id +parent +created +changed pages +zero +written"));
  EXPECT_THAT(lines[1], ContainsRegex("^ *1 +- +20[0-9-]+ [0-9:]+ \\+0000 "));
  EXPECT_THAT(lines[4], ContainsRegex("^ *4 +1 +20"));
  const SnapshotInfo& second = taken_.at(2).info;
  EXPECT_THAT(lines[2],
              ContainsRegex("\\+0000 +" + std::to_string(second.changed_pages) + " +" +
                            std::to_string(second.zero_pages) + " +[0-9.]+ KiB +[0-9.]+ % +"));
}

TEST_F(CliTest, LogOfAnEmptyStoreSaysSo) {
  const std::string empty = directory_.file("empty.pagetide");
  must(Store::open(empty));
  RunResult result = run({"log", empty});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("no snapshot"));
  result = run({"log", empty, "--json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(Json::parse(result.out), Json::array());
  result = run({"show", empty});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, AllOf(StartsWith("pagetide: "), HasSubstr("is empty")));
}

TEST_F(CliTest, LogListsWhatIsWholeAndNamesWhatIsNot) {
  std::filesystem::resize_file(manifest(2), 100);
  std::filesystem::remove(manifest(3));
  for (const bool as_json : {false, true}) {
    const RunResult result = as_json ? run({"log", store_, "--json"}) : run({"log", store_});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(
        lines_of(result.err),
        ElementsAre(AllOf(StartsWith("pagetide: cannot read snapshot 2"), HasSubstr("cut short")),
                    AllOf(StartsWith("pagetide: cannot read snapshot 3"),
                          HasSubstr("the file is missing"))));
    if (!as_json) {
      EXPECT_EQ(lines_of(result.out).size(), 3U);
    } else {
      const Json log = Json::parse(result.out);
      ASSERT_EQ(log.size(), 2U);
      EXPECT_EQ(log[0].at("id"), 1);
      EXPECT_EQ(log[1].at("id"), 4);
    }
  }
}

// --- show -------------------------------------------------------------------------------------

TEST_F(CliTest, ShowAsJsonCountsTheHeapAsTheHeapDoes) {
  for (const auto& [id, taken] : taken_) {
    const RunResult result = run({"show", store_, std::to_string(id), "--json"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    const Json json = Json::parse(result.out);
    EXPECT_EQ(json.at("id"), id);
    EXPECT_EQ(json.at("build_id"), taken.info.build_id);
    const Json& heap = json.at("heap");
    EXPECT_EQ(heap.at("name"), "orders");
    EXPECT_EQ(heap.at("live_blocks"), taken.stats.live_blocks);
    EXPECT_EQ(heap.at("live_bytes"), taken.stats.live_bytes);
    EXPECT_EQ(heap.at("spans_in_use"), taken.stats.spans_in_use);
    EXPECT_THAT(heap.at("problems"), IsEmpty());
    std::uint64_t blocks = heap.at("large").at("live_blocks");
    for (const Json& c : heap.at("size_classes"))
      blocks += c.at("live_blocks").get<std::uint64_t>();
    EXPECT_EQ(blocks, taken.stats.live_blocks);
  }
}

TEST_F(CliTest, ShowAsJsonListsRootsAndChangedRuns) {
  const Json json = Json::parse(run({"show", store_, "2", "--json"}).out);
  const Json& heap = json.at("heap");
  const Json before = Json::parse(run({"show", store_, "1", "--json"}).out).at("heap").at("large");
  EXPECT_EQ(heap.at("large").at("live_blocks"), before.at("live_blocks").get<int>() + 1);
  EXPECT_EQ(heap.at("large").at("live_bytes"),
            before.at("live_bytes").get<std::size_t>() + kLargeBytes);
  ASSERT_EQ(heap.at("roots").size(), 2U);
  EXPECT_EQ(heap.at("roots")[0].at("name"), "strings");
  EXPECT_EQ(heap.at("roots")[1].at("name"), "counter");
  EXPECT_EQ(heap.at("roots")[1].at("size_bytes"), sizeof(long));
  // The counter's page is part of what changed.
  const std::uint64_t address =
      std::stoull(heap.at("roots")[1].at("address").get<std::string>(), nullptr, 16);
  const std::uint64_t page =
      (address - taken_.at(2).info.region_base) / taken_.at(2).info.page_bytes;
  std::uint64_t pages = 0;
  bool has_counter = false;
  for (const Json& run : json.at("changed_runs")) {
    const std::uint64_t first = run.at("first_page");
    const std::uint64_t count = run.at("page_count");
    pages += count;
    has_counter = has_counter || (page >= first && page < first + count && !run.at("zero"));
  }
  EXPECT_EQ(pages, taken_.at(2).info.changed_pages);
  EXPECT_TRUE(has_counter);
}

TEST_F(CliTest, ShowIsTheLatestByDefault) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"show", store_}, {"show", store_, "latest"}, {"show", store_, "4"}}) {
    const RunResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out,
                AllOf(StartsWith("snapshot 4 of " + store_), ContainsRegex("parent +1\n"),
                      ContainsRegex("arena +orders\n"), ContainsRegex("cleared on free +yes\n"),
                      ContainsRegex("strings +0x55"), ContainsRegex(taken_.at(4).info.build_id),
                      HasSubstr("slot bytes")));
  }
}

TEST_F(CliTest, ShowLimitsTheListOfRunsUnlessToldNotTo) {
  // Every other page of a block, so that there are many runs.
  Store store = must(Store::open(store_));
  Arena arena = must(store.open_arena({4}));
  Snapshotter snapshotter(arena, store);
  const std::size_t page = page_size();
  char* block = static_cast<char*>(must(arena.allocate(100 * page)));
  for (std::size_t i = 0; i < 100; i += 2) block[i * page] = 1;
  const std::string id = std::to_string(must(snapshotter.take()).value);
  const std::size_t count = must(store.changes({5})).size();
  ASSERT_GE(count, 50U);
  const RunResult some = run({"show", store_, id});
  EXPECT_THAT(some.out, HasSubstr("the first 20 of " + std::to_string(count) + "; --all"));
  const RunResult all = run({"show", store_, id, "--all"});
  EXPECT_THAT(all.out, HasSubstr("changed runs: " + std::to_string(count) + "\n"));
  EXPECT_EQ(lines_of(all.out).size(), lines_of(some.out).size() + count - 20);
}

TEST_F(CliTest, ShowKeepsControlCharactersOfAStoreOffTheTerminal) {
  Store store = must(Store::open(store_));
  Arena arena = must(store.open_arena({4}));
  Snapshotter snapshotter(arena, store);
  must(arena.find_or_construct<int>("evil\033[2J\xff", 1));
  must(snapshotter.take());
  const RunResult text = run({"show", store_});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("evil\\x1b[2J\\xff "), Not(HasSubstr("\033"))));
  const RunResult json = run({"show", store_, "--json"});
  EXPECT_EQ(Json::parse(json.out).at("heap").at("roots")[1].at("name"), "evil\033[2J\xef\xbf\xbd");
}

TEST_F(CliTest, ShowNamesAHeapThatItsProgramOverwrote) {
  Store store = must(Store::open(store_));
  Arena arena = must(store.open_arena({4}));
  Snapshotter snapshotter(arena, store);
  const auto* base = reinterpret_cast<std::byte*>(arena.range().begin);  // NOLINT
  auto* spans = const_cast<std::byte*>(base + arena.heap().geometry().spans_offset);
  arena.heap().changes().note_entry(0);
  spans[1] = std::byte{99};  // the size class of span 0
  must(snapshotter.take());
  const RunResult result = run({"show", store_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the heap is damaged: entry 0 of the span table"),
                                HasSubstr("class 99")));
  EXPECT_THAT(result.out, HasSubstr("snapshot 5 of"));
  EXPECT_EQ(run({"verify", store_}).exit_code, 0) << "it is stored as it was";

  std::memset(const_cast<std::byte*>(base), 'x', 8);  // the superblock's magic
  must(snapshotter.take());
  const RunResult headless = run({"show", store_, "--json"});
  EXPECT_EQ(headless.exit_code, 1);
  EXPECT_TRUE(Json::parse(headless.out).at("heap").is_null());
  EXPECT_THAT(headless.err, HasSubstr("does not begin with a Pagetide heap"));
}

TEST_F(CliTest, ShowOfADamagedSnapshotFailsWithOne) {
  flip_bit(manifest(3), 600);  // in the body
  const RunResult body = run({"show", store_, "3"});
  EXPECT_EQ(body.exit_code, 1);
  EXPECT_THAT(body.out, HasSubstr("snapshot 3 of")) << "the header is whole";
  EXPECT_THAT(body.err, HasSubstr("the checksum of its body"));
  flip_bit(manifest(3), 100);  // in the header
  EXPECT_EQ(run({"show", store_, "3"}).exit_code, 1);
  std::filesystem::remove(manifest(3));
  EXPECT_EQ(run({"show", store_, "3"}).exit_code, 1);
  EXPECT_EQ(run({"show", store_, "2"}).exit_code, 0) << "its parents are whole";
}

// --- verify -----------------------------------------------------------------------------------

TEST_F(CliTest, VerifyOfASoundStore) {
  const RunResult text = run({"verify", store_});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.err, "");
  EXPECT_THAT(text.out, AllOf(HasSubstr("4 snapshots"), HasSubstr("sound")));
  const RunResult json = run({"verify", store_, "--json"});
  EXPECT_EQ(json.exit_code, 0);
  const Json report = Json::parse(json.out);
  std::uint64_t data_pages = 0;
  for (const auto& [id, taken] : taken_) data_pages += taken.info.data_pages();
  EXPECT_EQ(report.at("sound"), true);
  EXPECT_EQ(report.at("snapshots"), 4);
  EXPECT_EQ(report.at("pages"), data_pages);
  EXPECT_EQ(report.at("bytes"), data_pages * page_size());
  EXPECT_EQ(report.at("problems"), Json::array());
  EXPECT_EQ(report.at("unusable"), Json::array());
}

TEST_F(CliTest, VerifyFindsAFlippedBitAndWhatItCosts) {
  // In the first page of the last segment; nothing builds on snapshot 4.
  flip_bit(segment(4), page_size() + 17);
  const RunResult text = run({"verify", store_});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.out, AllOf(HasSubstr(segment(4)), HasSubstr("checksum of page 0"),
                              HasSubstr("unusable snapshots: 4\n"), Not(HasSubstr("sound"))));
  EXPECT_THAT(text.err, HasSubstr("is damaged: 1 problem"));
  const Json report = Json::parse(run({"verify", store_, "--json"}).out);
  EXPECT_EQ(report.at("sound"), false);
  EXPECT_EQ(report.at("unusable"), Json({4}));
  ASSERT_EQ(report.at("problems").size(), 1U);
  EXPECT_EQ(report.at("problems")[0].at("code"), "damaged");
  EXPECT_THAT(report.at("problems")[0].at("message"), HasSubstr("snapshot 4, page "));
}

TEST_F(CliTest, VerifyFindsFilesThatAreCutShortOrGone) {
  const std::string whole = read_file(segment(2));
  std::filesystem::resize_file(segment(2), whole.size() - page_size());
  RunResult result = run({"verify", store_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr(segment(2)), HasSubstr("cut short")));
  std::filesystem::remove(segment(2));
  result = run({"verify", store_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr(segment(2)), HasSubstr("unusable snapshots: 2, 3\n")));
  write_file(segment(2), whole);
  EXPECT_EQ(run({"verify", store_}).exit_code, 0);
}

TEST_F(CliTest, ProgressGoesToStandardErrorWhenAskedFor) {
  const RunResult result = run({"verify", store_, "--json", "--progress"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(Json::accept(result.out));
  EXPECT_THAT(result.err, AllOf(HasSubstr("\rverifying: "), HasSubstr("100 %")));
  EXPECT_EQ(run({"verify", store_}).err, "") << "no terminal, not asked for";
}

TEST_F(CliTest, ProgressGivesTheTerminalItsLineBack) {
  const UniqueFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(master.valid());
  ASSERT_EQ(::grantpt(master.get()), 0);
  ASSERT_EQ(::unlockpt(master.get()), 0);
  const UniqueFd terminal(::open(::ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal.valid());
  EXPECT_EQ(run({"verify", store_, "--progress"}, {.stderr_fd = terminal.get()}).exit_code, 0);
  const std::string erase = "\r\033[K";
  std::string text;
  // What was written arrives in parts of any size, some of it later.
  pollfd polled{master.get(), POLLIN, 0};
  while ((text.size() <= erase.size() || !text.ends_with(erase)) &&
         ::poll(&polled, 1, 10'000) == 1) {
    char c = 0;
    ASSERT_EQ(::read(master.get(), &c, 1), 1);
    text.push_back(c);
  }
  EXPECT_THAT(text, StartsWith("\r\033[Kverifying: "));
  EXPECT_TRUE(text.ends_with(erase)) << text;
}

// --- doctor -----------------------------------------------------------------------------------

TEST_F(CliTest, DoctorSaysWhatTheLibraryFound) {
  const RunResult result = run({"doctor", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const Json json = Json::parse(result.out);
  const Capabilities found = probe_capabilities();
  EXPECT_EQ(json.at("page_bytes"), page_size());
  EXPECT_EQ(json.at("backend").at("chosen"), to_string(found.chosen));
  EXPECT_EQ(json.at("backend").at("reason"), found.reason);
  ASSERT_EQ(json.at("capabilities").size(), found.items.size());
  for (std::size_t i = 0; i < found.items.size(); ++i) {
    EXPECT_EQ(json.at("capabilities")[i].at("name"), found.items[i].name);
    EXPECT_EQ(json.at("capabilities")[i].at("available"), found.items[i].available);
    EXPECT_EQ(json.at("capabilities")[i].at("without"), found.items[i].without);
  }
  const auto& bugs = found.kernel_bugs;
  ASSERT_EQ(json.at("kernel_bugs").size(), bugs.size());
  for (std::size_t i = 0; i < bugs.size(); ++i) {
    EXPECT_EQ(json.at("kernel_bugs")[i].at("id"), bugs[i].id);
    EXPECT_EQ(json.at("kernel_bugs")[i].at("state"), to_string(bugs[i].state));
  }
  const ClearDispatch clear = describe_clear_dispatch();
  ASSERT_EQ(json.at("clear").at("rows").size(), clear.cached_rows.size());
  EXPECT_EQ(json.at("clear").at("rows")[1].at("kernel"), clear.cached_rows[1].kernel_name);
  EXPECT_TRUE(json.at("clear").at("rows").back().at("last_bytes").is_null());
  ASSERT_EQ(json.at("clear").at("uncached_rows").size(), clear.uncached_rows.size());
  EXPECT_EQ(json.at("clear").at("uncached_rows").back().at("kernel"),
            clear.uncached_rows.back().kernel_name);
  EXPECT_EQ(json.at("clear").at("cpu").at("family"), cpu_features().family);
  EXPECT_EQ(json.at("clear").at("cpu").at("l3_bytes"), cpu_features().l3_bytes);
  EXPECT_THAT(run({"doctor"}).out,
              AllOf(HasSubstr("uffd_async"), HasSubstr(found.reason), HasSubstr(clear.reason),
                    HasSubstr("pages of " + std::to_string(page_size()))));
}

TEST_F(CliTest, DoctorSaysWhyTheFallbackIsUsed) {
  const RunOptions options{
      .environment = {{"PAGETIDE_DISABLE", "userfaultfd"}, {"PAGETIDE_CLEAR_KERNEL", "original"}}};
  const RunResult text = run({"doctor"}, options);
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("write tracking: compare"), HasSubstr("PAGETIDE_DISABLE"),
                              HasSubstr("clearing memory: original"),
                              HasSubstr("Without: the next in line is used"),
                              ContainsRegex("uffd_async +no ")));
  EXPECT_THAT(text.err, StartsWith("pagetide: warning: the fallback 'compare'"));
  const Json json = Json::parse(run({"doctor", "--json"}, options).out);
  EXPECT_EQ(json.at("backend").at("fallback"), true);
  EXPECT_THAT(json.at("backend").at("reason"), HasSubstr("PAGETIDE_DISABLE"));
  EXPECT_EQ(json.at("clear").at("kernel"), "original");
}

TEST_F(CliTest, DoctorSaysWhatPagetideDisableDoesNotKnow) {
  const RunResult result = run({"doctor"}, {.environment = {{"PAGETIDE_DISABLE", "warp, tea"}}});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("PAGETIDE_DISABLE names 'warp, tea'"),
                                HasSubstr("uffd_sigbus"), HasSubstr("pagemap_scan")));
}

TEST_F(CliTest, SpacesInPagetideDisableDoNotMatter) {
  const RunResult result =
      run({"doctor"}, {.environment = {{"PAGETIDE_DISABLE", " userfaultfd "}}});
  EXPECT_THAT(result.out, HasSubstr("write tracking: compare"));
}

// --- stores that are none ---------------------------------------------------------------------

TEST_F(CliTest, WhatCannotBeReadIsThree) {
  const std::string file = directory_.file("file");
  write_file(file, "no store");
  const std::string other = directory_.file("other");
  std::filesystem::create_directory(other);
  write_file(other + "/letter", "text");
  const std::string newer = directory_.file("newer.pagetide");
  std::filesystem::copy(store_, newer, std::filesystem::copy_options::recursive);
  std::string root = read_file(newer + "/root");
  root[8] = 99;  // the version
  write_file(newer + "/root", root);
  const std::map<std::string, std::string> cases = {
      {directory_.file("missing"), "there is no store"},
      {file, "is not a directory"},
      {other, "is not a Pagetide store"},
      {newer, "format version 99"}};
  for (const auto& [path, message] : cases) {
    for (const auto& arguments : std::vector<std::vector<std::string>>{
             {"log", path},
             {"show", path},
             {"verify", path},
             {"check", path},
             {"export", path, "1", "--raw", "-o", directory_.file("image")}}) {
      const RunResult result = run(arguments);
      EXPECT_EQ(result.exit_code, 3) << arguments[0] << " " << path;
      EXPECT_THAT(result.err, AllOf(StartsWith("pagetide: "), HasSubstr(message)));
      EXPECT_EQ(result.out, "");
    }
  }
  EXPECT_FALSE(std::filesystem::exists(directory_.file("missing")));
  EXPECT_FALSE(std::filesystem::exists(directory_.file("image")));
  EXPECT_EQ(run({"show", store_, "99"}).exit_code, 3);
  EXPECT_THAT(run({"show", store_, "99"}).err, HasSubstr("its snapshots are 1 to 4"));
}

TEST_F(CliTest, ADamagedRootIsOne) {
  flip_bit(store_ + "/root", 40);
  for (const char* verb : {"log", "show", "verify", "check"}) {
    const RunResult result = run({verb, store_});
    EXPECT_EQ(result.exit_code, 1) << verb;
    EXPECT_THAT(result.err, AllOf(HasSubstr("/root"), HasSubstr("is damaged")));
  }
}

TEST_F(CliTest, ReadingWorksWhileAnotherWrites) {
  const Store writer = must(Store::open(store_));
  EXPECT_EQ(run({"log", store_}).exit_code, 0);
  EXPECT_EQ(run({"verify", store_}).exit_code, 0);
}

// --- the command line -------------------------------------------------------------------------

TEST_F(CliTest, UsageErrorsAreTwo) {
  const std::string image = directory_.file("image");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "which verb"},
      {{"frobnicate"}, "'frobnicate' is no verb"},
      {{"--frobnicate"}, "'--frobnicate' is no option"},
      {{"log", "--frobnicate", store_}, "--frobnicate"},
      {{"log", store_, "more"}, "more"},
      {{"show", store_, "1", "more"}, "more"},
      {{"log"}, "PAGETIDE_STORE"},
      {{"verify"}, "PAGETIDE_STORE"},
      {{"show"}, "PAGETIDE_STORE"},
      {{"check"}, "PAGETIDE_STORE"},
      {{"check", store_, "first"}, "'first' is no snapshot"},
      {{"check", store_, "1", "2"}, "2"},
      {{"show", "3"}, "'3' reads as a snapshot"},
      {{"show", store_, "first"}, "'first' is no snapshot"},
      {{"show", store_, "-1"}, "-1"},
      {{"show", store_, "99999999999999999999"}, "is no snapshot"},
      {{"export", store_, "1", "--raw"}, "--output"},
      {{"export", store_, "1", "-o", image}, "--raw"},
      {{"export", store_, "--raw", "-o", image}, "which snapshot"},
      {{"doctor", store_}, store_}};
  for (const auto& [arguments, message] : cases) {
    const RunResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.err, AllOf(StartsWith("pagetide: "), HasSubstr(message)));
    EXPECT_EQ(result.out, "");
  }
  EXPECT_FALSE(std::filesystem::exists(image));
}

TEST_F(CliTest, HelpAndVersion) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{"--help"},
                                                                     {"log", "--help"},
                                                                     {"show", "--help"},
                                                                     {"verify", "--help"},
                                                                     {"check", "--help"},
                                                                     {"export", "--help"},
                                                                     {"doctor", "--help"}}) {
    const RunResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_THAT(result.out, HasSubstr("Exit codes:"));
    const bool is_verb = arguments.size() > 1;
    EXPECT_THAT(result.out, HasSubstr(is_verb ? "Examples:\n  " : "Verbs:\n  "));
  }
  EXPECT_THAT(run({"--version"}).out, ContainsRegex("^pagetide [0-9]+\\.[0-9]+\\.[0-9]+\n$"));
}

TEST_F(CliTest, TheManualHasEveryVerbAndOption) {
  std::string manual = read_file(PAGETIDE_SOURCE_DIR "/docs/man/pagetide.1");
  std::erase(manual, '\\');
  const std::regex option("--[a-z]+");
  for (const char* verb : {"log", "show", "verify", "check", "export", "doctor"}) {
    EXPECT_THAT(manual, HasSubstr(std::string("\n.SS ") + verb + "\n"));
    const std::string help = run({verb, "--help"}).out;
    std::size_t count = 0;
    for (std::sregex_iterator at(help.begin(), help.end(), option), end; at != end; ++at, ++count) {
      EXPECT_THAT(manual, HasSubstr(at->str()));
    }
    EXPECT_GE(count, 2U);
  }
}

TEST_F(CliTest, TheStoreCanComeFromTheEnvironment) {
  EXPECT_EQ(run_with_store_variable({"log"}).exit_code, 0);
  EXPECT_EQ(run_with_store_variable({"verify"}).exit_code, 0);
  EXPECT_THAT(run_with_store_variable({"show"}).out, StartsWith("snapshot 4 of"));
  EXPECT_THAT(run_with_store_variable({"show", "2"}).out, StartsWith("snapshot 2 of " + store_));
  EXPECT_THAT(run_with_store_variable({"show", "latest"}).out, StartsWith("snapshot 4 of"));
  EXPECT_EQ(run_with_store_variable({"show", "5"}).exit_code, 3);
  // Anything else is a store, and so is the name of a directory that is there.
  EXPECT_THAT(run_with_store_variable({"show", "x"}).err, HasSubstr("there is no store at x"));
  std::filesystem::create_directory(directory_.file("2"));
  std::filesystem::copy(store_, directory_.file("2"), std::filesystem::copy_options::recursive);
  EXPECT_THAT(run_with_store_variable({"show", "2"}, directory_.path()).out,
              StartsWith("snapshot 4 of 2\n"));
  EXPECT_EQ(run({"log"}, {.environment = {{"PAGETIDE_STORE", ""}}}).exit_code, 2);
}

// --- standard output --------------------------------------------------------------------------

TEST_F(CliTest, OutputThatCannotBeWrittenIsThree) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"log", store_},
                                             {"log", store_, "--json"},
                                             {"show", store_},
                                             {"verify", store_},
                                             {"check", store_},
                                             {"doctor"},
                                             {"--help"},
                                             {"--version"},
                                             {"export", store_, "1", "--raw", "-o", "-"}}) {
    const RunResult result = run(arguments, {.stdout_fd = full.get()});
    EXPECT_EQ(result.exit_code, 3) << arguments[0];
    EXPECT_THAT(result.err, HasSubstr("cannot write to standard output: No space left"));
  }
  const RunResult closed = run({"log", store_}, {.stdout_fd = RunOptions::kClosed});
  EXPECT_EQ(closed.exit_code, 3);
  EXPECT_THAT(closed.err, HasSubstr("standard output"));
}

TEST_F(CliTest, AReaderThatWentAwayEndsItQuietly) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"log", store_}, {"--help"}, {"export", store_, "1", "--raw", "-o", "-"}}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    const UniqueFd write_end(ends[1]);
    ::close(ends[0]);
    const RunResult result = run(arguments, {.stdout_fd = write_end.get()});
    EXPECT_EQ(result.signal, SIGPIPE) << arguments[0];
    EXPECT_EQ(result.err, "");
  }
}

}  // namespace
}  // namespace pagetide
