#include "pagetide/allocator/clear/cpu_features.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "pagetide/base/bytes.h"
#include "pagetide/tracker/kernel/kernel_release.h"
#include "tests/support/skip.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace pagetide {
namespace {

using namespace literals;

constexpr std::uint32_t bit(unsigned position) {
  return std::uint32_t{1} << position;
}

constexpr CpuidRegisters kIntel = {
    .eax = 0x20, .ebx = 0x756e6547, .ecx = 0x6c65746e, .edx = 0x49656e69};
constexpr CpuidRegisters kAmd = {
    .eax = 0x10, .ebx = 0x68747541, .ecx = 0x444d4163, .edx = 0x69746e65};
constexpr CpuidRegisters kHygon = {
    .eax = 0x10, .ebx = 0x6f677948, .ecx = 0x656e6975, .edx = 0x6e65476e};
constexpr CpuidRegisters kShanghai = {
    .eax = 0x10, .ebx = 0x68532020, .ecx = 0x20206961, .edx = 0x68676e61};

constexpr std::uint32_t kSapphireRapids = 0x000806f8;  // family 6, model 8f
constexpr std::uint32_t kZen3 = 0x00a00f11;            // family 19h, model 01
constexpr std::uint32_t kOsxsaveAndAvx = bit(27) | bit(28);
constexpr std::uint64_t kAllStates = 0xe7;

CpuidLeaves leaves_of(const CpuidRegisters& leaf_0, std::uint32_t signature) {
  CpuidLeaves leaves;
  leaves.leaf_0 = leaf_0;
  leaves.leaf_1.eax = signature;
  leaves.leaf_80000000.eax = 0x80000021;
  return leaves;
}

CpuidLeaves leaves_with_vectors() {
  CpuidLeaves leaves = leaves_of(kIntel, kSapphireRapids);
  leaves.leaf_1.ecx = kOsxsaveAndAvx;
  leaves.leaf_7_0.ebx = bit(5) | bit(16) | bit(30);
  leaves.xcr0 = kAllStates;
  return leaves;
}

bool rep_good(const CpuidRegisters& leaf_0, std::uint32_t signature) {
  return decode_cpu_features(leaves_of(leaf_0, signature)).rep_good;
}

TEST(CpuFeaturesTest, knows_vendors) {
  EXPECT_EQ(decode_cpu_features(leaves_of(kIntel, 0)).vendor, CpuVendor::intel);
  EXPECT_EQ(decode_cpu_features(leaves_of(kAmd, 0)).vendor, CpuVendor::amd);
  EXPECT_EQ(decode_cpu_features(leaves_of(kHygon, 0)).vendor, CpuVendor::hygon);
  EXPECT_EQ(decode_cpu_features(leaves_of(kShanghai, 0)).vendor, CpuVendor::zhaoxin);
  CpuidRegisters nobody = kIntel;
  nobody.ecx += 1;
  EXPECT_EQ(decode_cpu_features(leaves_of(nobody, 0)).vendor, CpuVendor::unknown);
}

TEST(CpuFeaturesTest, adds_extended_family_and_model) {
  const CpuFeatures intel = decode_cpu_features(leaves_of(kIntel, kSapphireRapids));
  EXPECT_EQ(intel.family, 6U);
  EXPECT_EQ(intel.model, 0x8fU);
  const CpuFeatures amd = decode_cpu_features(leaves_of(kAmd, kZen3));
  EXPECT_EQ(amd.family, 0x19U);
  EXPECT_EQ(amd.model, 1U);
  // The extended fields count for families 6 and 15 only.
  const CpuFeatures old = decode_cpu_features(leaves_of(kIntel, 0x00ff0543));
  EXPECT_EQ(old.family, 5U);
  EXPECT_EQ(old.model, 4U);
}

TEST(CpuFeaturesTest, no_leaves_no_features) {
  const CpuFeatures features = decode_cpu_features({});
  EXPECT_EQ(features.vendor, CpuVendor::unknown);
  EXPECT_EQ(features.family, 0U);
  EXPECT_FALSE(features.rep_good || features.erms || features.fsrm || features.fzrm ||
               features.fsrs || features.fast_short_stosb || features.avx2 || features.avx512 ||
               features.avx_vnni || features.clzero || features.hypervisor);
  EXPECT_EQ(features.l1d_bytes, 0U);
  EXPECT_EQ(features.l2_bytes, 0U);
  EXPECT_EQ(features.l3_bytes, 0U);
  EXPECT_EQ(features.l3_share_bytes, 0U);
}

TEST(CpuFeaturesTest, hypervisor_is_the_bit_that_hardware_never_sets) {
  CpuidLeaves leaves = leaves_of(kIntel, kSapphireRapids);
  leaves.leaf_1.ecx = ~bit(31);
  EXPECT_FALSE(decode_cpu_features(leaves).hypervisor);
  leaves.leaf_1.ecx = bit(31);
  EXPECT_TRUE(decode_cpu_features(leaves).hypervisor);
}

TEST(CpuFeaturesTest, vectors_are_usable_with_the_operating_system_alone) {
  EXPECT_TRUE(decode_cpu_features(leaves_with_vectors()).avx2);
  EXPECT_TRUE(decode_cpu_features(leaves_with_vectors()).avx512);

  CpuidLeaves no_osxsave = leaves_with_vectors();
  no_osxsave.leaf_1.ecx = bit(28);
  EXPECT_FALSE(decode_cpu_features(no_osxsave).avx2);
  EXPECT_FALSE(decode_cpu_features(no_osxsave).avx512);

  CpuidLeaves no_avx = leaves_with_vectors();
  no_avx.leaf_1.ecx = bit(27);
  EXPECT_FALSE(decode_cpu_features(no_avx).avx2);
}

TEST(CpuFeaturesTest, each_missing_register_state_counts) {
  for (const unsigned state : {1U, 2U, 5U, 6U, 7U}) {
    CpuidLeaves leaves = leaves_with_vectors();
    leaves.xcr0 = kAllStates & ~std::uint64_t{bit(state)};
    const CpuFeatures features = decode_cpu_features(leaves);
    EXPECT_EQ(features.avx2, state > 2) << "without state " << state;
    EXPECT_FALSE(features.avx512) << "without state " << state;
  }
}

TEST(CpuFeaturesTest, avx512_needs_f_and_bw) {
  for (const unsigned missing : {16U, 30U}) {
    CpuidLeaves leaves = leaves_with_vectors();
    leaves.leaf_7_0.ebx &= ~bit(missing);
    EXPECT_FALSE(decode_cpu_features(leaves).avx512) << "without bit " << missing;
    EXPECT_TRUE(decode_cpu_features(leaves).avx2);
  }
  CpuidLeaves leaves = leaves_with_vectors();
  leaves.leaf_7_0.ebx &= ~bit(5);
  EXPECT_FALSE(decode_cpu_features(leaves).avx2);
}

TEST(CpuFeaturesTest, avx_vnni_is_in_the_second_subleaf_and_needs_the_state_of_avx) {
  CpuidLeaves leaves = leaves_with_vectors();
  leaves.leaf_7_1.eax = bit(4);
  EXPECT_FALSE(decode_cpu_features(leaves).avx_vnni);  // there is no such subleaf
  leaves.leaf_7_0.eax = 1;
  EXPECT_TRUE(decode_cpu_features(leaves).avx_vnni);
  leaves.xcr0 = 0x3;
  EXPECT_FALSE(decode_cpu_features(leaves).avx_vnni);
  leaves.xcr0 = 0x7;
  EXPECT_TRUE(decode_cpu_features(leaves).avx_vnni);
  leaves.leaf_7_1.eax = ~bit(4);
  EXPECT_FALSE(decode_cpu_features(leaves).avx_vnni);
}

TEST(CpuFeaturesTest, string_bits_are_where_the_manual_says) {
  CpuidLeaves leaves = leaves_of(kIntel, kSapphireRapids);
  leaves.leaf_7_0 = {.eax = 1, .ebx = bit(9), .ecx = 0, .edx = 0};
  EXPECT_TRUE(decode_cpu_features(leaves).erms);
  EXPECT_FALSE(decode_cpu_features(leaves).fsrm);

  leaves.leaf_7_0 = {.eax = 1, .ebx = 0, .ecx = 0, .edx = bit(4)};
  EXPECT_FALSE(decode_cpu_features(leaves).erms);
  EXPECT_TRUE(decode_cpu_features(leaves).fsrm);

  leaves.leaf_7_1 = {.eax = bit(10), .ebx = 0, .ecx = 0, .edx = 0};
  EXPECT_TRUE(decode_cpu_features(leaves).fzrm);
  EXPECT_FALSE(decode_cpu_features(leaves).fsrs);

  leaves.leaf_7_1 = {.eax = bit(11), .ebx = 0, .ecx = 0, .edx = 0};
  EXPECT_FALSE(decode_cpu_features(leaves).fzrm);
  EXPECT_TRUE(decode_cpu_features(leaves).fsrs);
  EXPECT_TRUE(decode_cpu_features(leaves).fast_short_stosb);

  // The register an allocator of renown looks at by mistake.
  leaves.leaf_7_1 = {.eax = 0, .ebx = bit(10) | bit(11), .ecx = 0, .edx = 0};
  EXPECT_FALSE(decode_cpu_features(leaves).fzrm);
  EXPECT_FALSE(decode_cpu_features(leaves).fsrs);
}

TEST(CpuFeaturesTest, fsrm_means_short_stosb_on_amd_alone) {
  CpuidLeaves leaves = leaves_of(kAmd, kZen3);
  EXPECT_FALSE(decode_cpu_features(leaves).fast_short_stosb);
  leaves.leaf_7_0.edx = bit(4);
  EXPECT_TRUE(decode_cpu_features(leaves).fast_short_stosb);
  EXPECT_FALSE(decode_cpu_features(leaves).fsrs);  // not what the CPU said
  leaves.leaf_0 = kIntel;
  EXPECT_FALSE(decode_cpu_features(leaves).fast_short_stosb);
}

// Intel answers a leaf it does not have with its highest one.
TEST(CpuFeaturesTest, leaves_beyond_the_highest_are_not_looked_at) {
  CpuidLeaves leaves = leaves_with_vectors();
  leaves.leaf_7_0.eax = 0;
  leaves.leaf_7_1.eax = bit(10) | bit(11);
  EXPECT_FALSE(decode_cpu_features(leaves).fzrm);
  EXPECT_FALSE(decode_cpu_features(leaves).fsrs);

  leaves.leaf_7_0.ebx |= bit(9);
  leaves.leaf_7_0.edx = bit(4);
  leaves.leaf_0.eax = 6;
  const CpuFeatures features = decode_cpu_features(leaves);
  EXPECT_FALSE(features.erms || features.fsrm || features.avx2 || features.avx512);

  CpuidLeaves amd = leaves_of(kAmd, kZen3);
  amd.leaf_80000008.ebx = bit(0);
  EXPECT_TRUE(decode_cpu_features(amd).clzero);
  amd.leaf_80000000.eax = 0x80000007;
  EXPECT_FALSE(decode_cpu_features(amd).clzero);
}

TEST(CpuFeaturesTest, rep_good_follows_family_and_model) {
  EXPECT_TRUE(rep_good(kIntel, 0x000006f2));  // Core 2
  EXPECT_TRUE(rep_good(kIntel, kSapphireRapids));
  EXPECT_FALSE(rep_good(kIntel, 0x00000f41));  // NetBurst
  EXPECT_TRUE(rep_good(kIntel, 0x00300f10));   // family 18
  EXPECT_FALSE(rep_good(kAmd, 0x00000f47));    // K8 before stepping C
  EXPECT_TRUE(rep_good(kAmd, 0x00000f48));
  EXPECT_TRUE(rep_good(kAmd, 0x00000f4f));
  EXPECT_FALSE(rep_good(kAmd, 0x00000f50));
  EXPECT_TRUE(rep_good(kAmd, 0x00000f58));
  EXPECT_TRUE(rep_good(kAmd, 0x00100f22));  // K10
  EXPECT_TRUE(rep_good(kAmd, kZen3));
  EXPECT_TRUE(rep_good(kHygon, 0x00900f01));
  EXPECT_FALSE(rep_good(kShanghai, 0x000006e0));
  EXPECT_TRUE(rep_good(kShanghai, 0x000006f0));
  EXPECT_TRUE(rep_good(kShanghai, 0x000107b0));
  CpuidRegisters nobody = kIntel;
  nobody.ebx = 0;
  EXPECT_FALSE(rep_good(nobody, kSapphireRapids));
}

CpuidRegisters cache(std::uint32_t type, std::uint32_t level, std::uint32_t sharers,
                     std::uint32_t ways, std::uint32_t sets) {
  return {.eax = type | (level << 5) | ((sharers - 1) << 14),
          .ebx = ((ways - 1) << 22) | 63,
          .ecx = sets - 1,
          .edx = 0};
}

// In an order that no CPU has, with an instruction cache at each level.
std::array<CpuidRegisters, kMaxCacheSubleaves> some_caches() {
  return {cache(2, 1, 2, 4, 64),   cache(3, 3, 24, 12, 65536), cache(2, 2, 2, 8, 512),
          cache(1, 1, 2, 12, 64),  cache(2, 3, 2, 16, 512),    cache(3, 2, 2, 10, 2048),
          cache(3, 4, 24, 16, 64), cache(2, 1, 2, 4, 64)};
}

void expect_some_caches(const CpuidLeaves& leaves) {
  const CpuFeatures features = decode_cpu_features(leaves);
  EXPECT_EQ(features.l1d_bytes, 48_KiB);
  EXPECT_EQ(features.l2_bytes, 1280_KiB);
  EXPECT_EQ(features.l3_bytes, 48_MiB);
  EXPECT_EQ(features.l3_share_bytes, 2_MiB);
}

void expect_no_caches(const CpuidLeaves& leaves) {
  const CpuFeatures features = decode_cpu_features(leaves);
  EXPECT_EQ(features.l1d_bytes, 0U);
  EXPECT_EQ(features.l2_bytes, 0U);
  EXPECT_EQ(features.l3_bytes, 0U);
  EXPECT_EQ(features.l3_share_bytes, 0U);
}

TEST(CpuFeaturesTest, caches_are_in_leaf_4) {
  CpuidLeaves leaves = leaves_of(kIntel, kSapphireRapids);
  leaves.leaf_4 = some_caches();
  expect_some_caches(leaves);
  leaves.leaf_0 = kShanghai;
  expect_some_caches(leaves);
  leaves.leaf_0.eax = 3;
  expect_no_caches(leaves);
  leaves.leaf_0 = {.eax = 0x20, .ebx = 0, .ecx = 0, .edx = 0};  // no vendor that is known
  expect_no_caches(leaves);
}

TEST(CpuFeaturesTest, caches_of_amd_are_in_leaf_8000001d) {
  CpuidLeaves leaves = leaves_of(kAmd, kZen3);
  leaves.leaf_80000001.ecx = bit(22);
  leaves.leaf_4 = {cache(1, 1, 1, 1, 64)};
  leaves.leaf_8000001d = some_caches();
  expect_some_caches(leaves);
  leaves.leaf_0 = kHygon;
  expect_some_caches(leaves);
}

TEST(CpuFeaturesTest, a_cache_has_partitions_too) {
  CpuidLeaves leaves = leaves_of(kIntel, kSapphireRapids);
  leaves.leaf_4[0] = {.eax = 3 | (3 << 5), .ebx = 63 | (2 << 12) | (4 << 22), .ecx = 6, .edx = 0};
  EXPECT_EQ(decode_cpu_features(leaves).l3_bytes, std::size_t{64} * 3 * 5 * 7);
}

TEST(CpuFeaturesTest, the_list_of_caches_ends_at_type_0) {
  CpuidLeaves leaves = leaves_of(kIntel, kSapphireRapids);
  leaves.leaf_4 = some_caches();
  leaves.leaf_4[4] = {};
  const CpuFeatures features = decode_cpu_features(leaves);
  EXPECT_EQ(features.l1d_bytes, 48_KiB);
  EXPECT_EQ(features.l2_bytes, 0U);
  EXPECT_EQ(features.l3_bytes, 48_MiB);
}

// Leaf 8000001d says nothing here, whatever it holds.
CpuidLeaves amd_without_topoext() {
  CpuidLeaves leaves = leaves_of(kAmd, kZen3);
  leaves.leaf_8000001d = {cache(1, 1, 1, 1, 64), cache(3, 2, 1, 1, 64), cache(3, 3, 1, 1, 64)};
  leaves.leaf_80000005 = {.eax = ~0U, .ebx = ~0U, .ecx = (48U << 24) | 0xffffff, .edx = ~0U};
  leaves.leaf_80000006 = {
      .eax = ~0U, .ebx = ~0U, .ecx = (1280U << 16) | 0xffff, .edx = (96U << 18) | 0x3ffff};
  leaves.leaf_80000008 = {.eax = ~0U, .ebx = 0, .ecx = 0xffffff00 | 23, .edx = ~0U};
  return leaves;
}

TEST(CpuFeaturesTest, amd_without_topoext_has_its_caches_in_older_leaves) {
  CpuidLeaves leaves = amd_without_topoext();
  expect_some_caches(leaves);
  leaves.leaf_0 = kHygon;
  expect_some_caches(leaves);
  leaves.leaf_80000000.eax = 0x8000001c;
  leaves.leaf_80000001.ecx = bit(22);
  expect_some_caches(leaves);
}

TEST(CpuFeaturesTest, older_leaves_of_amd_have_a_highest_one_too) {
  CpuidLeaves leaves = amd_without_topoext();
  leaves.leaf_80000000.eax = 0x80000007;  // does not tell how many threads there are
  EXPECT_EQ(decode_cpu_features(leaves).l3_share_bytes, 48_MiB);
  leaves.leaf_80000000.eax = 0x80000005;
  EXPECT_EQ(decode_cpu_features(leaves).l1d_bytes, 48_KiB);
  EXPECT_EQ(decode_cpu_features(leaves).l2_bytes, 0U);
  EXPECT_EQ(decode_cpu_features(leaves).l3_bytes, 0U);
  leaves.leaf_80000000.eax = 0x80000004;
  expect_no_caches(leaves);
}

std::set<std::string> kernel_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::set<std::string> flags;
    for (std::string word; words >> word;) flags.insert(word);
    return flags;
  }
  return {};
}

