#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pagetide/base/export.h"

// What the CPU says about fast ways to clear memory. Decoding is apart from reading, so that the
// decoder can be tested on the leaves of CPUs that are not at hand.
//
// Where a bit is defined: Intel SDM Vol. 2A, instruction CPUID, table "Information Returned by
// CPUID Instruction", below "SDM"; AMD64 APM Vol. 3, Appendix E, below "APM". Both list the leaves
// in ascending order.
//
// Everything here is thread-safe and allocates nothing. On other architectures than x86-64 it
// compiles and reports no features.

namespace pagetide {

struct CpuidRegisters {
  std::uint32_t eax = 0;
  std::uint32_t ebx = 0;
  std::uint32_t ecx = 0;
  std::uint32_t edx = 0;
};

inline constexpr std::size_t kMaxCacheSubleaves = 8;

// Raw answers of the CPUID instruction, named by leaf and subleaf. A leaf beyond the highest one
// the CPU has may hold anything (Intel answers with its highest leaf): the decoder looks at the
// bounds in leaf_0 and leaf_80000000, so a recorded dump can be put here as it is.
struct CpuidLeaves {
  CpuidRegisters leaf_0;    // highest basic leaf, vendor
  CpuidRegisters leaf_1;    // family, model, OSXSAVE, hypervisor
  CpuidRegisters leaf_7_0;  // ERMS, AVX2, AVX-512, FSRM; EAX is the highest subleaf
  CpuidRegisters leaf_7_1;  // AVX-VNNI, FZRM, FSRS
  CpuidRegisters leaf_80000000;
  CpuidRegisters leaf_80000001;  // TOPOEXT
  CpuidRegisters leaf_80000005;  // L1 of AMD
  CpuidRegisters leaf_80000006;  // L2 and L3 of AMD
  CpuidRegisters leaf_80000008;  // CLZERO, number of threads of AMD
  // Caches, one subleaf each: leaf 4 on Intel, leaf 8000001d with the same layout on AMD.
  std::array<CpuidRegisters, kMaxCacheSubleaves> leaf_4;
  std::array<CpuidRegisters, kMaxCacheSubleaves> leaf_8000001d;
  // Which register states the operating system saves; 0 without OSXSAVE.
  std::uint64_t xcr0 = 0;
};

enum class CpuVendor : std::uint8_t { unknown, intel, amd, hygon, zhaoxin };

PAGETIDE_API std::string_view to_string(CpuVendor vendor);

struct CpuFeatures {
  CpuVendor vendor = CpuVendor::unknown;
  std::uint32_t family = 0;  // display family and model, extended fields added in
  std::uint32_t model = 0;

  // A virtual machine: bits may be hidden, and caches may be those of another machine. SDM leaf 1
  // and APM E.3 function 1, ECX[31]: never set by hardware.
  bool hypervisor = false;

  bool rep_good = false;  // rep stosq is fast: known from family and model, no CPUID bit says so
  bool erms = false;      // enhanced rep movsb and stosb: leaf 7 EBX[9] in SDM and APM E.3
  bool fsrm = false;      // fast short rep movsb: leaf 7 EDX[4] in SDM and APM E.3
  bool fzrm = false;      // fast zero-length rep movsb: SDM leaf 7 subleaf 1 EAX[10]
  bool fsrs = false;      // fast short rep stosb, as the CPU reports it: SDM, the same EAX[11]
  // rep stosb is fast for short blocks: FSRS, or FSRM on AMD, whose CPUs never report FSRS.
  bool fast_short_stosb = false;

  // These are usable: the CPU has them, and the operating system saves their registers.
  bool avx2 = false;  // leaf 7 EBX[5] in SDM and APM E.3
  // F and BW, leaf 7 EBX[16] and [30]. VL is not asked for, so only 512-bit registers are meant.
  bool avx512 = false;
  // Leaf 7 subleaf 1 EAX[4] in SDM and APM E.3. On Intel the sign of a CPU that does not lower its
  // frequency for 512-bit stores; glibc takes it for that too.
  bool avx_vnni = false;
  bool clzero = false;  // APM E.4 function 8000_0008h EBX[0]

  // Of the caches of this core; 0 if the CPU does not tell. SDM leaf 4, APM E.4 function
  // 8000_001Dh. An AMD CPU without TOPOEXT, which hypervisors like to hide, has the functions
  // 8000_0005h and 8000_0006h; there the L3 is the sum of those in the package.
  std::size_t l1d_bytes = 0;
  std::size_t l2_bytes = 0;
  std::size_t l3_bytes = 0;
  // The L3 divided by the logical CPUs that share it, as far as CPUID tells. Intel tells how many
  // IDs are reserved for them, a power of two that may be several times their number.
  std::size_t l3_share_bytes = 0;
};

PAGETIDE_API CpuFeatures decode_cpu_features(const CpuidLeaves& leaves);

// Executes about 15 CPUID instructions; each is a trap of microseconds in a virtual machine.
PAGETIDE_API CpuidLeaves read_cpuid_leaves();

// The features of this machine, read once.
PAGETIDE_API const CpuFeatures& cpu_features();

}  // namespace pagetide
