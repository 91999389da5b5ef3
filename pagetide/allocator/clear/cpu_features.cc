#include "pagetide/allocator/clear/cpu_features.h"

#include <span>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "pagetide/base/bytes.h"

namespace pagetide {

namespace {

using namespace literals;

constexpr bool bit(std::uint32_t value, unsigned position) {
  return ((value >> position) & 1) != 0;
}

constexpr std::uint32_t field(std::uint32_t value, unsigned low, unsigned width) {
  return (value >> low) & ((std::uint32_t{1} << width) - 1);
}

// The vendor text is twelve characters in EBX, EDX and ECX, first character lowest.
constexpr std::uint32_t four_characters(std::string_view text, std::size_t from) {
  std::uint32_t packed = 0;
  for (std::size_t i = 4; i-- > 0;) {
    packed = (packed << 8) | static_cast<unsigned char>(text[from + i]);
  }
  return packed;
}

constexpr bool is_vendor(const CpuidRegisters& leaf_0, std::string_view text) {
  return leaf_0.ebx == four_characters(text, 0) && leaf_0.edx == four_characters(text, 4) &&
         leaf_0.ecx == four_characters(text, 8);
}

CpuVendor decode_vendor(const CpuidRegisters& leaf_0) {
  if (is_vendor(leaf_0, "GenuineIntel")) return CpuVendor::intel;
  if (is_vendor(leaf_0, "AuthenticAMD")) return CpuVendor::amd;
  if (is_vendor(leaf_0, "HygonGenuine")) return CpuVendor::hygon;
  if (is_vendor(leaf_0, "  Shanghai  ") || is_vendor(leaf_0, "CentaurHauls")) {
    return CpuVendor::zhaoxin;
  }
  return CpuVendor::unknown;
}

void decode_family_and_model(std::uint32_t signature, CpuFeatures& features) {
  const std::uint32_t base_family = field(signature, 8, 4);
  features.family = base_family;
  if (base_family == 0xf) features.family += field(signature, 20, 8);
  features.model = field(signature, 4, 4);
  if (base_family == 0x6 || base_family == 0xf) features.model |= field(signature, 16, 4) << 4;
}

// The rule of the Linux kernel for CPUs that have 64-bit mode, without the part that user space
// cannot see: firmware may have switched fast strings off in IA32_MISC_ENABLE.
bool has_good_rep(const CpuFeatures& features, std::uint32_t signature) {
  switch (features.vendor) {
    case CpuVendor::intel:
      // Not NetBurst, family 15; 18 and 19 are the successors of family 6.
      return features.family == 6 || features.family > 15;
    case CpuVendor::amd:
      if (features.family == 15) {
        // K8 has it since stepping C, known by the whole signature.
        return (signature >= 0x0f48 && signature < 0x0f50) || signature >= 0x0f58;
      }
      return features.family >= 16;
    case CpuVendor::hygon:
      return true;
    case CpuVendor::zhaoxin:
      return features.family >= 7 || (features.family == 6 && features.model >= 15);
    case CpuVendor::unknown:
      return false;
  }
  return false;
}

void decode_vector_features(const CpuidLeaves& leaves, CpuFeatures& features) {
  constexpr std::uint64_t kAvxState = 0x06;     // XMM, upper halves of YMM
  constexpr std::uint64_t kAvx512State = 0xe6;  // and mask registers, both parts of ZMM
  // XCR0 can only be read when the system has set OSXSAVE; AVX itself is bit 28.
  if (!bit(leaves.leaf_1.ecx, 27) || !bit(leaves.leaf_1.ecx, 28)) return;
  const bool avx = (leaves.xcr0 & kAvxState) == kAvxState;
  const bool avx512 = (leaves.xcr0 & kAvx512State) == kAvx512State;
  const std::uint32_t ebx = leaves.leaf_7_0.ebx;
  features.avx2 = avx && bit(ebx, 5);
  features.avx512 = avx512 && bit(ebx, 16) && bit(ebx, 30);
  features.avx_vnni = avx && leaves.leaf_7_0.eax >= 1 && bit(leaves.leaf_7_1.eax, 4);
}

void decode_leaf_7(const CpuidLeaves& leaves, CpuFeatures& features) {
  if (leaves.leaf_0.eax < 7) return;
  features.erms = bit(leaves.leaf_7_0.ebx, 9);
  features.fsrm = bit(leaves.leaf_7_0.edx, 4);
  decode_vector_features(leaves, features);
  if (leaves.leaf_7_0.eax < 1) return;
  features.fzrm = bit(leaves.leaf_7_1.eax, 10);
  features.fsrs = bit(leaves.leaf_7_1.eax, 11);
}

void set_l3(std::size_t bytes, std::size_t sharers, CpuFeatures& features) {
  features.l3_bytes = bytes;
  features.l3_share_bytes = bytes / sharers;
}

std::size_t cache_bytes(const CpuidRegisters& cache) {
  const std::size_t ways = std::size_t{field(cache.ebx, 22, 10)} + 1;
  const std::size_t partitions = std::size_t{field(cache.ebx, 12, 10)} + 1;
  const std::size_t line_bytes = std::size_t{field(cache.ebx, 0, 12)} + 1;
  const std::size_t sets = std::size_t{cache.ecx} + 1;
  return ways * partitions * line_bytes * sets;
}

void decode_cache_list(std::span<const CpuidRegisters> subleaves, CpuFeatures& features) {
  for (const CpuidRegisters& cache : subleaves) {
    const std::uint32_t type = field(cache.eax, 0, 5);  // 0: no more caches, 2: instructions
    if (type == 0) return;
    if (type == 2) continue;
    const std::uint32_t level = field(cache.eax, 5, 3);
    if (level == 1) features.l1d_bytes = cache_bytes(cache);
    if (level == 2) features.l2_bytes = cache_bytes(cache);
    if (level == 3) set_l3(cache_bytes(cache), field(cache.eax, 14, 12) + 1, features);
  }
}

// What AMD has had since before there was TOPOEXT. Nothing here tells which CPUs share an L3: both
// its size and the number of threads are those of the package.
void decode_amd_cache_sizes(const CpuidLeaves& leaves, CpuFeatures& features) {
  const std::uint32_t highest = leaves.leaf_80000000.eax;
  if (highest < 0x80000005) return;
  features.l1d_bytes = field(leaves.leaf_80000005.ecx, 24, 8) * 1_KiB;
  if (highest < 0x80000006) return;
  features.l2_bytes = field(leaves.leaf_80000006.ecx, 16, 16) * 1_KiB;
  const std::uint32_t threads =
      highest < 0x80000008 ? 1 : field(leaves.leaf_80000008.ecx, 0, 8) + 1;
  set_l3(field(leaves.leaf_80000006.edx, 18, 14) * 512_KiB, threads, features);
}

void decode_caches(const CpuidLeaves& leaves, CpuFeatures& features) {
  if (features.vendor == CpuVendor::unknown) return;
  if (features.vendor == CpuVendor::amd || features.vendor == CpuVendor::hygon) {
    const bool topoext = bit(leaves.leaf_80000001.ecx, 22);
    if (leaves.leaf_80000000.eax < 0x8000001d || !topoext) {
      return decode_amd_cache_sizes(leaves, features);
    }
    return decode_cache_list(leaves.leaf_8000001d, features);
  }
  if (leaves.leaf_0.eax >= 4) decode_cache_list(leaves.leaf_4, features);
}

#if defined(__x86_64__)

CpuidRegisters cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  CpuidRegisters out;
  __cpuid_count(leaf, subleaf, out.eax, out.ebx, out.ecx, out.edx);
  return out;
}

std::uint64_t read_xcr0() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  // As text: the intrinsic would need -mxsave for this file.
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

void read_caches(std::uint32_t leaf, std::array<CpuidRegisters, kMaxCacheSubleaves>& subleaves) {
  for (std::uint32_t i = 0; i < subleaves.size(); ++i) {
    subleaves[i] = cpuid(leaf, i);
    if (field(subleaves[i].eax, 0, 5) == 0) break;
  }
}

#endif

}  // namespace