// The kernel is the judge. It takes erms and rep_good away where the firmware has switched fast
// strings off, which user space cannot see: such a machine fails here, and should.
TEST(CpuFeaturesTest, agrees_with_proc_cpuinfo) {
  const std::set<std::string> flags = kernel_flags();
  if (flags.empty()) PAGETIDE_SKIP("/proc/cpuinfo lists no x86 flags");
  const CpuFeatures& features = cpu_features();
  EXPECT_EQ(features.erms, flags.contains("erms"));
  EXPECT_EQ(features.fsrm, flags.contains("fsrm"));
  EXPECT_EQ(features.rep_good, flags.contains("rep_good"));
  EXPECT_EQ(features.avx2, flags.contains("avx2"));
  EXPECT_EQ(features.avx512, flags.contains("avx512f") && flags.contains("avx512bw"));
  EXPECT_EQ(features.clzero, flags.contains("clzero"));
  EXPECT_EQ(features.hypervisor, flags.contains("hypervisor"));
  // Kernels before 5.12 do not know the name.
  if (parse_kernel_release(running_kernel_release()) >= KernelVersion{5, 12, 0}) {
    EXPECT_EQ(features.avx_vnni, flags.contains("avx_vnni"));
  }
  // Most kernels keep these to themselves.
  EXPECT_TRUE(features.fzrm || !flags.contains("fzrm"));
  EXPECT_TRUE(features.fsrs || !flags.contains("fsrs"));
}

