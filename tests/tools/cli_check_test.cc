// `pagetide check`: what a program wrote to freed memory is found, and nothing else.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <regex>

#include "tests/support/random_mutator.h"
#include "tests/support/random_source.h"
#include "tests/tools/cli_fixture.h"

namespace pagetide {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using namespace literals;
using layout::kSpanBytes;

// Takes snapshots of an arena that it misuses.
class CliCheckTest : public CliTest {
 protected:
  void SetUp() override {}  // no store of four snapshots

  // A block that was freed. Its slot stays free, and in use is its span.
  unsigned char* freed(std::size_t bytes) {
    auto* block = static_cast<unsigned char*>(must(arena_.allocate(bytes)));
    std::memset(block, 7, bytes);
    arena_.deallocate(block);
    return block;
  }
  std::string take() { return std::to_string(must(snapshotter_.take()).value); }

  // What is found in a snapshot of the arena as it is.
  Json findings_now() {
    const RunResult result = run({"check", store_, take(), "--json"});
    EXPECT_EQ(result.err, "");
    Json json = Json::parse(result.out);
    EXPECT_EQ(json.at("checkable"), true);
    EXPECT_EQ(json.at("clean"), json.at("findings").empty());
    EXPECT_EQ(result.exit_code, json.at("findings").empty() ? 0 : 1);
    return json.at("findings");
  }
  // The only one.
  Json finding_now() {
    Json findings = findings_now();
    EXPECT_EQ(findings.size(), 1U);
    return findings.empty() ? Json() : findings[0];
  }

  static std::string hexadecimal(const void* address) {
    char text[32];
    std::snprintf(text, sizeof(text), "%p", address);
    return text;
  }
  static unsigned char* span_of(const void* block) {
    return reinterpret_cast<unsigned char*>(  // NOLINT
        round_down(reinterpret_cast<std::uintptr_t>(block), kSpanBytes));
  }
  std::size_t index_of_span(const void* block) const {
    return static_cast<std::size_t>(span_of(block) - first_span()) / kSpanBytes;
  }
  const unsigned char* first_span() const {
    return reinterpret_cast<const unsigned char*>(  // NOLINT
        arena_.range().begin + arena_.heap().geometry().data_offset);
  }
  std::byte* span_table() const {
    return arena_.range().data() + arena_.heap().geometry().spans_offset;
  }

