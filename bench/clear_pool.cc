#include "bench/clear_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "bench/support.h"
#include "pagetide/base/bytes.h"
#include "pagetide/base/hash.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace pagetide::bench {

namespace {

using namespace literals;
using Clock = std::chrono::steady_clock;

constexpr int kPattern = 0xa5;
constexpr std::size_t kMisalignment = 7;
// A chunk is at least this: long enough for the clock, and short enough to stay in L2.
constexpr std::size_t kHotChunkBytes = 256_KiB;
constexpr std::size_t kColdChunkBytes = 1_MiB;
// Rounds are as many as let all ways together clear about this.
constexpr std::size_t kRaceBytes = 512_MiB;
constexpr std::size_t kMinRounds = 31;
constexpr std::size_t kMaxRounds = 201;

void fill_uncached(std::byte* first, std::size_t bytes) {
#if defined(__x86_64__)
  const __m128i pattern = _mm_set1_epi8(static_cast<char>(kPattern));
  auto* const vectors = reinterpret_cast<__m128i*>(first);
  for (std::size_t i = 0; i < bytes / sizeof(__m128i); ++i) _mm_stream_si128(vectors + i, pattern);
  _mm_sfence();
#else
  std::memset(first, kPattern, bytes);
#endif
}

double clock_seconds() {
  std::vector<double> samples;
  for (int i = 0; i < 1001; ++i) {
    const Clock::time_point start = Clock::now();
    samples.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return median(samples);
}

template <typename Clear>
std::function<void(std::byte*, std::size_t, std::size_t)> each_block(Clear clear) {
  return [clear](std::byte* first, std::size_t bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) clear(first + i * bytes, bytes);
  };
}

}  // namespace

Clearer clearer_of(ClearKernel kernel) {
  return {std::string(clear_kernel_name(kernel)), each_block(clear_kernel_function(kernel))};
}

Clearer clearer_of_the_heap(Cache cache) {
  if (cache == Cache::hot) {
    return {"clear_memory", each_block([](std::byte* p, std::size_t n) { clear_memory(p, n); })};
  }
  return {"clear_memory",
          each_block([](std::byte* p, std::size_t n) { clear_memory(p, n, InCache::unlikely); })};
}

std::vector<Clearer> clearers_of_all_kernels() {
  std::vector<Clearer> clearers;
  for (const ClearKernel kernel : all_clear_kernels()) {
    if (check_clear_kernel(kernel, cpu_features())) clearers.push_back(clearer_of(kernel));
  }
  return clearers;
}

std::vector<double> race(const ClearCell& cell, const std::vector<Clearer>& clearers) {
  const std::size_t wanted = cell.cache == Cache::hot ? kHotChunkBytes : kColdChunkBytes;
  const std::size_t blocks = std::max<std::size_t>(1, wanted / cell.bytes);
  const std::size_t chunk_bytes = blocks * cell.bytes;
  // The pages are populated by the first fill, and of the base size: as those of an arena.
  const Pages pages(round_up(chunk_bytes + kMisalignment, page_size()));
  if (pages.range().empty()) return {};
  std::byte* const first = pages.range().data() + (cell.aligned ? 0 : kMisalignment);
  const double clock = clock_seconds();
  std::vector<std::vector<double>> times(clearers.size());
  const std::size_t rounds =
      std::clamp(kRaceBytes / chunk_bytes / clearers.size(), kMinRounds, kMaxRounds);
  // In another order each round: what one leaves behind is not always found by the same other.
  std::vector<std::size_t> order(clearers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::minstd_rand random;
  // Round 0 warms up and does not count.
  for (std::size_t round = 0; round <= rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t who : order) {
      if (cell.cache == Cache::hot) {
        std::memset(pages.range().data(), kPattern, pages.range().size);
      } else {
        fill_uncached(pages.range().data(), pages.range().size);
      }
      benchmark::ClobberMemory();
      const Clock::time_point start = Clock::now();
      clearers[who].clear(first, cell.bytes, blocks);
      const Clock::time_point stop = Clock::now();
      const double seconds = std::chrono::duration<double>(stop - start).count() - clock;
      // A way that leaves something is no way.
      if (!is_all_zero(first, chunk_bytes)) return {};
      if (round > 0) times[who].push_back(seconds / static_cast<double>(blocks));
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& samples : times) medians.push_back(median(std::move(samples)));
  return medians;
}

}  // namespace pagetide::bench
