#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/allocator/clear/cpu_features.h"
#include "pagetide/allocator/clear/kernels.h"
#include "pagetide/base/bytes.h"
#include "pagetide/base/page_range.h"
#include "tests/support/mapping.h"
#include "tests/support/random_source.h"
#include "tests/support/skip.h"
#include "tests/support/test_scale.h"

// What every way of clearing owes: the block becomes zero, and nothing else is touched. Each
// property holds for each kernel alone and for clear_memory(), which chooses among them.

namespace pagetide {
namespace {

using namespace literals;

constexpr std::size_t kLineBytes = 64;
// More than a kernel stores between two looks at what is left.
constexpr std::size_t kGuardBytes = 512;
// Enough for kernels with a loop to go round it twice and to end at each place in it.
constexpr std::size_t kSmallBytes = 1_KiB;

// Memory that is nowhere zero, to copy from and to compare with. As a whole: byte by byte these
// tests would take minutes under a sanitizer.
class Pattern {
 public:
  explicit Pattern(std::size_t max_bytes)
      : pattern_(max_bytes + 2 * kGuardBytes + page_size()), zeros_(max_bytes + 1) {
    for (std::size_t i = 0; i < pattern_.size(); ++i) {
      pattern_[i] = static_cast<unsigned char>((i * 131 + i / 256 + 7) | 1);
    }
  }

  // Has `clear` clear a block with so many bytes of pattern in front of it, from `first` on, and
  // behind it. "" or what is wrong.
  template <typename Clear>
  std::string check(unsigned char* first, std::size_t before, std::size_t bytes, std::size_t behind,
                    Clear clear) const {
    unsigned char* const block = first + before;
    std::memcpy(first, pattern_.data(), before + bytes + behind);
    clear(block, bytes);
    if (std::memcmp(first, pattern_.data(), before) != 0) return "wrote in front of the block";
    if (std::memcmp(block, zeros_.data(), bytes) != 0) return "left bytes uncleared";
    if (std::memcmp(block + bytes, pattern_.data() + before + bytes, behind) != 0) {
      return "wrote behind the block";
    }
    return {};
  }

 private:
  std::vector<unsigned char> pattern_;
  std::vector<unsigned char> zeros_;
};

unsigned char* address(const Mapping& mapping, std::size_t page) {
  return reinterpret_cast<unsigned char*>(mapping.page(page));
}

template <typename Clear>
void expect_exact_at_every_small_size_and_alignment(Clear clear) {
  const Pattern pattern(kSmallBytes);
  const Mapping memory(2);
  for (std::size_t bytes = 0; bytes <= kSmallBytes; ++bytes) {
    for (std::size_t alignment = 0; alignment < kLineBytes; ++alignment) {
      const std::string wrong =
          pattern.check(address(memory, 0), kGuardBytes + alignment, bytes, kGuardBytes, clear);
      ASSERT_EQ(wrong, "") << bytes << " bytes at alignment " << alignment;
    }
  }
}

constexpr std::size_t kMostBytes = 4_MiB;

// Logarithmically uniform. Half of the sizes are a multiple of a line or a byte beside one, where
// the loops of kernels end.
std::size_t random_bytes(RandomSource& random) {
  const std::size_t power = kSmallBytes << random.below(12);
  const std::size_t bytes = random.between(power, 2 * power - 1);
  return random.one_in(2) ? bytes : round_down(bytes, kLineBytes) + random.below(3) - 1;
}

template <typename Clear>
void expect_exact_at_random_sizes_and_alignments(Clear clear) {
  RandomSource random;
  const Pattern pattern(kMostBytes);
  const Mapping memory(divide_up(kMostBytes + 2 * kGuardBytes, page_size()) + 1);
  const std::size_t rounds = scaled(500);
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t bytes = random_bytes(random);
    const std::size_t alignment = random.below(page_size());
    const std::string wrong =
        pattern.check(address(memory, 0), kGuardBytes + alignment, bytes, kGuardBytes, clear);
    ASSERT_EQ(wrong, "") << bytes << " bytes at alignment " << alignment << ", seed "
                         << random.seed();
  }
}

constexpr std::size_t kPagesBetweenGuards = 17;

std::vector<std::size_t> sizes_at_guard_pages() {
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = 0; bytes <= kSmallBytes; ++bytes) sizes.push_back(bytes);
  const std::size_t most = (kPagesBetweenGuards - 1) * page_size();
  for (std::size_t bytes = 2 * kSmallBytes; bytes <= most; bytes *= 2) {
    for (std::size_t near = bytes - 3; near <= bytes + 3; ++near) sizes.push_back(near);
  }
  return sizes;
}

// Pages that fault on any access, in front of memory and behind it.
Mapping memory_between_guards() {
  Mapping memory(kPagesBetweenGuards + 2);
  for (const std::size_t guard : {std::size_t{0}, kPagesBetweenGuards + 1}) {
    EXPECT_EQ(::mprotect(memory.page(guard), page_size(), PROT_NONE), 0);
  }
  return memory;
}