  Store writer_ = must(Store::open(store_));
  Arena arena_ = must(
      Arena::create({.name = "orders", .reserve_bytes = 64_MiB, .clear = ClearPolicy::on_free}));
  Snapshotter snapshotter_{arena_, writer_};
};

// --- what is found ----------------------------------------------------------------------------

TEST_F(CliCheckTest, a_heap_with_much_churn_is_clean) {
  const RandomSource random;
  RandomMutator mutator(arena_, random.seed());
  for (int round = 0; round < 4; ++round) {
    mutator.steps(1000);
    EXPECT_EQ(findings_now(), Json::array());
  }
  const RunResult text = run({"check", store_});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(text.err, "");
  EXPECT_THAT(text.out,
              AllOf(ContainsRegex("^snapshot 4 of .*orders.pagetide, arena orders: looked "
                                  "at [0-9]+ free slots and [0-9]+ free spans? \\("),
                    EndsWith("\nclean: all of it is zero\n")));
}

TEST_F(CliCheckTest, a_write_to_a_freed_block_is_found) {
  must(arena_.allocate(64));
  unsigned char* block = freed(64);
  block[8] = 0xde;
  block[11] = 0xad;
  const Json finding = finding_now();
  EXPECT_EQ(finding, Json({{"kind", "free_slot"},
                           {"address", hexadecimal(block)},
                           {"size_bytes", 64},
                           {"span", index_of_span(block)},
                           {"slot", 1},
                           {"nonzero_bytes", 2},
                           {"first_offset", 8},
                           {"last_offset", 11},
                           {"content", "de0000ad"}}));
}

TEST_F(CliCheckTest, a_slot_of_several_pages_is_one_finding) {
  const std::size_t page = page_size();
  must(arena_.allocate(32_KiB));
  unsigned char* block = freed(32_KiB);
  for (std::size_t at : {page + 100, 2 * page - 1, 2 * page, 5 * page}) block[at] = 1;
  const Json finding = finding_now();
  EXPECT_EQ(finding.at("address"), hexadecimal(block));
  EXPECT_EQ(finding.at("size_bytes"), 32_KiB);
  EXPECT_EQ(finding.at("slot"), 1);
  EXPECT_EQ(finding.at("nonzero_bytes"), 4);
  EXPECT_EQ(finding.at("first_offset"), page + 100);
  EXPECT_EQ(finding.at("last_offset"), 5 * page);
  EXPECT_EQ(finding.at("content"), "01" + std::string(30, '0'));
}

TEST_F(CliCheckTest, an_overflow_into_a_free_neighbour_is_found_there) {
  auto* block = static_cast<unsigned char*>(must(arena_.allocate(48)));
  std::memset(block, 1, 48 + 3);
  const Json finding = finding_now();
  EXPECT_EQ(finding.at("kind"), "free_slot");
  EXPECT_EQ(finding.at("address"), hexadecimal(block + 48));
  EXPECT_EQ(finding.at("first_offset"), 0);
  EXPECT_EQ(finding.at("content"), "010101");
}

// 1365 slots of 48 bytes leave 16.
TEST_F(CliCheckTest, an_overflow_out_of_the_last_slot_is_found_in_the_tail) {
  unsigned char* last = nullptr;
  for (int i = 0; i < 1365; ++i) last = static_cast<unsigned char*>(must(arena_.allocate(48)));
  unsigned char* tail = span_of(last) + kSpanBytes - 16;
  ASSERT_EQ(last + 48, tail);
  last[48 + 2] = 5;
  const Json finding = finding_now();
  EXPECT_EQ(finding, Json({{"kind", "span_tail"},
                           {"address", hexadecimal(tail)},
                           {"size_bytes", 16},
                           {"span", index_of_span(last)},
                           {"slot", nullptr},
                           {"nonzero_bytes", 1},
                           {"first_offset", 2},
                           {"last_offset", 2},
                           {"content", "05"}}));
}

TEST_F(CliCheckTest, writes_to_a_freed_large_block_are_found_by_span) {
  unsigned char* block = freed(4 * kSpanBytes);
  for (const std::size_t at : {kSpanBytes + 9, 2 * kSpanBytes - 1, 3 * kSpanBytes}) block[at] = 1;
  const Json findings = findings_now();
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0], Json({{"kind", "free_span"},
                               {"address", hexadecimal(block + kSpanBytes)},
                               {"size_bytes", kSpanBytes},
                               {"span", index_of_span(block) + 1},
                               {"slot", nullptr},
                               {"nonzero_bytes", 2},
                               {"first_offset", 9},
                               {"last_offset", kSpanBytes - 1},
                               {"content", "01" + std::string(30, '0')}}));
  EXPECT_EQ(findings[1].at("address"), hexadecimal(block + 3 * kSpanBytes));
}

TEST_F(CliCheckTest, what_is_allocated_may_hold_anything) {
  for (const std::size_t bytes : {16U, 3000U, 30'000U, 300'000U}) {
    void* block = must(arena_.allocate(bytes));
    std::memset(block, 0xff, arena_.heap().usable_size(block));
  }
  EXPECT_EQ(findings_now(), Json::array());
}

TEST_F(CliCheckTest, a_finding_is_gone_when_its_slot_is_in_use_again) {
  unsigned char* block = freed(64);
  block[1] = 1;
  EXPECT_EQ(findings_now().size(), 1U);
  ASSERT_EQ(must(arena_.allocate(64)), block);
  EXPECT_EQ(findings_now(), Json::array());
  EXPECT_EQ(run({"check", store_, "1"}).exit_code, 1) << "the snapshot has it still";
}

