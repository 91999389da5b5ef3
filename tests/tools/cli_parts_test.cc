// The parts of `pagetide` that take bytes out of a store: what they hold may be anything.

#include <gmock/gmock.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "pagetide/allocator/arena.h"
#include "tests/support/arena_image.h"
#include "tests/support/must.h"
#include "tests/support/random_source.h"
#include "tools/cli/heap_view.h"
#include "tools/cli/progress_line.h"
#include "tools/cli/table.h"
#include "tools/cli/text.h"

namespace pagetide::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace literals;

// --- heap_view --------------------------------------------------------------------------------

class HeapViewTest : public ::testing::Test {
 protected:
  HeapViewTest() : arena_(must(Arena::create({.name = "view", .reserve_bytes = 64_MiB}))) {
    info_.region_base = arena_.range().begin;
    info_.reserve_bytes = arena_.range().size;
  }

  // Blocks of all sizes, some freed again.
  void fill(RandomSource& random) {
    std::vector<void*> blocks;
    for (int i = 0; i < 3000; ++i) {
      const std::size_t bytes = random.one_in(200)
                                    ? random.between(33'000, 500'000)
                                    : random.between(1, random.one_in(4) ? 20'000 : 300);
      if (auto block = arena_.allocate(bytes)) blocks.push_back(*block);
      if (random.one_in(3)) {
        std::swap(blocks[random.below(blocks.size())], blocks.back());
        arena_.deallocate(blocks.back());
        blocks.pop_back();
      }
    }
  }

  std::vector<std::byte> metadata() const {
    const std::size_t size = arena_.heap().geometry().data_offset;
    std::vector<std::byte> bytes(size);
    std::memcpy(bytes.data(), arena_.range().data(), size);
    return bytes;
  }

  static SparseImage image_of_bytes(const std::vector<std::byte>& bytes) {
    SparseImage image;
    image.add({0, bytes.size() / page_size()}, bytes);
    return image;
  }

  std::size_t span_entry(std::size_t span) const {
    return arena_.heap().geometry().spans_offset + span * sizeof(layout::SpanEntry);
  }

  Arena arena_;
  SnapshotInfo info_;
};

TEST_F(HeapViewTest, CountsWhatTheHeapCounts) {
  RandomSource random;
  fill(random);
  must(arena_.find_or_construct<long>("first", 1));
  must(arena_.find_or_construct<int>("second", 2));
  const HeapStats stats = arena_.heap().stats();
  const HeapView view = must(decode_heap(image_of_bytes(metadata()), info_));
  EXPECT_EQ(view.live_blocks(), stats.live_blocks);
  EXPECT_EQ(view.live_bytes(), stats.live_bytes);
  EXPECT_EQ(view.spans_in_use, stats.spans_in_use);
  EXPECT_EQ(view.name, "view");
  EXPECT_FALSE(view.holds_code_addresses);
  EXPECT_THAT(view.problems, IsEmpty());
  ASSERT_EQ(view.roots.size(), 2U);
  EXPECT_EQ(view.roots[0].name, "first");
  EXPECT_EQ(view.roots[1].size_bytes, sizeof(int));
  EXPECT_EQ(view.roots[1].address,
            reinterpret_cast<std::uintptr_t>(must(arena_.find<int>("second"))));
}

TEST_F(HeapViewTest, CountsEachClassByItself) {
  for (int i = 0; i < 5; ++i) must(arena_.allocate(16));
  for (int i = 0; i < 3; ++i) must(arena_.allocate(1000));
  must(arena_.allocate(200'000));
  const HeapView view = must(decode_heap(image_of_bytes(metadata()), info_));
  ASSERT_EQ(view.classes.size(), 2U);
  EXPECT_EQ(view.classes[0].slot_bytes, 16U);
  EXPECT_EQ(view.classes[0].live_blocks, 5U);
  EXPECT_EQ(view.classes[0].slots, layout::kSpanBytes / 16);
  EXPECT_EQ(view.classes[1].slot_bytes, 1024U);
  EXPECT_EQ(view.classes[1].live_blocks, 3U);
  EXPECT_EQ(view.large_blocks, 1U);
  EXPECT_EQ(view.large_bytes, 4 * layout::kSpanBytes);
}

TEST_F(HeapViewTest, SaysWhatIsWrongWithTheMetadata) {
  must(arena_.allocate(1000));  // span 0
  must(arena_.find_or_construct<long>("root", 1));
  const std::vector<std::byte> whole = metadata();
  const auto problems_of = [&](std::size_t offset, std::vector<unsigned char> bytes) {
    std::vector<std::byte> damaged = whole;
    std::memcpy(damaged.data() + offset, bytes.data(), bytes.size());
    const auto view = decode_heap(image_of_bytes(damaged), info_);
    if (!view) return view.error().message();
    return view->problems.empty() ? std::string("none") : view->problems[0];
  };
  const layout::Geometry& g = arena_.heap().geometry();
  EXPECT_EQ(problems_of(0, {'P'}), "none") << "what is there already";
  EXPECT_THAT(problems_of(0, {'x'}), HasSubstr("does not begin with a Pagetide heap"));
  EXPECT_THAT(problems_of(8, {77}), HasSubstr("layout version 77"));
  EXPECT_THAT(problems_of(span_entry(0), {9}), HasSubstr("entry 0 of the span table"));
  EXPECT_THAT(problems_of(span_entry(0) + 1, {layout::kSizeClasses}), HasSubstr("entry 0 of"));
  EXPECT_THAT(problems_of(span_entry(0) + 4, {2}), HasSubstr("entry 0 of the span table"));
  EXPECT_THAT(problems_of(span_entry(1), {2, 0, 0, 0, 255, 255, 255, 255}),
              HasSubstr("entry 1 of the span table"));
  // 64 slots of 1024 bytes: the second word has no slots.
  EXPECT_THAT(problems_of(g.bitmaps_offset + 8, {1}), HasSubstr("span 0 has bits too many"));
  EXPECT_THAT(
      problems_of(g.roots_offset + offsetof(layout::RootEntry, address), {1, 2, 3, 4, 5, 6, 7, 8}),
      HasSubstr("the root 'root' lies outside"));
  EXPECT_THAT(
      problems_of(g.roots_offset + 64, std::vector<unsigned char>(layout::kRootNameBytes, 'n')),
      HasSubstr("the name of root 1 does not end"));
}

// The entries behind the first span of a large block mean nothing, on whatever page they stand.
TEST_F(HeapViewTest, SkipsTheInsideOfALargeBlock) {
  const std::size_t per_page = page_size() / sizeof(layout::SpanEntry);
  const std::size_t spans = per_page + 100;
  must(arena_.allocate(spans * layout::kSpanBytes));
  std::vector<std::byte> damaged = metadata();
  const layout::SpanEntry small{layout::SpanKind::small, 0, 0, 1};
  for (const std::size_t span : {std::size_t{1}, per_page - 1, per_page, spans - 1}) {
    std::memcpy(damaged.data() + span_entry(span), &small, sizeof(small));
  }
  const HeapView view = must(decode_heap(image_of_bytes(damaged), info_));
  EXPECT_EQ(view.spans_in_use, spans);
  EXPECT_EQ(view.large_blocks, 1U);
  EXPECT_THAT(view.classes, IsEmpty());
}

// Whatever the bytes are, decoding ends, and what it counts fits the heap.
TEST_F(HeapViewTest, SurvivesRandomDamage) {
  RandomSource random;
  fill(random);
  const std::vector<std::byte> whole = metadata();
  std::size_t failed = 0;
  std::size_t with_problems = 0;
  const std::size_t rounds = scaled(400);
  for (std::size_t round = 0; round < rounds; ++round) {
    std::vector<std::byte> damaged = whole;
    for (std::size_t i = 0; i < 1 + round % 50; ++i) {
      // Half of the damage hits the superblock, the roots and the used part of the span table.
      const std::size_t end = random.one_in(2) ? span_entry(200) : damaged.size();
      damaged[random.below(end)] = static_cast<std::byte>(random.below(256));
    }
    const auto view = decode_heap(image_of_bytes(damaged), info_);
    if (!view) {
      ++failed;
      continue;
    }
    if (view->problem_count > 0) ++with_problems;
    EXPECT_LE(view->problems.size(), kMaxHeapProblems);
    EXPECT_LE(view->spans_in_use, view->geometry.span_count);
    EXPECT_LE(view->live_bytes(), view->spans_in_use * layout::kSpanBytes);
    for (const SizeClassView& c : view->classes) EXPECT_LE(c.live_blocks, c.slots);
  }
  EXPECT_GT(failed + with_problems, rounds / 10) << "the damage is too weak to test anything";
}

TEST_F(HeapViewTest, ReadsWhatIsMissingAsZero) {
  SparseImage image;
  std::vector<std::byte> page(page_size(), std::byte{1});
  image.add({2, 1}, page);
  std::vector<std::byte> target(2 * page_size(), std::byte{9});
  image.read(2 * page_size() - 5, target);
  std::vector<std::byte> expected(2 * page_size(), std::byte{0});
  std::fill_n(expected.begin() + 5, page_size(), std::byte{1});
  EXPECT_EQ(target, expected);
  EXPECT_FALSE(decode_heap(SparseImage(), info_).has_value());
}

// --- progress_line ----------------------------------------------------------------------------

TEST(ProgressLineTest, IsSilentWhereNobodyLooks) {
  testing::internal::CaptureStderr();  // a file, no terminal
  {
    ProgressLine quiet("working", false);
    // Past the first second, after which a terminal would see it.
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    quiet.callback()(1, 2);
  }
  {
    ProgressLine forced("working", true);
    forced.callback()(1, 2);
    forced.callback()(7, 5);  // more than there is: never above 100 %
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "\rworking: 50 % (1 of 2 pages)\rworking: 100 % (5 of 5 pages)\n");
}

// --- text -------------------------------------------------------------------------------------

TEST(Text, BytesInBinaryUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(1025), "1.0 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(std::uint64_t{64} << 30), "64 GiB");
  EXPECT_EQ(human_bytes(UINT64_MAX), "16.0 EiB");
}

TEST(Text, DurationsAndShares) {
  EXPECT_EQ(human_duration(999), "999 ns");
  EXPECT_EQ(human_duration(1500), "1.5 us");
  EXPECT_EQ(human_duration(1'234'567), "1.23 ms");
  EXPECT_EQ(human_duration(2'000'000'000), "2.00 s");
  EXPECT_EQ(percent(1, 8), "12.5 %");
  EXPECT_EQ(percent(1, 0), "-");
  EXPECT_EQ(counted(1, "page", "pages"), "1 page");
  EXPECT_EQ(counted(0, "page", "pages"), "0 pages");
}

TEST(Text, TimesWithAllTheirDigits) {
  EXPECT_EQ(iso_time(0), "1970-01-01T00:00:00.000000000Z");
  EXPECT_EQ(iso_time(1'700'000'000'000'000'001), "2023-11-14T22:13:20.000000001Z");
}

TEST(Text, PrintableKeepsTextAndEscapesTheRest) {
  EXPECT_EQ(printable("plain"), "plain");
  EXPECT_EQ(printable("Stra\xc3\x9f"
                      "e \xe2\x82\xac \xf0\x9f\x8c\x8a"),
            "Stra\xc3\x9f"
            "e \xe2\x82\xac \xf0\x9f\x8c\x8a");
  EXPECT_EQ(printable("\033[2J\n\x7f"), "\\x1b[2J\\x0a\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\xc2\\x9b") << "a control character of two bytes";
  EXPECT_EQ(printable("\xc1\x9b"), "\\xc1\\x9b") << "longer than it may be";
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae") << "turns the direction around";
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a surrogate pair";
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(printable("a\xe2\x82"), "a\\xe2\\x82") << "cut off";
  EXPECT_EQ(printable("\x80"), "\\x80");
}

TEST(Text, PrintableOutputIsNeverAControlCharacter) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(2000); ++round) {
    std::string text(random.below(40), '\0');
    for (char& c : text) c = static_cast<char>(random.below(256));
    const std::string safe = printable(text);
    EXPECT_EQ(printable(safe), safe);
    for (const char c : safe) EXPECT_FALSE(c >= 0 && (c < ' ' || c == 0x7f));
  }
}

TEST(TableTest, AlignsCharactersNotBytes) {
  Table table({{"name", Align::left}, {"n"}});
  table.add({"\xc3\xbc", "1"});
  table.add({"longer", "1000"});
  EXPECT_EQ(table.render(" "),
            " name       n\n"
            " \xc3\xbc          1\n"
            " longer  1000\n");
}

TEST(ShellQuotedTest, is_one_word_for_a_shell) {
  EXPECT_EQ(shell_quoted("/tmp/orders.pagetide"), "/tmp/orders.pagetide");
  EXPECT_EQ(shell_quoted("two words"), "'two words'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("$HOME"), "'$HOME'");
}

}  // namespace
}  // namespace pagetide::cli
