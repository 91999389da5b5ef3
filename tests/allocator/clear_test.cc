#include "pagetide/allocator/clear/clear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "pagetide/allocator/clear/clear_plan.h"
#include "tests/allocator/recorded_cpus.h"
#include "tests/support/skip.h"

namespace pagetide {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// That all kernels and clear_memory() clear what they are given is in clear_kernels_test.cc.

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

const auto kKernels = testing::ValuesIn(all_clear_kernels().begin(), all_clear_kernels().end());
INSTANTIATE_TEST_SUITE_P(all, ClearKernelTest, kKernels, test_name);

TEST_P(ClearKernelTest, takes_no_bytes_at_no_address) {
  clear_kernel_function(GetParam())(nullptr, 0);
}

TEST_P(ClearKernelTest, clear_memory_uses_it_when_forced) {
  ASSERT_TRUE(force_clear_kernel(GetParam()));
  const ClearDispatch dispatch = describe_clear_dispatch();
  EXPECT_EQ(dispatch.kernel, GetParam());
  EXPECT_EQ(dispatch.reason, "Forced by force_clear_kernel().");
  for (const auto& rows : {dispatch.cached_rows, dispatch.uncached_rows}) {
    ASSERT_EQ(rows.size(), 2U);
    EXPECT_EQ(rows[0].kernel_name, "inline");
    EXPECT_EQ(rows[1].first_bytes, kSmallClearBytes + 1);
    EXPECT_EQ(rows[1].last_bytes, kNoLimit);
    EXPECT_EQ(rows[1].kernel_name, clear_kernel_name(GetParam()));
  }
  for (const InCache in_cache : {InCache::likely, InCache::unlikely}) {
    std::vector<unsigned char> block(100'000, 0x5a);
    clear_memory(block.data() + 1, block.size() - 2, in_cache);
    EXPECT_EQ(std::count(block.begin(), block.end(), 0x5a), 2);
    EXPECT_EQ(block.front(), 0x5a);
    EXPECT_EQ(block.back(), 0x5a);
  }
}

TEST(ClearKernelListTest, has_every_kernel_once_and_by_its_name) {
  std::set<std::string_view> names;
  for (const ClearKernel kernel : all_clear_kernels()) names.insert(clear_kernel_name(kernel));
  EXPECT_EQ(names, (std::set<std::string_view>{"original", "rep_stosq", "rep_stosb", "sse2", "avx2",
                                               "avx512", "nontemporal", "clzero", "memset"}));
  EXPECT_EQ(clear_kernel_name(ClearKernel::automatic), "auto");
  EXPECT_EQ(clear_kernel_name(static_cast<ClearKernel>(200)), "unknown");
  EXPECT_EQ(clear_kernel_function(static_cast<ClearKernel>(200)), nullptr);
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

// "128 inline, 2047 avx2, rep_stosb": each kernel after the last size it is used for.
std::string table(const std::vector<ClearDispatchRow>& rows) {
  std::string text;
  std::size_t next_bytes = 0;
  for (const ClearDispatchRow& row : rows) {
    EXPECT_EQ(row.first_bytes, next_bytes);
    next_bytes = row.last_bytes + 1;
    if (!text.empty()) text += ", ";
    if (row.last_bytes != kNoLimit) text += std::to_string(row.last_bytes) + " ";
    text += row.kernel_name;
  }
  EXPECT_EQ(rows.back().last_bytes, kNoLimit);
  return text;
}

#if defined(__x86_64__)

// The decision table, on CPUs as they are.
struct Choice {
  const RecordedCpu* cpu;
  std::string_view cached;
  std::string_view uncached;

  friend void PrintTo(const Choice& choice, std::ostream* out) { *out << choice.cpu->name; }
};

const std::vector<Choice> kChoices = {
    {&kDeneb, "128 inline, sse2", "128 inline, 12582911 sse2, nontemporal"},
    {&kNaples, "128 inline, avx2", "128 inline, 16777215 avx2, nontemporal"},
    {&kRome, "128 inline, avx2", "128 inline, 33554431 avx2, nontemporal"},
    {&kVermeer, "128 inline, 33554431 avx2, rep_stosb",
     "128 inline, 16777215 avx2, 33554431 nontemporal, rep_stosb"},
    {&kGenoa, "128 inline, 33554431 avx2, rep_stosb",
     "128 inline, 16777215 avx2, 33554431 nontemporal, rep_stosb"},
    {&kTurin, "128 inline, 262143 avx2, 1048575 avx512, rep_stosb",
     "128 inline, 8191 avx512, 33554431 nontemporal, rep_stosb"},
    {&kSkylakeSp, "128 inline, 2047 avx2, rep_stosb", "128 inline, 2047 avx2, rep_stosb"},
    {&kIceLake, "128 inline, 2047 avx2, rep_stosb",
     "128 inline, 2047 avx2, 4194303 rep_stosb, nontemporal"},
    {&kSapphireRapids, "128 inline, rep_stosb", "128 inline, 43253759 rep_stosb, nontemporal"},
    {&kAlderLakeP, "128 inline, rep_stosb", "128 inline, 15728639 rep_stosb, nontemporal"},
    {&kAlderLakeE, "128 inline, rep_stosb", "128 inline, 15728639 rep_stosb, nontemporal"},
    {&kQemu64, "128 inline, sse2", "128 inline, 33554431 sse2, nontemporal"},
    {&kKvm64, "128 inline, sse2", "128 inline, 8388607 sse2, nontemporal"},
};

class ClearPlanTest : public testing::TestWithParam<Choice> {};

INSTANTIATE_TEST_SUITE_P(recorded, ClearPlanTest, testing::ValuesIn(kChoices),
                         [](const auto& choice) { return std::string(choice.param.cpu->name); });

TEST_P(ClearPlanTest, chooses_by_cpu_and_size) {
  const CpuFeatures features = decode_cpu_features(GetParam().cpu->leaves);
  const ClearDispatch dispatch = describe_clear_dispatch(features, nullptr);
  EXPECT_EQ(dispatch.kernel, ClearKernel::automatic);
  EXPECT_EQ(table(dispatch.cached_rows), GetParam().cached);
  EXPECT_EQ(table(dispatch.uncached_rows), GetParam().uncached);
}

TEST_P(ClearPlanTest, chooses_nothing_that_the_cpu_lacks) {
  const CpuFeatures features = decode_cpu_features(GetParam().cpu->leaves);
  const ClearPlan plan = clear_plan_for(features);
  for (const ClearBands& bands : {plan.cached, plan.uncached}) {
    for (const ClearBand& band : bands) EXPECT_TRUE(check_clear_kernel(band.kernel, features));
  }
}

CpuFeatures turin() {
  return decode_cpu_features(kTurin.leaves);
}

TEST(ClearPlanVendorTest, of_unknown_vendors_the_c_library_knows_more) {
  CpuFeatures features = turin();
  for (const CpuVendor vendor : {CpuVendor::zhaoxin, CpuVendor::unknown}) {
    features.vendor = vendor;
    const ClearDispatch dispatch = describe_clear_dispatch(features, nullptr);
    EXPECT_EQ(table(dispatch.cached_rows), "128 inline, memset");
    EXPECT_EQ(table(dispatch.uncached_rows), "128 inline, memset");
  }
}

TEST(ClearPlanVendorTest, caches_of_unknown_size_get_the_usual_limits) {
  CpuFeatures features = turin();
  features.l2_bytes = features.l3_bytes = 0;
  EXPECT_EQ(table(describe_clear_dispatch(features, nullptr).cached_rows),
            "128 inline, 262143 avx2, 1048575 avx512, rep_stosb");
}

TEST(ClearPlanVendorTest, clzero_is_never_chosen) {
  for (const Choice& choice : kChoices) {
    const ClearPlan plan = clear_plan_for(decode_cpu_features(choice.cpu->leaves));
    for (const ClearBands& bands : {plan.cached, plan.uncached}) {
      for (const ClearBand& band : bands) EXPECT_NE(band.kernel, ClearKernel::clzero);
    }
  }
}

TEST(ClearDispatchTest, tells_why) {
  EXPECT_EQ(describe_clear_dispatch(turin(), nullptr).reason,
            "Chosen for AMD family 26 model 2: vector stores are its fastest way up to the size of "
            "the L2 cache, and rep stosb (FSRM) from there on.");
  EXPECT_EQ(describe_clear_dispatch({}, nullptr).reason,
            "Chosen for an unknown CPU: nothing better is known for this CPU than the memset of "
            "the C library.");
}

TEST(ClearDispatchTest, a_kernel_the_cpu_lacks_is_refused_by_the_feature_that_is_missing) {
  const auto refusal = [](ClearKernel kernel, const RecordedCpu& cpu) {
    const Result<void> result = check_clear_kernel(kernel, decode_cpu_features(cpu.leaves));
    return result ? std::string() : result.error().message();
  };
  const std::string choose =
      ". Choose auto, original, rep_stosq, rep_stosb, sse2, nontemporal or memset.";
  EXPECT_EQ(refusal(ClearKernel::rep_stosb, kQemu64), "");
  EXPECT_EQ(refusal(ClearKernel::avx2, kQemu64),
            "cannot clear memory with avx2: the CPU has no AVX2, or the operating system does not "
            "save its registers" +
                choose);
  EXPECT_EQ(refusal(ClearKernel::avx512, kQemu64),
            "cannot clear memory with avx512: the CPU has no AVX-512 (F and BW), or the operating "
            "system does not save its registers" +
                choose);
  EXPECT_EQ(refusal(ClearKernel::clzero, kQemu64),
            "cannot clear memory with clzero: the CPU has no CLZERO" + choose);
  EXPECT_EQ(check_clear_kernel(ClearKernel::avx2, {}).error().code(), ErrorCode::unsupported);
}

TEST(ClearDispatchTest, environment_names_a_kernel) {
  for (const ClearKernel kernel : all_clear_kernels()) {
    const std::string name(clear_kernel_name(kernel));
    const ClearDispatch dispatch = describe_clear_dispatch(turin(), name.c_str());
    EXPECT_EQ(dispatch.kernel, kernel);
    EXPECT_EQ(table(dispatch.cached_rows), "128 inline, " + name);
    EXPECT_EQ(table(dispatch.uncached_rows), "128 inline, " + name);
    EXPECT_EQ(dispatch.reason, "Forced by PAGETIDE_CLEAR_KERNEL=" + name + ".");
  }
}

TEST(ClearDispatchTest, environment_auto_and_empty_change_nothing) {
  const ClearDispatch unset = describe_clear_dispatch(turin(), nullptr);
  for (const char* const value : {"auto", ""}) {
    const ClearDispatch dispatch = describe_clear_dispatch(turin(), value);
    EXPECT_EQ(table(dispatch.cached_rows), table(unset.cached_rows));
    EXPECT_EQ(dispatch.reason, unset.reason);
  }
}

TEST(ClearDispatchTest, environment_that_cannot_be_followed_is_ignored_and_told) {
  const std::string chosen = describe_clear_dispatch(turin(), nullptr).reason;
  const ClearDispatch unknown = describe_clear_dispatch(turin(), "AVX2");
  EXPECT_EQ(unknown.kernel, ClearKernel::automatic);
  EXPECT_EQ(unknown.reason,
            chosen +
                " PAGETIDE_CLEAR_KERNEL=AVX2 is ignored: there is no such kernel. Set it to auto, "
                "original, rep_stosq, rep_stosb, sse2, avx2, avx512, nontemporal, clzero or "
                "memset.");

  const CpuFeatures qemu = decode_cpu_features(kQemu64.leaves);
  const ClearDispatch lacking = describe_clear_dispatch(qemu, "avx512");
  EXPECT_EQ(table(lacking.cached_rows), "128 inline, sse2");
  EXPECT_EQ(lacking.reason,
            describe_clear_dispatch(qemu, nullptr).reason +
                " PAGETIDE_CLEAR_KERNEL=avx512 is ignored: the CPU has no AVX-512 (F and BW), or "
                "the operating system does not save its registers. Set it to auto, original, "
                "rep_stosq, rep_stosb, sse2, nontemporal or memset.");
}

#else

TEST(ClearDispatchTest, other_architectures_have_original_and_memset) {
  EXPECT_EQ(table(describe_clear_dispatch(cpu_features(), nullptr).cached_rows),
            "128 inline, memset");
  const Result<void> result = force_clear_kernel(ClearKernel::rep_stosb);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message(),
            "cannot clear memory with rep_stosb: it needs an x86-64 CPU. Choose auto, original or "
            "memset.");
}

#endif

TEST(ClearDispatchTest, automatic_takes_a_forced_kernel_back) {
  ASSERT_TRUE(force_clear_kernel(ClearKernel::automatic));
  const ClearDispatch before = describe_clear_dispatch();
  ASSERT_TRUE(force_clear_kernel(ClearKernel::original));
  EXPECT_EQ(describe_clear_dispatch().kernel, ClearKernel::original);
  ASSERT_TRUE(force_clear_kernel(ClearKernel::automatic));
  EXPECT_EQ(describe_clear_dispatch().kernel, ClearKernel::automatic);
  EXPECT_EQ(table(describe_clear_dispatch().cached_rows), table(before.cached_rows));
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
    std::fprintf(stderr, "<%s|%s>", table(dispatch.cached_rows).c_str(), dispatch.reason.c_str());
    std::exit(0);
  }
};

using ClearProcessDeathTest = ClearProcessTest;

TEST_F(ClearProcessDeathTest, follows_the_environment) {
  ::setenv("PAGETIDE_CLEAR_KERNEL", "original", 1);
  EXPECT_EXIT(print_dispatch_and_exit(), testing::ExitedWithCode(0),
              "<128 inline, original.Forced by PAGETIDE_CLEAR_KERNEL=original.>");
}

TEST_F(ClearProcessDeathTest, tells_of_an_environment_it_does_not_follow) {
  ::setenv("PAGETIDE_CLEAR_KERNEL", "a-value-that-is-longer-than-what-is-kept-of-it", 1);
  EXPECT_EXIT(print_dispatch_and_exit(), testing::ExitedWithCode(0),
              "PAGETIDE_CLEAR_KERNEL=a-value-that-is-longer-than-wha is ignored: there is no such "
              "kernel. Set it to auto, ");
}

TEST_F(ClearProcessDeathTest, reads_the_environment_once) {
  ::setenv("PAGETIDE_CLEAR_KERNEL", "original", 1);
  EXPECT_EXIT(
      {
        ::setenv("PAGETIDE_CLEAR_KERNEL", "memset", 1);
        print_dispatch_and_exit();
      },
      testing::ExitedWithCode(0),
      "<128 inline, original.Forced by PAGETIDE_CLEAR_KERNEL=original.>");
}

// Exits with 0 if errno is as it was.
[[noreturn]] void clear_twice_and_exit() {
  std::array<unsigned char, 4096> block;
  errno = EXFULL;
  for (int i = 0; i < 2; ++i) clear_memory(block.data(), block.size());
  std::exit(errno == EXFULL ? 0 : 1);
}

// An ignored value is told once, when the choice is made, by whatever clears first.
TEST_F(ClearProcessDeathTest, says_on_standard_error_that_a_value_is_ignored) {
  ::setenv("PAGETIDE_CLEAR_KERNEL", "fastest", 1);
  EXPECT_EXIT(clear_twice_and_exit(), testing::ExitedWithCode(0),
              "^pagetide: PAGETIDE_CLEAR_KERNEL=fastest is ignored: there is no such kernel. Set "
              "it to auto, [a-z0-9_, ]+ or memset.\n$");
}

TEST_F(ClearProcessDeathTest, says_nothing_of_a_value_that_is_followed) {
  ::setenv("PAGETIDE_CLEAR_KERNEL", "original", 1);
  EXPECT_EXIT(std::exit(0), testing::ExitedWithCode(0), "^$");
}

TEST(ClearThreadsTest, kernels_may_change_while_threads_clear) {
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::array<std::thread, 3> threads;
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      std::vector<unsigned char> block(4096);
      while (!stop) {
        std::fill(block.begin(), block.end(), 0x5a);
        clear_memory(block.data() + 5, block.size() - 10);
        if (std::count(block.begin(), block.end(), 0) != 4086) ++wrong;
      }
    });
  }
  for (int round = 0; round < 2000; ++round) {
    for (const ClearKernel kernel : {ClearKernel::original, ClearKernel::automatic}) {
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
