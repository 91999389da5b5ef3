#include "pagetide/allocator/heap_change_log.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/must.h"
#include "tests/support/random_source.h"

namespace pagetide {
namespace {

constexpr std::size_t kSpans = 300'000;  // 18 GiB of spans: several words of each summary

// What is noted: of each span the mask of its lines, and bit 8 for its entry.
using Noted = std::map<std::size_t, unsigned>;

Noted noted_in(const HeapChangeLog& log) {
  Noted noted;
  std::size_t last = 0;
  log.for_each([&](std::size_t span, std::uint8_t lines, bool entry) {
    EXPECT_TRUE(noted.empty() || span > last) << "not ascending at " << span;
    last = span;
    noted[span] = lines | (entry ? 256U : 0U);
  });
  return noted;
}

std::set<std::size_t> roots_in(const HeapChangeLog& log) {
  std::set<std::size_t> roots;
  log.for_each_root([&](std::size_t root) { roots.insert(root); });
  return roots;
}

class HeapChangeLogTest : public ::testing::Test {
 protected:
  HeapChangeLog log_ = must(HeapChangeLog::create(kSpans));
};

TEST_F(HeapChangeLogTest, a_new_log_is_empty) {
  EXPECT_EQ(noted_in(log_), Noted());
  EXPECT_TRUE(roots_in(log_).empty());
}

TEST_F(HeapChangeLogTest, tells_lines_and_entries_of_a_span_apart) {
  log_.note_line(7, 0);
  log_.note_line(7, 5);
  log_.note_entry(8);
  log_.note_line(9, 7);
  log_.note_entry(9);
  EXPECT_EQ(noted_in(log_), (Noted{{7, 33}, {8, 256}, {9, 128 + 256}}));
}

TEST_F(HeapChangeLogTest, reaches_the_first_and_the_last_span) {
  log_.note_entry(0);
  log_.note_line(kSpans - 1, 7);
  EXPECT_EQ(noted_in(log_), (Noted{{0, 256}, {kSpans - 1, 128}}));
}

TEST_F(HeapChangeLogTest, names_the_roots_that_were_noted) {
  log_.note_root(0);
  log_.note_root(64);
  log_.note_root(layout::kRootCapacity - 1);
  EXPECT_EQ(roots_in(log_), (std::set<std::size_t>{0, 64, layout::kRootCapacity - 1}));
}

TEST_F(HeapChangeLogTest, clear_forgets_everything_and_noting_goes_on) {
  for (std::size_t span = 0; span < kSpans; span += 4096) log_.note_line(span, 1);
  log_.note_root(3);
  log_.clear();
  EXPECT_EQ(noted_in(log_), Noted());
  EXPECT_TRUE(roots_in(log_).empty());
  log_.note_line(4096, 2);
  EXPECT_EQ(noted_in(log_), (Noted{{4096, 4}}));
}

TEST_F(HeapChangeLogTest, random_notes_match_a_map) {
  RandomSource random;
  for (int round = 0; round < 20; ++round) {
    Noted expected;
    const std::size_t notes = std::size_t{1} << random.below(12);
    for (std::size_t i = 0; i < notes; ++i) {
      // Close together and far apart.
      const std::size_t span = random.one_in(2) ? random.below(200) : random.below(kSpans);
      if (random.one_in(3)) {
        log_.note_entry(span);
        expected[span] |= 256U;
      } else {
        const std::size_t group = random.below(layout::kBitmapGroups);
        log_.note_line(span, group);
        expected[span] |= 1U << group;
      }
    }
    ASSERT_EQ(noted_in(log_), expected) << "seed " << random.seed();
    log_.clear();
  }
}

TEST_F(HeapChangeLogTest, threads_lose_nothing_of_one_another) {
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kNoted = 20'000;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    // All note the same spans, each other lines of them.
    threads.emplace_back([&, t] {
      for (std::size_t span = 0; span < kNoted; ++span) {
        log_.note_line(span, t);
        log_.note_line(span, t + kThreads);
        if (t == span % kThreads) log_.note_entry(span);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Noted noted = noted_in(log_);
  ASSERT_EQ(noted.size(), kNoted);
  for (const auto& [span, what] : noted) ASSERT_EQ(what, 511U) << "span " << span;
}

}  // namespace
}  // namespace pagetide