// In a heap of this size the last bitmap ends where the data begins.
TEST_F(CliCheckTest, data_right_behind_the_metadata_is_looked_at) {
  constexpr std::size_t kLargeSpans = 512;
  Store store = must(Store::open(directory_.file("run.pagetide")));
  Arena arena =
      must(Arena::create({.name = "run", .reserve_bytes = 36_MiB, .clear = ClearPolicy::on_free}));
  Snapshotter snapshotter(arena, store);
  auto* large = static_cast<std::byte*>(must(arena.allocate(kLargeSpans * kSpanBytes)));
  for (std::size_t i = 0; i < kSpanBytes / 16; ++i) must(arena.allocate(16));
  arena.deallocate(large);
  large[1] = std::byte{1};
  must(snapshotter.take());
  ASSERT_EQ(arena.heap().metadata_ranges().end(),
            arena.range().begin + arena.heap().geometry().data_offset);
  const Json json = Json::parse(run({"check", store.path(), "--json"}).out);
  ASSERT_EQ(json.at("findings").size(), 1U);
  EXPECT_EQ(json.at("findings")[0].at("address"), hexadecimal(large));
}

// --- output -----------------------------------------------------------------------------------

TEST_F(CliCheckTest, the_latest_is_checked_unless_another_is_named) {
  unsigned char* block = freed(64);
  take();
  block[1] = 1;
  take();
  EXPECT_EQ(run({"check", store_}).exit_code, 1);
  EXPECT_THAT(run({"check", store_, "latest"}).out, StartsWith("snapshot 2 of "));
  EXPECT_THAT(run_with_store_variable({"check", "1"}).out, StartsWith("snapshot 1 of "));
  EXPECT_EQ(run({"check", store_, "1"}).exit_code, 0);
}

TEST_F(CliCheckTest, text_shows_each_place_and_where_to_look_next) {
  unsigned char* block = freed(64);
  block[8] = 0xab;
  take();
  const RunResult first = run({"check", store_});
  EXPECT_EQ(first.exit_code, 1);
  EXPECT_EQ(first.err, "") << "it is a result, not an error";
  EXPECT_THAT(first.out,
              AllOf(HasSubstr("\nfree memory that is not zero: 1\n"),
                    ContainsRegex("\n  free slot +" + hexadecimal(block) + " +64 +" +
                                  std::to_string(index_of_span(block)) + " +0 +1 +8 +8 +ab\n"),
                    EndsWith("To learn when, take a snapshot earlier: none precedes this one.\n"),
                    Not(HasSubstr("clean"))));
  take();
  EXPECT_THAT(run({"check", store_}).out,
              EndsWith("from the one before back:\n  pagetide check " + store_ + " 1\n"));
}

TEST_F(CliCheckTest, the_table_is_limited_unless_told_not_to) {
  std::array<unsigned char*, 25> blocks{};
  for (auto& block : blocks) block = static_cast<unsigned char*>(must(arena_.allocate(64)));
  for (unsigned char* block : blocks) arena_.deallocate(block);
  for (unsigned char* block : blocks) block[0] = 1;
  EXPECT_EQ(findings_now().size(), 25U);
  const auto rows = [](const std::string& text) {
    const std::regex row("\n  free slot +0x");
    return std::distance(std::sregex_iterator(text.begin(), text.end(), row), {});
  };
  const RunResult some = run({"check", store_});
  EXPECT_EQ(some.exit_code, 1);
  EXPECT_THAT(some.out, HasSubstr("not zero: the first 20 of 25; --all lists every one\n"));
  EXPECT_EQ(rows(some.out), 20);
  const RunResult all = run({"check", store_, "--all"});
  EXPECT_EQ(all.exit_code, 1);
  EXPECT_THAT(all.out, HasSubstr("\nfree memory that is not zero: 25\n"));
  EXPECT_EQ(rows(all.out), 25);
}