#if defined(__x86_64__)

std::string first_word(const std::filesystem::path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

// "Data 1" and the like, with the size in KiB.
std::map<std::string, std::size_t> kernel_caches(std::size_t cpu) {
  const std::filesystem::path directory =
      "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache";
  std::map<std::string, std::size_t> caches;
  for (int index = 0;; ++index) {
    const std::filesystem::path cache = directory / ("index" + std::to_string(index));
    const std::string size = first_word(cache / "size");
    if (size.empty()) return caches;
    caches[first_word(cache / "type") + " " + first_word(cache / "level")] = std::stoul(size);
  }
}

// On one CPU: those of a hybrid processor differ. In a thread of its own, so that no other test
// stays on it.
template <typename Function>
void run_on(std::size_t cpu, Function function) {
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    function();
  }).join();
}

std::size_t some_cpu() {
  return static_cast<std::size_t>(::sched_getcpu());
}

TEST(CpuFeaturesTest, caches_are_those_that_the_kernel_lists) {
  const std::size_t cpu = some_cpu();
  const std::map<std::string, std::size_t> caches = kernel_caches(cpu);
  if (caches.empty()) PAGETIDE_SKIP("the kernel lists no caches in /sys/devices/system/cpu");
  CpuFeatures features;
  run_on(cpu, [&features] { features = decode_cpu_features(read_cpuid_leaves()); });
  const std::map<std::string, std::size_t> ours = {{"Data 1", features.l1d_bytes},
                                                   {"Unified 2", features.l2_bytes},
                                                   {"Unified 3", features.l3_bytes}};
  for (const auto& [name, bytes] : ours) {
    const auto listed = caches.find(name);
    if (listed == caches.end()) continue;
    EXPECT_EQ(bytes / 1_KiB, listed->second) << name;
  }
}

