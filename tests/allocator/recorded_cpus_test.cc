#include "tests/allocator/recorded_cpus.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>
#include <utility>

#include "pagetide/base/bytes.h"

namespace pagetide {
namespace {

using namespace literals;

// What is known of these CPUs apart from the decoder.
//
// Families and models: Intel SDM Vol. 4, table 2-1; AMD's processor programming references, which
// bear them in their titles (family 17h models 00h-0Fh and 30h-3Fh, 19h 10h-1Fh and 20h-2Fh, 1Ah
// 00h-0Fh). Features: Zen 3 brought ERMS and FSRM, Zen 4 AVX-512, Zen 5 AVX-VNNI; Ice Lake brought
// FSRM, Sapphire Rapids and Alder Lake FSRS and AVX-VNNI. Caches: as the vendors publish them; the
// comment at each.
struct Expected {
  RecordedCpu recorded;
  CpuVendor vendor;
  std::uint32_t family;
  std::uint32_t model;
  const char* strings;  // fast string instructions
  const char* stores;   // other instructions that clear, and what tells of them
  std::size_t l1d_bytes;
  std::size_t l2_bytes;
  std::size_t l3_bytes;
  std::size_t l3_share_bytes;
};

constexpr CpuVendor kAmd = CpuVendor::amd;
constexpr CpuVendor kIntel = CpuVendor::intel;

constexpr std::array kExpected = {
    // 8 MiB for each complex of four cores, which have two threads each.
    Expected{kNaples, kAmd, 0x17, 0x01, "rep_good", "avx2 clzero", 32_KiB, 512_KiB, 8_MiB, 1_MiB},
    // 256 MiB in 16 complexes of four cores.
    Expected{kRome, kAmd, 0x17, 0x31, "rep_good", "avx2 clzero", 32_KiB, 512_KiB, 16_MiB, 2_MiB},
    // 64 MiB in two complexes, in each of which six of eight cores are in use.
    Expected{kVermeer, kAmd, 0x19, 0x21, "rep_good erms fsrm fast_short_stosb", "avx2 clzero",
             32_KiB, 512_KiB, 32_MiB, 32_MiB / 12},
    // 384 MiB in 12 complexes of eight cores; 1 MiB of L2.
    Expected{kGenoa, kAmd, 0x19, 0x11, "rep_good erms fsrm fast_short_stosb", "avx2 avx512 clzero",
             32_KiB, 1_MiB, 32_MiB, 2_MiB},
    // 384 MiB in 12 complexes of eight cores, here with one thread each; 48 KiB of L1.
    Expected{kTurin, kAmd, 0x1a, 0x02, "rep_good erms fsrm fast_short_stosb",
             "avx2 avx512 avx_vnni clzero", 48_KiB, 1_MiB, 32_MiB, 4_MiB},
    // 6 MiB for all four cores.
    Expected{kDeneb, kAmd, 0x10, 0x04, "rep_good", "", 64_KiB, 512_KiB, 6_MiB, 6_MiB / 4},
    // 1.375 MiB of L3 for each of eight cores, 1 MiB of L2.
    Expected{kSkylakeSp, kIntel, 6, 0x55, "rep_good erms", "avx2 avx512", 32_KiB, 1_MiB, 11_MiB,
             11_MiB / 16},
    // 8 MiB for four cores of eight threads, for which 16 IDs are reserved.
    Expected{kIceLake, kIntel, 6, 0x7e, "rep_good erms fsrm", "avx2 avx512", 48_KiB, 512_KiB, 8_MiB,
             8_MiB / 16},
    // 1.5 MiB of L3 for each of 32 cores, 1.25 MiB of L2.
    Expected{kIceLakeSpGuest, kIntel, 6, 0x6a, "rep_good erms", "hypervisor avx2 avx512", 48_KiB,
             1280_KiB, 48_MiB, 48_MiB / 64},
    // 82.5 MiB for 36 cores of 72 threads, for which 128 IDs are reserved; 2 MiB of L2.
    Expected{kSapphireRapids, kIntel, 6, 0x8f, "rep_good erms fsrm fzrm fsrs fast_short_stosb",
             "avx2 avx512 avx_vnni", 48_KiB, 2_MiB, 84480_KiB, 84480_KiB / 128},
    // 30 MiB for 24 threads, for which 128 IDs are reserved; 1.25 MiB of L2.
    Expected{kAlderLakeP, kIntel, 6, 0x97, "rep_good erms fsrm fsrs fast_short_stosb",
             "avx2 avx_vnni", 48_KiB, 1280_KiB, 30_MiB, 30_MiB / 128},
    // The same L3; 2 MiB of L2 for four cores together.
    Expected{kAlderLakeE, kIntel, 6, 0x97, "rep_good erms fsrm fsrs fast_short_stosb",
             "avx2 avx_vnni", 32_KiB, 2_MiB, 30_MiB, 30_MiB / 128},
    // QEMU, target/i386/cpu.c: family 15, model 107, stepping 1; the caches of
    // legacy_l1d_cache_amd,
    // legacy_l2_cache_amd and legacy_l3_cache.
    Expected{kQemu64, kAmd, 15, 107, "rep_good", "hypervisor", 64_KiB, 512_KiB, 16_MiB, 16_MiB},
    // The same file: family 15, model 6, which is NetBurst; legacy_l1d_cache, legacy_l2_cache.
    Expected{kKvm64, kIntel, 15, 6, "", "hypervisor", 32_KiB, 4_MiB, 16_MiB, 16_MiB},
};

static_assert(kExpected.size() == kRecordedCpus.size());

std::ostream& operator<<(std::ostream& out, const Expected& expected) {
  return out << expected.recorded.name;
}

// The names of those that are true, with a space between two.
std::string names(std::initializer_list<std::pair<const char*, bool>> all) {
  std::string list;
  for (const auto& [name, present] : all) {
    if (!present) continue;
    if (!list.empty()) list += ' ';
    list += name;
  }
  return list;
}

class RecordedCpuTest : public testing::TestWithParam<Expected> {
 protected:
  const CpuFeatures features_ = decode_cpu_features(GetParam().recorded.leaves);
};

std::string test_name(const testing::TestParamInfo<Expected>& expected) {
  return expected.param.recorded.name;
}

INSTANTIATE_TEST_SUITE_P(recorded, RecordedCpuTest, testing::ValuesIn(kExpected), test_name);

TEST_P(RecordedCpuTest, vendor_family_and_model) {
  EXPECT_EQ(features_.vendor, GetParam().vendor);
  EXPECT_EQ(features_.family, GetParam().family);
  EXPECT_EQ(features_.model, GetParam().model);
}

TEST_P(RecordedCpuTest, string_instructions) {
  EXPECT_EQ(names({{"rep_good", features_.rep_good},
                   {"erms", features_.erms},
                   {"fsrm", features_.fsrm},
                   {"fzrm", features_.fzrm},
                   {"fsrs", features_.fsrs},
                   {"fast_short_stosb", features_.fast_short_stosb}}),
            GetParam().strings);
}

TEST_P(RecordedCpuTest, other_instructions) {
  EXPECT_EQ(names({{"hypervisor", features_.hypervisor},
                   {"avx2", features_.avx2},
                   {"avx512", features_.avx512},
                   {"avx_vnni", features_.avx_vnni},
                   {"clzero", features_.clzero}}),
            GetParam().stores);
}

TEST_P(RecordedCpuTest, caches) {
  EXPECT_EQ(features_.l1d_bytes, GetParam().l1d_bytes);
  EXPECT_EQ(features_.l2_bytes, GetParam().l2_bytes);
  EXPECT_EQ(features_.l3_bytes, GetParam().l3_bytes);
  EXPECT_EQ(features_.l3_share_bytes, GetParam().l3_share_bytes);
}

// A hypervisor that hides TOPOEXT changes nothing else: the older leaves of a real CPU lead to the
// same share, although they do not tell of complexes.
TEST(RecordedCpusTest, amd_without_topoext_has_the_same_share_of_its_l3) {
  for (const RecordedCpu& recorded : {kNaples, kRome, kVermeer, kGenoa, kTurin}) {
    SCOPED_TRACE(recorded.name);
    const CpuFeatures whole = decode_cpu_features(recorded.leaves);
    CpuidLeaves leaves = recorded.leaves;
    leaves.leaf_80000001.ecx &= ~(std::uint32_t{1} << 22);
    const CpuFeatures masked = decode_cpu_features(leaves);
    EXPECT_EQ(masked.l1d_bytes, whole.l1d_bytes);
    EXPECT_EQ(masked.l2_bytes, whole.l2_bytes);
    EXPECT_GT(masked.l3_bytes, whole.l3_bytes);  // of all complexes
    EXPECT_EQ(masked.l3_share_bytes, whole.l3_share_bytes);
  }
}

// The operating system may save less than the CPU has.
TEST(RecordedCpusTest, no_vectors_where_the_system_saves_no_state) {
  for (RecordedCpu recorded : kRecordedCpus) {
    recorded.leaves.xcr0 = 0;
    const CpuFeatures features = decode_cpu_features(recorded.leaves);
    EXPECT_FALSE(features.avx2 || features.avx512 || features.avx_vnni) << recorded.name;
  }
}

}  // namespace
}  // namespace pagetide
