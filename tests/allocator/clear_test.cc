#include "pagetide/allocator/clear/clear.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/skip.h"

namespace pagetide {
namespace {

constexpr std::size_t kGuardBytes = 128;
constexpr std::size_t kAlignments = 64;
constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

std::vector<std::size_t> test_sizes() {
  std::vector<std::size_t> sizes;
  for (std::size_t bytes = 0; bytes <= 300; ++bytes) sizes.push_back(bytes);
  // Around what the kernels and the dispatch table treat as a limit.
  for (const std::size_t limit : {512U, 1024U, 2048U, 4096U, 16384U, 65536U}) {
    for (const std::size_t bytes : {limit - 1, limit, limit + 1}) sizes.push_back(bytes);
  }
  sizes.push_back(100'003);
  sizes.push_back((std::size_t{1} << 20) + 3);
  return sizes;
}

// A block in the middle of memory that is nowhere zero.
class GuardedBlock {
 public:
  explicit GuardedBlock(std::size_t max_bytes)
      : pattern_(max_bytes + kAlignments + 2 * kGuardBytes),
        zeros_(max_bytes),
        memory_(pattern_.size() + kAlignments) {
    for (std::size_t i = 0; i < pattern_.size(); ++i) {
      pattern_[i] = static_cast<unsigned char>((i * 131 + 7) | 1);
    }
  }

  // "" or what is wrong after `clear` had a block at this offset from a cache line.
  template <typename Clear>
  std::string check(std::size_t alignment, std::size_t bytes, Clear clear) {
    const std::size_t first = kGuardBytes + alignment;
    const std::size_t all = first + bytes + kGuardBytes;
    unsigned char* const base = line_aligned();
    std::memcpy(base, pattern_.data(), all);
    clear(base + first, bytes);
    if (std::memcmp(base, pattern_.data(), first) != 0) return "wrote in front of the block";
    if (std::memcmp(base + first, zeros_.data(), bytes) != 0) return "left bytes uncleared";
    if (std::memcmp(base + first + bytes, pattern_.data() + first + bytes, kGuardBytes) != 0) {
      return "wrote behind the block";
    }
    return {};
  }

 private:
  unsigned char* line_aligned() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (kAlignments - address % kAlignments) % kAlignments;
  }

  std::vector<unsigned char> pattern_;
  std::vector<unsigned char> zeros_;
  std::vector<unsigned char> memory_;
};

template <typename Clear>
void expect_exact_clearing(Clear clear) {
  const std::vector<std::size_t> sizes = test_sizes();
  GuardedBlock block(sizes.back());
  for (const std::size_t bytes : sizes) {
    for (std::size_t alignment = 0; alignment < kAlignments; ++alignment) {
      const std::string wrong = block.check(alignment, bytes, clear);
      ASSERT_EQ(wrong, "") << bytes << " bytes at alignment " << alignment;
    }
  }
}

constexpr std::array kKernels = {ClearKernel::stores, ClearKernel::rep_stosq,
                                 ClearKernel::rep_stosb, ClearKernel::avx2, ClearKernel::memset};

class ClearKernelTest : public testing::TestWithParam<ClearKernel> {
 protected:
  void SetUp() override {
    if (const Result<void> possible = check_clear_kernel(GetParam(), cpu_features()); !possible) {
      PAGETIDE_SKIP(possible.error().message().c_str());
    }
  }
  void TearDown() override { ASSERT_TRUE(force_clear_kernel(ClearKernel::automatic)); }
};

std::string test_name(const testing::TestParamInfo<ClearKernel>& kernel) {
  return std::string(clear_kernel_name(kernel.param));
}

INSTANTIATE_TEST_SUITE_P(all, ClearKernelTest, testing::ValuesIn(kKernels), test_name);

TEST_P(ClearKernelTest, clears_the_block_and_nothing_else) {
  expect_exact_clearing(clear_kernel_function(GetParam()));
}

TEST_P(ClearKernelTest, takes_no_bytes_at_no_address) {
  clear_kernel_function(GetParam())(nullptr, 0);
}

TEST_P(ClearKernelTest, clear_memory_uses_it_when_forced) {
  ASSERT_TRUE(force_clear_kernel(GetParam()));
  const ClearDispatch dispatch = describe_clear_dispatch();
  EXPECT_EQ(dispatch.kernel, GetParam());
  EXPECT_EQ(dispatch.reason, "Forced by force_clear_kernel().");
  ASSERT_EQ(dispatch.rows.size(), 2U);
  EXPECT_EQ(dispatch.rows[0].kernel_name, "inline");
  EXPECT_EQ(dispatch.rows[1].first_bytes, kSmallClearBytes + 1);
  EXPECT_EQ(dispatch.rows[1].last_bytes, kNoLimit);
  EXPECT_EQ(dispatch.rows[1].kernel_name, clear_kernel_name(GetParam()));
  expect_exact_clearing([](void* block, std::size_t bytes) { clear_memory(block, bytes); });
}

TEST(ClearMemoryTest, clears_the_block_and_nothing_else) {
  expect_exact_clearing([](void* block, std::size_t bytes) { clear_memory(block, bytes); });
}

TEST(ClearMemoryTest, clears_an_extent_beyond_every_limit_of_the_table) {
  constexpr std::size_t kBytes = (std::size_t{64} << 20) + 5;
  GuardedBlock block(kBytes);
  EXPECT_EQ(block.check(3, kBytes, [](void* p, std::size_t n) { clear_memory(p, n); }), "");
}

// The first use, before main and in several threads at once: nothing in this program has made the
// choice yet, and the library's own initialisers may not have run.
struct ClearedBeforeMain {
  static constexpr std::size_t kThreads = 4;
  std::array<std::array<unsigned char, 200>, kThreads> blocks;