void expect_leaf(const CpuidRegisters& leaf, std::uint32_t number, std::uint32_t subleaf = 0) {
  CpuidRegisters own;
  __cpuid_count(number, subleaf, own.eax, own.ebx, own.ecx, own.edx);
  const auto values = [](const CpuidRegisters& registers) {
    return std::array{registers.eax, registers.ebx, registers.ecx, registers.edx};
  };
  EXPECT_EQ(values(leaf), values(own)) << std::hex << number << "." << subleaf;
}

TEST(CpuFeaturesTest, each_leaf_is_read_under_its_number) {
  run_on(some_cpu(), [] {
    const CpuidLeaves leaves = read_cpuid_leaves();
    expect_leaf(leaves.leaf_0, 0);
    expect_leaf(leaves.leaf_1, 1);
    expect_leaf(leaves.leaf_7_0, 7, 0);
    expect_leaf(leaves.leaf_7_1, 7, 1);
    expect_leaf(leaves.leaf_80000000, 0x80000000);
    expect_leaf(leaves.leaf_80000001, 0x80000001);
    expect_leaf(leaves.leaf_80000005, 0x80000005);
    expect_leaf(leaves.leaf_80000006, 0x80000006);
    expect_leaf(leaves.leaf_80000008, 0x80000008);
  });
}

#endif

TEST(CpuFeaturesTest, is_read_once) {
  EXPECT_EQ(&cpu_features(), &cpu_features());
}

}  // namespace
}  // namespace pagetide