std::string_view to_string(CpuVendor vendor) {
  switch (vendor) {
    case CpuVendor::unknown:
      return "unknown";
    case CpuVendor::intel:
      return "Intel";
    case CpuVendor::amd:
      return "AMD";
    case CpuVendor::hygon:
      return "Hygon";
    case CpuVendor::zhaoxin:
      return "Zhaoxin";
  }
  return "unknown";
}

CpuFeatures decode_cpu_features(const CpuidLeaves& leaves) {
  CpuFeatures features;
  features.vendor = decode_vendor(leaves.leaf_0);
  if (leaves.leaf_0.eax < 1) return features;
  decode_family_and_model(leaves.leaf_1.eax, features);
  features.hypervisor = bit(leaves.leaf_1.ecx, 31);
  decode_leaf_7(leaves, features);
  features.rep_good = has_good_rep(features, leaves.leaf_1.eax);
  features.fast_short_stosb = features.fsrs || (features.vendor == CpuVendor::amd && features.fsrm);
  if (leaves.leaf_80000000.eax >= 0x80000008) features.clzero = bit(leaves.leaf_80000008.ebx, 0);
  decode_caches(leaves, features);
  return features;
}

#if defined(__x86_64__)

CpuidLeaves read_cpuid_leaves() {
  CpuidLeaves leaves;
  leaves.leaf_0 = cpuid(0);
  leaves.leaf_1 = cpuid(1);
  leaves.leaf_7_0 = cpuid(7, 0);
  leaves.leaf_7_1 = cpuid(7, 1);
  leaves.leaf_80000000 = cpuid(0x80000000);
  leaves.leaf_80000001 = cpuid(0x80000001);
  leaves.leaf_80000005 = cpuid(0x80000005);
  leaves.leaf_80000006 = cpuid(0x80000006);
  leaves.leaf_80000008 = cpuid(0x80000008);
  if (leaves.leaf_0.eax >= 4) read_caches(4, leaves.leaf_4);
  if (leaves.leaf_80000000.eax >= 0x8000001d) read_caches(0x8000001d, leaves.leaf_8000001d);
  // Without OSXSAVE the instruction itself faults.
  if (bit(leaves.leaf_1.ecx, 27)) leaves.xcr0 = read_xcr0();
  return leaves;
}

#else

CpuidLeaves read_cpuid_leaves() {
  return {};
}

#endif

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = decode_cpu_features(read_cpuid_leaves());
  return features;
}

}  // namespace pagetide
