#include "pagetide/allocator/clear/clear_plan.h"

#include <algorithm>

#include "pagetide/base/bytes.h"

namespace pagetide {

namespace {

#if defined(__x86_64__)

using namespace literals;

// Intel with ERMS alone: starting up costs some 35 cycles, amortised at about this size; also the
// limit glibc uses.
constexpr std::size_t kIntelErmsBytes = 2_KiB;
// Zen 5, measured with bench_clear. In the caches AVX2 and AVX-512 are equally fast on aligned
// blocks; AVX2 leads by a twentieth on small blocks that are not aligned, AVX-512 on large ones.
constexpr std::size_t kZen5Avx512Bytes = 256_KiB;
// Out of them AVX-512 leads, by a third from 2 KiB on, until non-temporal stores overtake it; these
// lead by up to half over rep stosb, which equals them from the size of L3 on.
constexpr std::size_t kZen5NontemporalBytes = 8_KiB;
// What is assumed where CPUID tells no cache sizes, as in many virtual machines.
constexpr std::size_t kUsualL2Bytes = 1_MiB;
constexpr std::size_t kUsualL3Bytes = 32_MiB;

std::size_t l2_bytes(const CpuFeatures& cpu) {
  return cpu.l2_bytes != 0 ? cpu.l2_bytes : kUsualL2Bytes;
}

std::size_t l3_bytes(const CpuFeatures& cpu) {
  return cpu.l3_bytes != 0 ? cpu.l3_bytes : kUsualL3Bytes;
}

constexpr ClearBands one(ClearKernel kernel) {
  return {{{kNoClearLimit, kernel}, {kNoClearLimit, kernel}, {kNoClearLimit, kernel}}};
}

// `small` below `bytes`, `large` from there on.
constexpr ClearBands two(ClearKernel small, std::size_t bytes, ClearKernel large) {
  return {{{bytes - 1, small}, {kNoClearLimit, large}, {kNoClearLimit, large}}};
}

constexpr ClearBands three(ClearKernel small, std::size_t bytes, ClearKernel middle,
                           std::size_t more_bytes, ClearKernel large) {
  return {{{bytes - 1, small}, {more_bytes - 1, middle}, {kNoClearLimit, large}}};
}

bool is_zen_5_or_later(const CpuFeatures& cpu) {
  return cpu.vendor == CpuVendor::amd && cpu.family >= 26;
}

bool is_skylake_server(const CpuFeatures& cpu) {
  return cpu.vendor == CpuVendor::intel && cpu.family == 6 && cpu.model == 0x55;
}

// AVX-512 lowers the clock of Intel CPUs before those that also have AVX-VNNI (glibc's rule), and
// Zen 4 executes it in halves. On Zen 5 it was measured to be as fast as AVX2 in the caches and a
// third faster out of them.
ClearKernel widest_vectors(const CpuFeatures& cpu) {
  const bool at_full_speed = cpu.vendor == CpuVendor::intel ? cpu.avx_vnni : is_zen_5_or_later(cpu);
  if (cpu.avx512 && at_full_speed) return ClearKernel::avx512;
  return cpu.avx2 ? ClearKernel::avx2 : ClearKernel::sse2;
}

ClearPlan intel_plan(const CpuFeatures& cpu) {
  const ClearKernel vectors = widest_vectors(cpu);
  constexpr ClearKernel kString = ClearKernel::rep_stosb;
  // glibc's threshold for memset on modern Intel CPUs.
  const std::size_t uncached_bytes = l3_bytes(cpu) / 2;
  if (!cpu.erms && !cpu.fast_short_stosb) {
    return {one(vectors), two(vectors, uncached_bytes, ClearKernel::nontemporal),
            "it does not promise a fast rep stosb (ERMS)"};
  }
  if (cpu.fast_short_stosb) {
    // Fast from the first size on that is not inlined.
    return {one(kString), two(kString, uncached_bytes, ClearKernel::nontemporal),
            "it has a fast short rep stosb (FSRS)"};
  }
  const ClearBands cached = two(vectors, kIntelErmsBytes, kString);
  if (is_skylake_server(cpu)) {
    return {cached, cached,
            "it has a fast rep stosb (ERMS), and non-temporal stores that lose to it"};
  }
  return {cached,
          three(vectors, kIntelErmsBytes, kString, uncached_bytes, ClearKernel::nontemporal),
          "it has a fast rep stosb (ERMS) that is slow to start (no FSRS)"};
}

ClearPlan amd_plan(const CpuFeatures& cpu) {
  const ClearKernel vectors = widest_vectors(cpu);
  if (!cpu.fast_short_stosb) {
    // Zen 1, Zen 2, Hygon. glibc's measurements of three Hygon parts with caches of 8 MiB gained by
    // non-temporal stores at 16 MiB on all, at 8 MiB not on all.
    return {one(vectors), two(vectors, 2 * l3_bytes(cpu), ClearKernel::nontemporal),
            "it does not promise a fast rep stosb (FSRM)"};
  }
  if (is_zen_5_or_later(cpu)) {
    // Both columns are measured.
    const ClearKernel short_vectors = cpu.avx2 ? ClearKernel::avx2 : ClearKernel::sse2;
    const std::size_t string_bytes = l2_bytes(cpu);
    return {
        three(short_vectors, std::min(kZen5Avx512Bytes, string_bytes), vectors, string_bytes,
              ClearKernel::rep_stosb),
        three(vectors, kZen5NontemporalBytes, ClearKernel::nontemporal, l3_bytes(cpu),
              ClearKernel::rep_stosb),
        "vector stores are its fastest way up to the size of the L2 cache, and rep stosb (FSRM) "
        "from there on"};
  }
  // Zen 3 and 4: vectors are at least as fast as rep stosb (glibc 2.40 came to the same rule) until
  // the extent exceeds the L3 of a core complex; then the string operation stops allocating cache
  // lines for it (measured for Linux's clear_pages on Milan).
  return {two(vectors, l3_bytes(cpu), ClearKernel::rep_stosb),
          three(vectors, l3_bytes(cpu) / 2, ClearKernel::nontemporal, l3_bytes(cpu),
                ClearKernel::rep_stosb),
          "vector stores are as fast as its rep stosb (FSRM) until a block exceeds the L3 cache"};
}

#endif

}  // namespace

#if defined(__x86_64__)

ClearPlan clear_plan_for(const CpuFeatures& cpu) {
  switch (cpu.vendor) {
    case CpuVendor::intel:
      return intel_plan(cpu);
    case CpuVendor::amd:
    case CpuVendor::hygon:
      return amd_plan(cpu);
    // Nobody has measured these, and the C library may know.
    case CpuVendor::zhaoxin:
    case CpuVendor::unknown:
      break;
  }
  return uniform_clear_plan(
      ClearKernel::memset, "nothing better is known for this CPU than the memset of the C library");
}

#else

ClearPlan clear_plan_for(const CpuFeatures&) {
  return uniform_clear_plan(ClearKernel::memset,
                            "the memset of the C library is what there is on this architecture");
}

#endif

}  // namespace pagetide
