#include "pagetide/allocator/heap_layout.h"

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/must.h"
#include "tests/support/random_source.h"

namespace pagetide::layout {
namespace {

using namespace literals;

TEST(SizeClassTest, every_size_gets_the_smallest_class_it_fits_in) {
  for (std::size_t bytes = 1; bytes <= kMaxSlotBytes; ++bytes) {
    std::size_t expected = 0;
    while (kSlotBytes[expected] < bytes) ++expected;
    ASSERT_EQ(size_class_of(bytes), expected) << bytes;
  }
  EXPECT_EQ(size_class_of(0), 0U);
}

TEST(SizeClassTest, classes_are_multiples_of_16_that_grow_to_32_KiB) {
  EXPECT_EQ(kSlotBytes.front(), kMinSlotBytes);
  EXPECT_EQ(kSlotBytes.back(), 32_KiB);
  for (std::size_t c = 0; c < kSizeClasses; ++c) {
    EXPECT_EQ(kSlotBytes[c] % 16, 0U);
    if (c > 0) {
      EXPECT_GT(kSlotBytes[c], kSlotBytes[c - 1]);
    }
  }
}

TEST(SizeClassTest, above_128_bytes_no_class_wastes_more_than_a_fifth) {
  for (std::size_t bytes = 129; bytes <= kMaxSlotBytes; ++bytes) {
    ASSERT_LE((kSlotBytes[size_class_of(bytes)] - bytes) * 5, kSlotBytes[size_class_of(bytes)]);
  }
}

TEST(SizeClassTest, every_power_of_two_is_a_class) {
  // So that an alignment up to 32 KiB is that of some class.
  for (std::size_t bytes = kMinSlotBytes; bytes <= kMaxSlotBytes; bytes *= 2) {
    EXPECT_EQ(kSlotBytes[size_class_of(bytes)], bytes);
  }
}

TEST(SizeClassTest, the_bitmap_of_a_span_has_a_bit_for_every_slot) {
  for (std::size_t c = 0; c < kSizeClasses; ++c) {
    EXPECT_LE(slots_per_span(c), kBitmapGroups * kWordsPerGroup * 64);
    EXPECT_LE(slots_per_span(c) * kSlotBytes[c], kSpanBytes);
    EXPECT_GT((slots_per_span(c) + 1) * kSlotBytes[c], kSpanBytes);
    if (kSlotBytes[c] >= 128) {
      EXPECT_LE(slots_per_span(c), kWordsPerGroup * 64) << "not all in group 0";
    }
  }
}

constexpr std::size_t kPerSpan =
    kSpanBytes + sizeof(SpanEntry) + kBitmapGroups * kBytesPerGroupLine;

std::size_t smallest_reservation() {
  std::size_t bytes = page_size();
  while (!geometry_for(bytes)) bytes += 16;
  return bytes;
}

void expect_sound(const Geometry& g, std::size_t reserve_bytes) {
  const std::size_t page = page_size();
  for (const std::size_t offset :
       {g.runtime_offset, g.roots_offset, g.spans_offset, g.bitmaps_offset, g.group_bytes}) {
    EXPECT_EQ(offset % page, 0U);
  }
  EXPECT_EQ(g.data_offset % kSpanBytes, 0U);
  // Each part ends before the next one begins.
  EXPECT_GE(g.runtime_offset, sizeof(Superblock));
  EXPECT_GE(g.roots_offset, g.runtime_offset + page);
  EXPECT_GE(g.spans_offset, g.roots_offset + kRootCapacity * sizeof(RootEntry));
  EXPECT_GE(g.bitmaps_offset, g.spans_offset + g.span_count * sizeof(SpanEntry));
  EXPECT_GE(g.group_bytes, g.span_count * kBytesPerGroupLine);
  EXPECT_GE(g.data_offset, g.bitmaps_offset + kBitmapGroups * g.group_bytes);
  EXPECT_LE(g.data_offset + g.span_count * kSpanBytes, reserve_bytes);
  EXPECT_GE(g.span_count, 1U);
  // What is left over is less than what the roundings may cost and one span more.
  const std::size_t roundings = (1 + kBitmapGroups) * page + 2 * kSpanBytes;
  EXPECT_LE(reserve_bytes - (g.data_offset + g.span_count * kSpanBytes), roundings + kPerSpan);
}

TEST(GeometryTest, parts_follow_each_other_and_end_inside_the_reservation) {
  RandomSource random;
  const std::size_t smallest = smallest_reservation();
  std::vector<std::size_t> sizes = {
      smallest, smallest + 1, smallest + kPerSpan - 1, smallest + kPerSpan, 1_MiB, 1_GiB, 16_GiB,
      1_TiB,    64_TiB};
  for (std::size_t i = 0; i < scaled(2000); ++i) {
    sizes.push_back(smallest + random.below(std::size_t{1} << random.between(10, 45)));
  }
  for (const std::size_t size : sizes) {
    SCOPED_TRACE(size);
    expect_sound(must(geometry_for(size)), size);
  }
}

TEST(GeometryTest, a_larger_reservation_never_has_fewer_spans) {
  std::size_t before = 0;
  for (std::size_t size = smallest_reservation(); size < 8_MiB; size += page_size()) {
    const std::size_t spans = must(geometry_for(size)).span_count;
    EXPECT_GE(spans, before);
    before = spans;
  }
}

TEST(GeometryTest, too_small_a_reservation_is_told_how_much_it_needs) {
  const std::size_t smallest = smallest_reservation();
  const auto r = geometry_for(smallest - 16);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), ErrorCode::invalid_argument);
  const std::string marker = "reserve at least ";
  const std::size_t at = r.error().message().find(marker);
  ASSERT_NE(at, std::string::npos) << r.error().message();
  const std::size_t told = std::stoul(r.error().message().substr(at + marker.size()));
  EXPECT_TRUE(geometry_for(told));
  EXPECT_FALSE(geometry_for(told - 1));
  EXPECT_FALSE(geometry_for(0));
}