template <typename Clear>
void expect_exact_in_front_of_a_guard_page(Clear clear) {
  const Pattern pattern(kPagesBetweenGuards * page_size());
  const Mapping memory = memory_between_guards();
  unsigned char* const end = address(memory, kPagesBetweenGuards + 1);
  for (const std::size_t bytes : sizes_at_guard_pages()) {
    const std::string wrong =
        pattern.check(end - bytes - kGuardBytes, kGuardBytes, bytes, 0, clear);
    ASSERT_EQ(wrong, "") << bytes << " bytes";
  }
}

template <typename Clear>
void expect_exact_behind_a_guard_page(Clear clear) {
  const Pattern pattern(kPagesBetweenGuards * page_size());
  const Mapping memory = memory_between_guards();
  for (const std::size_t bytes : sizes_at_guard_pages()) {
    const std::string wrong = pattern.check(address(memory, 1), 0, bytes, kGuardBytes, clear);
    ASSERT_EQ(wrong, "") << bytes << " bytes";
  }
}

class ClearKernelPropertyTest : public testing::TestWithParam<ClearKernel> {
 protected:
  void SetUp() override {
    if (const Result<void> possible = check_clear_kernel(GetParam(), cpu_features()); !possible) {
      PAGETIDE_SKIP(possible.error().message().c_str());
    }
    kernel_ = clear_kernel_function(GetParam());
    ASSERT_NE(kernel_, nullptr);
  }

  ClearKernelFunction kernel_ = nullptr;
};

std::string test_name(const testing::TestParamInfo<ClearKernel>& kernel) {
  return std::string(clear_kernel_name(kernel.param));
}

INSTANTIATE_TEST_SUITE_P(all, ClearKernelPropertyTest,
                         testing::ValuesIn(all_clear_kernels().begin(), all_clear_kernels().end()),
                         test_name);

TEST_P(ClearKernelPropertyTest, exact_at_every_small_size_and_alignment) {
  expect_exact_at_every_small_size_and_alignment(kernel_);
}

TEST_P(ClearKernelPropertyTest, exact_at_random_sizes_and_alignments) {
  expect_exact_at_random_sizes_and_alignments(kernel_);
}

TEST_P(ClearKernelPropertyTest, exact_in_front_of_a_guard_page) {
  expect_exact_in_front_of_a_guard_page(kernel_);
}

TEST_P(ClearKernelPropertyTest, exact_behind_a_guard_page) {
  expect_exact_behind_a_guard_page(kernel_);
}

// Inlined, as its callers have it.
constexpr auto kClearMemory = [](void* block, std::size_t bytes) { clear_memory(block, bytes); };

TEST(ClearMemoryPropertyTest, exact_at_every_small_size_and_alignment) {
  expect_exact_at_every_small_size_and_alignment(kClearMemory);
}

TEST(ClearMemoryPropertyTest, exact_at_random_sizes_and_alignments) {
  expect_exact_at_random_sizes_and_alignments(kClearMemory);
}

TEST(ClearMemoryPropertyTest, exact_in_front_of_a_guard_page) {
  expect_exact_in_front_of_a_guard_page(kClearMemory);
}

TEST(ClearMemoryPropertyTest, exact_behind_a_guard_page) {
  expect_exact_behind_a_guard_page(kClearMemory);
}

// clear_slot() under each kernel that can be forced.
class ClearSlotTest : public ClearKernelPropertyTest {
 protected:
  void SetUp() override {
    ClearKernelPropertyTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_TRUE(force_clear_kernel(GetParam()));
  }
  void TearDown() override { ASSERT_TRUE(force_clear_kernel(ClearKernel::automatic)); }
};

INSTANTIATE_TEST_SUITE_P(all, ClearSlotTest,
                         testing::ValuesIn(all_clear_kernels().begin(), all_clear_kernels().end()),
                         test_name);

void expect_exact_at_every_slot_size() {
  const Pattern pattern(kSmallBytes);
  const Mapping memory(2);
  for (std::size_t bytes = 16; bytes <= kSmallBytes; bytes += 16) {
    for (std::size_t alignment = 0; alignment < kLineBytes; ++alignment) {
      const std::string wrong = pattern.check(address(memory, 0), kGuardBytes + alignment, bytes,
                                              kGuardBytes, clear_slot);
      ASSERT_EQ(wrong, "") << bytes << " bytes at alignment " << alignment;
    }
  }
}

TEST_P(ClearSlotTest, exact_at_every_slot_size) {
  expect_exact_at_every_slot_size();
}

TEST(ClearSlotByChoiceTest, exact_at_every_slot_size) {
  expect_exact_at_every_slot_size();
}

}  // namespace
}  // namespace pagetide