TEST_F(CliCheckTest, json_says_what_was_looked_at) {
  must(arena_.allocate(1024));  // of 64 that fit a span
  freed(3 * kSpanBytes);
  take();
  take();
  const RunResult result = run({"check", store_, "--json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(Json::parse(result.out), Json({{"store", store_},
                                           {"id", 2},
                                           {"parent", 1},
                                           {"arena", "orders"},
                                           {"checkable", true},
                                           {"clean", true},
                                           {"free_slots", 63},
                                           {"free_spans", 3},
                                           {"free_bytes", 63 * 1024 + 3 * kSpanBytes},
                                           {"findings", Json::array()},
                                           {"problems", Json::array()}}));
  EXPECT_TRUE(Json::parse(run({"check", store_, "1", "--json"}).out).at("parent").is_null());
}

TEST_F(CliCheckTest, progress_is_shown_when_asked_for) {
  std::memset(must(arena_.allocate(64)), 1, 64);
  take();
  const RunResult result = run({"check", store_, "--json", "--progress"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(Json::accept(result.out));
  EXPECT_THAT(result.err, AllOf(HasSubstr("\rchecking: "), HasSubstr("100 %")));
}

// --- what cannot be checked -------------------------------------------------------------------

class CliCheckRefusalTest : public CliTest {
 protected:
  // Snapshot 1 is of an arena under the policy.
  void make_store(ClearPolicy clear) const {
    Store store = must(Store::open(store_));
    Arena arena = must(Arena::create({.name = "keeps", .reserve_bytes = 64_MiB, .clear = clear}));
    must(Snapshotter(arena, store).take());
  }
  // The next is of the arena of that snapshot, opened under this policy and rolled back.
  void continue_from(std::uint64_t id, ClearPolicy clear,
                     std::optional<std::uint64_t> rollback_to = std::nullopt) const {
    Store store = must(Store::open(store_));
    Arena arena = must(store.open_arena({id}, {.clear = clear}));
    Snapshotter snapshotter(arena, store);
    if (rollback_to) must(snapshotter.rollback({*rollback_to}));
    must(snapshotter.take());
  }
  void SetUp() override {}
};

TEST_F(CliCheckRefusalTest, an_arena_that_does_not_clear_is_refused) {
  make_store(ClearPolicy::never);
  const RunResult result = run({"check", store_});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(
      result.err,
      "pagetide: snapshot 1 of " + store_ +
          " cannot be checked: its arena has not cleared all that was freed for its whole life "
          "(or an older Pagetide wrote the snapshot), so free memory may hold anything. Create "
          "the arena with ClearPolicy::on_free, and open it with that each time; "
          "Heap::clear_free_memory() makes up for the past.\n");
}

TEST_F(CliCheckRefusalTest, an_arena_that_clears_later_is_refused) {
  make_store(ClearPolicy::deferred);
  const RunResult result = run({"check", store_});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err,
            "pagetide: snapshot 1 of " + store_ +
                " cannot be checked: its arena clears freed memory later (ClearPolicy::deferred), "
                "and the snapshot has zeros there whatever the memory held. Create the arena with "
                "ClearPolicy::on_free, and open it with that each time.\n");
  EXPECT_THAT(run({"show", store_}).out, ContainsRegex("free masked +yes\n"));
}

TEST_F(CliCheckRefusalTest, json_says_so_too) {
  make_store(ClearPolicy::never);
  const RunResult result = run({"check", store_, "--json"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("cannot be checked"));
  EXPECT_EQ(Json::parse(result.out), Json({{"store", store_},
                                           {"id", 1},
                                           {"parent", nullptr},
                                           {"arena", "keeps"},
                                           {"checkable", false}}));
}

TEST_F(CliCheckRefusalTest, clearing_from_the_second_process_on_is_not_enough) {
  make_store(ClearPolicy::never);
  continue_from(1, ClearPolicy::on_free);
  EXPECT_EQ(run({"check", store_}).exit_code, 3);
}

TEST_F(CliCheckRefusalTest, a_rollback_to_a_snapshot_that_can_be_checked_helps) {
  make_store(ClearPolicy::on_free);
  continue_from(1, ClearPolicy::never);
  EXPECT_EQ(run({"check", store_, "2"}).exit_code, 3);
  continue_from(2, ClearPolicy::on_free, 1);
  EXPECT_EQ(run({"check", store_, "3"}).exit_code, 0);
}

// --- damage -----------------------------------------------------------------------------------

TEST_F(CliCheckTest, an_overwritten_span_table_is_reported_and_the_rest_is_checked) {
  unsigned char* unknown = freed(64);
  unsigned char* known = freed(1024);
  unknown[0] = known[0] = 1;
  span_table()[index_of_span(unknown) * sizeof(layout::SpanEntry) + 1] = std::byte{99};
  take();
  const RunResult result = run({"check", store_, "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("the heap is damaged: entry 0 of the span table"),
                                HasSubstr("Look at an earlier snapshot")));
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json.at("clean"), false);
  EXPECT_EQ(json.at("problems").size(), 1U);
  ASSERT_EQ(json.at("findings").size(), 1U);
  EXPECT_EQ(json.at("findings")[0].at("address"), hexadecimal(known));
}

TEST_F(CliCheckTest, an_overwritten_span_table_is_not_clean) {
  must(arena_.allocate(64));
  span_table()[1] = std::byte{99};
  take();
  const RunResult text = run({"check", store_});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.out,
              EndsWith("\nall of it is zero, as far as the heap's damaged metadata tells\n"));
  EXPECT_EQ(Json::parse(run({"check", store_, "--json"}).out).at("clean"), false);
}