constexpr ByteRange kWhere{0x5500'0000'0000, 64_MiB};

Superblock valid_superblock() {
  const Geometry g = must(geometry_for(kWhere.size));
  Superblock s{};
  s.magic = kMagic;
  s.version = kVersion;
  s.page_size = static_cast<std::uint32_t>(page_size());
  s.span_bytes = kSpanBytes;
  s.base = kWhere.begin;
  s.reserve_bytes = kWhere.size;
  s.span_count = g.span_count;
  s.spans_used = g.span_count / 2;
  s.runtime_offset = g.runtime_offset;
  s.roots_offset = g.roots_offset;
  s.spans_offset = g.spans_offset;
  s.bitmaps_offset = g.bitmaps_offset;
  s.group_bytes = g.group_bytes;
  s.data_offset = g.data_offset;
  s.name = {'x'};
  return s;
}

TEST(CheckSuperblockTest, accepts_a_sound_one) {
  Superblock s = valid_superblock();
  EXPECT_TRUE(check_superblock(s, kWhere));
  s.flags = kHoldsCodeAddresses;
  EXPECT_TRUE(check_superblock(s, kWhere));
  for (const std::uint64_t used : {std::uint64_t{0}, s.span_count}) {
    s.spans_used = used;
    EXPECT_TRUE(check_superblock(s, kWhere));
  }
  s.name.fill('n');
  s.name.back() = '\0';
  EXPECT_TRUE(check_superblock(s, kWhere));
}

struct Damage {
  const char* name;
  ErrorCode code;
  std::function<void(Superblock&)> apply;
};