  ClearedBeforeMain() {
    std::atomic<std::size_t> ready = 0;
    std::vector<std::thread> threads;
    for (auto& block : blocks) {
      threads.emplace_back([&block, &ready] {
        block.fill(0x5a);
        ++ready;
        while (ready != kThreads) std::this_thread::yield();
        clear_memory(block.data() + 1, block.size() - 2);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

const ClearedBeforeMain kClearedBeforeMain;

TEST(ClearMemoryTest, works_before_main_and_in_threads_that_start_together) {
  for (const auto& block : kClearedBeforeMain.blocks) {
    EXPECT_EQ(block.front(), 0x5a);
    EXPECT_EQ(block.back(), 0x5a);
    for (std::size_t i = 1; i + 1 < block.size(); ++i) ASSERT_EQ(block[i], 0) << i;
  }
}

// Stores to an object whose life ends are dead to the compiler: a plain memset in this destructor
// is dropped by g++ -O2.
template <std::size_t size_bytes>
struct Secret {
  std::array<unsigned char, size_bytes> bytes;
  Secret() { bytes.fill(0x5a); }
  ~Secret() { clear_memory(bytes.data(), bytes.size()); }
};

template <std::size_t size_bytes>
void expect_secret_gone() {
  alignas(Secret<size_bytes>) static std::array<unsigned char, size_bytes> memory;
  keep_stores(memory.data());
  auto* const secret = new (memory.data()) Secret<size_bytes>;
  keep_stores(memory.data());
  secret->~Secret();
  keep_stores(memory.data());
  for (std::size_t i = 0; i < size_bytes; ++i) ASSERT_EQ(memory[i], 0) << i << " of " << size_bytes;
}

TEST(ClearMemoryTest, stores_to_a_dying_object_are_kept) {
  expect_secret_gone<3>();
  expect_secret_gone<7>();
  expect_secret_gone<15>();
  expect_secret_gone<32>();
  expect_secret_gone<64>();
  expect_secret_gone<500>();
}

// "64 inline, 2047 avx2, rep_stosb": each kernel after the last size it is used for.
std::string table(const ClearDispatch& dispatch) {
  std::string text;
  std::size_t next_bytes = 0;
  for (const ClearDispatchRow& row : dispatch.rows) {
    EXPECT_EQ(row.first_bytes, next_bytes);
    next_bytes = row.last_bytes + 1;
    if (!text.empty()) text += ", ";
    if (row.last_bytes != kNoLimit) text += std::to_string(row.last_bytes) + " ";
    text += row.kernel_name;
  }
  EXPECT_EQ(dispatch.rows.back().last_bytes, kNoLimit);
  return text;
}

std::string automatic_table(const CpuFeatures& features) {
  const ClearDispatch dispatch = describe_clear_dispatch(features, nullptr);
  EXPECT_EQ(dispatch.kernel, ClearKernel::automatic);
  return table(dispatch);
}

#if defined(__x86_64__)

CpuFeatures cpu(CpuVendor vendor, std::uint32_t family) {
  CpuFeatures features;
  features.vendor = vendor;
  features.family = family;
  features.model = 1;
  features.rep_good = true;
  return features;
}

CpuFeatures zen5() {
  CpuFeatures features = cpu(CpuVendor::amd, 26);
  features.erms = features.fsrm = features.fast_short_stosb = features.avx2 = true;
  return features;
}

TEST(ClearDispatchTest, intel) {
  CpuFeatures features = cpu(CpuVendor::intel, 6);
  EXPECT_EQ(automatic_table(features), "64 inline, 1023 stores, rep_stosq");
  features.erms = true;
  EXPECT_EQ(automatic_table(features), "64 inline, 1023 stores, rep_stosb");
  features.avx2 = true;
  EXPECT_EQ(automatic_table(features), "64 inline, 2047 avx2, rep_stosb");
  features.fsrm = true;  // says nothing about stosb on Intel
  EXPECT_EQ(automatic_table(features), "64 inline, 2047 avx2, rep_stosb");
  features.fsrs = features.fast_short_stosb = true;
  EXPECT_EQ(automatic_table(features), "64 inline, 127 avx2, rep_stosb");
}

TEST(ClearDispatchTest, amd) {
  CpuFeatures features = cpu(CpuVendor::amd, 23);
  EXPECT_EQ(automatic_table(features), "64 inline, 1023 stores, rep_stosq");
  features.avx2 = true;
  EXPECT_EQ(automatic_table(features), "64 inline, avx2");
  features.erms = true;
  EXPECT_EQ(automatic_table(features), "64 inline, avx2");
  features.family = 25;
  features.fsrm = features.fast_short_stosb = true;
  EXPECT_EQ(automatic_table(features), "64 inline, 33554431 avx2, rep_stosb");
  EXPECT_EQ(automatic_table(zen5()), "64 inline, 16383 avx2, rep_stosb");
}

TEST(ClearDispatchTest, others) {
  CpuFeatures features = cpu(CpuVendor::hygon, 24);
  features.avx2 = true;
  EXPECT_EQ(automatic_table(features), "64 inline, avx2");
  features.vendor = CpuVendor::zhaoxin;
  EXPECT_EQ(automatic_table(features), "64 inline, memset");
  EXPECT_EQ(automatic_table({}), "64 inline, memset");
}

TEST(ClearDispatchTest, tells_why) {
  EXPECT_EQ(describe_clear_dispatch(zen5(), nullptr).reason,
            "Chosen for AMD family 26 model 1: its rep stosb (FSRM) beats vector stores on large "
            "blocks outside the L2 cache.");
  EXPECT_EQ(describe_clear_dispatch({}, nullptr).reason,
            "Chosen for an unknown CPU: nothing better is known for this CPU than the memset of "
            "the C library.");
}

TEST(ClearDispatchTest, a_kernel_the_cpu_lacks_is_refused) {
  CpuFeatures features = zen5();
  features.avx2 = false;
  EXPECT_TRUE(check_clear_kernel(ClearKernel::rep_stosb, features));
  const Result<void> result = check_clear_kernel(ClearKernel::avx2, features);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::unsupported);
  EXPECT_EQ(result.error().message(),
            "cannot clear memory with avx2: the CPU has no AVX2, or the operating system does not "
            "save its registers. Choose auto, stores, rep_stosq, rep_stosb or memset.");
}

TEST(ClearDispatchTest, environment_names_a_kernel) {
  for (const ClearKernel kernel : kKernels) {
    const std::string name(clear_kernel_name(kernel));
    const ClearDispatch dispatch = describe_clear_dispatch(zen5(), name.c_str());
    EXPECT_EQ(dispatch.kernel, kernel);
    EXPECT_EQ(table(dispatch), "64 inline, " + name);
    EXPECT_EQ(dispatch.reason, "Forced by PAGETIDE_CLEAR_KERNEL=" + name + ".");
  }
}

TEST(ClearDispatchTest, environment_auto_and_empty_change_nothing) {
  const ClearDispatch unset = describe_clear_dispatch(zen5(), nullptr);
  for (const char* const value : {"auto", ""}) {
    const ClearDispatch dispatch = describe_clear_dispatch(zen5(), value);
    EXPECT_EQ(table(dispatch), table(unset));
    EXPECT_EQ(dispatch.reason, unset.reason);
  }
}

TEST(ClearDispatchTest, environment_that_cannot_be_followed_is_ignored_and_told) {
  CpuFeatures features = zen5();
  const std::string chosen = describe_clear_dispatch(features, nullptr).reason;
  const ClearDispatch unknown = describe_clear_dispatch(features, "AVX2");
  EXPECT_EQ(table(unknown), automatic_table(features));
  EXPECT_EQ(unknown.reason,
            chosen +
                " PAGETIDE_CLEAR_KERNEL=AVX2 is ignored: there is no such kernel. Set it to "
                "auto, stores, rep_stosq, rep_stosb, avx2 or memset.");

  features.avx2 = false;
  const ClearDispatch lacking = describe_clear_dispatch(features, "avx2");
  EXPECT_EQ(table(lacking), "64 inline, 1023 stores, rep_stosq");
  EXPECT_NE(lacking.reason.find(
                " PAGETIDE_CLEAR_KERNEL=avx2 is ignored: the CPU has no AVX2, or the operating "
                "system does not save its registers. Set it to auto, stores, rep_stosq, rep_stosb "
                "or memset."),
            std::string::npos)
      << lacking.reason;
}

#else

TEST(ClearDispatchTest, other_architectures_have_stores_and_memset) {
  EXPECT_EQ(automatic_table(cpu_features()), "64 inline, memset");
  const Result<void> result = force_clear_kernel(ClearKernel::rep_stosb);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message(),
            "cannot clear memory with rep_stosb: it needs an x86-64 CPU. Choose auto, stores or "
            "memset.");
}

#endif

TEST(ClearDispatchTest, automatic_takes_a_forced_kernel_back) {
  ASSERT_TRUE(force_clear_kernel(ClearKernel::automatic));
  const ClearDispatch before = describe_clear_dispatch();
  ASSERT_TRUE(force_clear_kernel(ClearKernel::stores));
  EXPECT_EQ(describe_clear_dispatch().kernel, ClearKernel::stores);
  ASSERT_TRUE(force_clear_kernel(ClearKernel::automatic));
  EXPECT_EQ(describe_clear_dispatch().kernel, ClearKernel::automatic);
  EXPECT_EQ(table(describe_clear_dispatch()), table(before));
}

// The choice is made once a process, so these run in a process of their own: a death test in the
// threadsafe style starts this program again, with the environment of that moment. The clearing
// before main is made with that environment too.
class ClearProcessTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void TearDown() override { ::unsetenv("PAGETIDE_CLEAR_KERNEL"); }

  [[noreturn]] static void print_dispatch_and_exit() {
    const ClearDispatch dispatch = describe_clear_dispatch();
    std::fprintf(stderr, "<%s|%s>", table(dispatch).c_str(), dispatch.reason.c_str());
    std::exit(0);
  }
};

using ClearProcessDeathTest = ClearProcessTest;

TEST_F(ClearProcessDeathTest, follows_the_environment) {
  ::setenv("PAGETIDE_CLEAR_KERNEL", "stores", 1);
  EXPECT_EXIT(print_dispatch_and_exit(), testing::ExitedWithCode(0),
              "<64 inline, stores.Forced by PAGETIDE_CLEAR_KERNEL=stores.>");
}

TEST_F(ClearProcessDeathTest, tells_of_an_environment_it_does_not_follow) {
  ::setenv("PAGETIDE_CLEAR_KERNEL", "a-value-that-is-longer-than-what-is-kept-of-it", 1);
  EXPECT_EXIT(print_dispatch_and_exit(), testing::ExitedWithCode(0),
              "PAGETIDE_CLEAR_KERNEL=a-value-that-is-longer-than-wha is ignored: there is no such "
              "kernel. Set it to auto, ");
}

TEST_F(ClearProcessDeathTest, reads_the_environment_once) {
  ::setenv("PAGETIDE_CLEAR_KERNEL", "stores", 1);
  EXPECT_EXIT(
      {
        ::setenv("PAGETIDE_CLEAR_KERNEL", "memset", 1);
        print_dispatch_and_exit();
      },
      testing::ExitedWithCode(0), "<64 inline, stores.Forced by PAGETIDE_CLEAR_KERNEL=stores.>");
}

TEST(ClearThreadsTest, kernels_may_change_while_threads_clear) {
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::array<std::thread, 3> threads;
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      GuardedBlock block(4096);
      while (!stop) {
        const auto clear = [](void* p, std::size_t n) { clear_memory(p, n); };
        if (!block.check(5, 4096, clear).empty()) ++wrong;
      }
    });
  }
  for (int round = 0; round < 2000; ++round) {
    for (const ClearKernel kernel : {ClearKernel::stores, ClearKernel::memset}) {
      EXPECT_TRUE(force_clear_kernel(kernel));
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(force_clear_kernel(ClearKernel::automatic));
}

}  // namespace
}  // namespace pagetide