TEST_F(CliCheckTest, a_heap_without_a_superblock_is_damage) {
  must(arena_.allocate(64));
  std::memset(arena_.range().data(), 'x', 8);
  take();
  const RunResult result = run({"check", store_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("does not begin with a Pagetide heap"));
}

TEST_F(CliCheckTest, a_damaged_segment_is_an_error_and_no_result) {
  std::memset(must(arena_.allocate(100'000)), 1, 100'000);
  take();
  flip_bit(segment(1), std::filesystem::file_size(segment(1)) - 10);  // in the last page
  for (const char* form : {"--all", "--json"}) {
    const RunResult result = run({"check", store_, form});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(HasSubstr(segment(1)), HasSubstr("is damaged")));
  }
}

// --- the README -------------------------------------------------------------------------------

TEST_F(CliCheckTest, the_readme_shows_what_its_example_finds) {
  Store store = must(Store::open(directory_.file("totals.pagetide")));
  Arena arena = must(
      Arena::create({.name = "totals", .reserve_bytes = 1_GiB, .clear = ClearPolicy::on_free}));
  Snapshotter snapshotter(arena, store);
  // What the README has:
  auto& totals = *must(arena.find_or_construct<std::pmr::vector<int>>("totals", arena.resource()));
  totals.assign(16, 1);
  must(snapshotter.take());
  int& first = totals.front();
  totals.resize(1000);
  first = 2024;
  must(snapshotter.take());
  const auto without_addresses = [](const std::string& text) {
    return std::regex_replace(text, std::regex("0x[0-9a-f]+"), "0x");
  };
  const RunResult result = run({"check", "totals.pagetide"}, {.directory = directory_.path()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(without_addresses(read_file(PAGETIDE_SOURCE_DIR "/README.md")),
              HasSubstr("\n$ pagetide check totals.pagetide\n" + without_addresses(result.out)));
  EXPECT_EQ(run({"check", "totals.pagetide", "1"}, {.directory = directory_.path()}).exit_code, 0);
}

}  // namespace
}  // namespace pagetide