const Damage kDamages[] = {
    {"magic", ErrorCode::damaged, [](Superblock& s) { s.magic[7] ^= 1; }},
    {"all_zero", ErrorCode::damaged, [](Superblock& s) { s = {}; }},
    {"version_0", ErrorCode::damaged, [](Superblock& s) { s.version = 0; }},
    {"version_newer", ErrorCode::version_too_new, [](Superblock& s) { s.version = kVersion + 1; }},
    {"version_newest", ErrorCode::version_too_new, [](Superblock& s) { s.version = UINT32_MAX; }},
    {"page_size", ErrorCode::unsupported, [](Superblock& s) { s.page_size *= 2; }},
    {"span_bytes", ErrorCode::unsupported, [](Superblock& s) { s.span_bytes *= 2; }},
    {"flags", ErrorCode::damaged, [](Superblock& s) { s.flags = 1U << 31U; }},
    {"base", ErrorCode::damaged, [](Superblock& s) { s.base += kSpanBytes; }},
    {"reserve_bytes", ErrorCode::damaged, [](Superblock& s) { s.reserve_bytes += kSpanBytes; }},
    {"span_count_more", ErrorCode::damaged, [](Superblock& s) { ++s.span_count; }},
    {"span_count_less", ErrorCode::damaged, [](Superblock& s) { --s.span_count; }},
    {"spans_used", ErrorCode::damaged, [](Superblock& s) { s.spans_used = s.span_count + 1; }},
    {"runtime_offset", ErrorCode::damaged, [](Superblock& s) { s.runtime_offset += 16; }},
    {"roots_offset", ErrorCode::damaged, [](Superblock& s) { s.roots_offset += 16; }},
    {"spans_offset", ErrorCode::damaged, [](Superblock& s) { s.spans_offset += 16; }},
    {"bitmaps_offset", ErrorCode::damaged, [](Superblock& s) { s.bitmaps_offset += 16; }},
    {"group_bytes", ErrorCode::damaged, [](Superblock& s) { s.group_bytes += 16; }},
    {"data_offset", ErrorCode::damaged, [](Superblock& s) { s.data_offset += kSpanBytes; }},
    {"name_without_end", ErrorCode::damaged, [](Superblock& s) { s.name.fill('n'); }},
};

// For messages of GoogleTest.
void PrintTo(const Damage& damage, std::ostream* out) {
  *out << damage.name;
}

class DamagedSuperblockTest : public testing::TestWithParam<Damage> {};

INSTANTIATE_TEST_SUITE_P(field, DamagedSuperblockTest, testing::ValuesIn(kDamages),
                         [](const auto& damage) { return std::string(damage.param.name); });

TEST_P(DamagedSuperblockTest, is_refused) {
  Superblock s = valid_superblock();
  GetParam().apply(s);
  const auto r = check_superblock(s, kWhere);
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().code(), GetParam().code) << r.error().message();
}

TEST(CheckSuperblockTest, refuses_it_at_another_place) {
  const Superblock s = valid_superblock();
  const auto r = check_superblock(s, {kWhere.begin + 1_GiB, kWhere.size});
  ASSERT_FALSE(r);
  EXPECT_EQ(
      r.error().message(),
      "the heap says it lies at 0x550000000000 with 67108864 bytes, not at 0x550040000000 with "
      "67108864.");
}

// Any bytes at all: an answer, never a fault.
TEST(CheckSuperblockTest, refuses_random_bytes) {
  RandomSource random;
  for (std::size_t round = 0; round < scaled(2000); ++round) {
    Superblock s = valid_superblock();
    auto* bytes = reinterpret_cast<unsigned char*>(&s);
    const std::size_t checked = offsetof(Superblock, name);
    for (std::size_t i = random.between(8, checked); i > 0; --i) {
      bytes[random.below(checked)] = static_cast<unsigned char>(random.next());
    }
    (void)check_superblock(s, kWhere);
    s.magic[random.below(8)] ^= static_cast<char>(random.between(1, 127));
    // Chance may have made the magic whole again, and left another field broken.
    if (s.magic != kMagic) {
      EXPECT_FALSE(check_superblock(s, kWhere).has_value());
    }
  }
}

}  // namespace
}  // namespace pagetide::layout
