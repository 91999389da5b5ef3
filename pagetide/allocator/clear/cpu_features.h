#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pagetide/base/export.h"

// What the CPU says about fast ways to clear memory. Decoding is apart from reading, so that the
// decoder can be tested on the leaves of CPUs that are not at hand.
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
  CpuidRegisters leaf_1;    // family, model, OSXSAVE
  CpuidRegisters leaf_7_0;  // ERMS, AVX2, AVX-512, FSRM; EAX is the highest subleaf
  CpuidRegisters leaf_7_1;  // FZRM, FSRS
  CpuidRegisters leaf_80000000;
  CpuidRegisters leaf_80000001;  // TOPOEXT
  CpuidRegisters leaf_80000008;  // CLZERO
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

  bool rep_good = false;  // rep stosq is fast: known from family and model, no CPUID bit says so
  bool erms = false;      // enhanced rep movsb and stosb
  bool fsrm = false;      // fast short rep movsb
  bool fzrm = false;      // fast zero-length rep movsb
  bool fsrs = false;      // fast short rep stosb, as the CPU reports it
  // rep stosb is fast for short blocks: FSRS, or FSRM on AMD, whose CPUs never report FSRS.
  bool fast_short_stosb = false;

  bool avx2 = false;    // usable: the CPU has it and the operating system saves its registers
  bool avx512 = false;  // the same for AVX-512 F and BW
  bool clzero = false;

  std::size_t l3_bytes = 0;  // of the L3 this core shares; 0 if the CPU does not tell
};

PAGETIDE_API CpuFeatures decode_cpu_features(const CpuidLeaves& leaves);

// Executes about 15 CPUID instructions; each is a trap of microseconds in a virtual machine.
PAGETIDE_API CpuidLeaves read_cpuid_leaves();

// The features of this machine, read once.
PAGETIDE_API const CpuFeatures& cpu_features();

}  // namespace pagetide
