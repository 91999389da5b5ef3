// The clear kernels by block size and by where the blocks are: in L2, in L3, in memory.
//
//   bench_clear --benchmark_filter='clear/(avx2|rep_stosb|memset)/bytes:16384/'
//
// What is cleared must not be zero already: CPUs of some microcode levels elide the write-back of
// zeros over zeros, so clearing the same block again and again measures the microcode. Refilling
// it between calls inside PauseTiming() costs hundreds of nanoseconds a pair of clock reads,
// more than clearing most blocks takes, and the noise of that would be the result. So one
// iteration clears a whole pool of blocks between two clock reads (manual time), and the pool is
// refilled outside them. The refill also decides where the blocks are when the clock starts:
// a pool of 256 KiB was left in L2, one of 4 MiB in L3, one of 64 MiB mostly in memory.
//
// Kernel rows call the kernel through a pointer, as clear_memory() does; `memset` is the control,
// `clear_memory` what the heap gets, the inline path for small blocks included.

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pagetide/allocator/clear/clear.h"
#include "pagetide/base/bytes.h"

namespace {

using namespace pagetide;
using namespace pagetide::literals;

constexpr int kPattern = 0xa5;

// Pages of the system's base size, populated, so that no page fault is timed.
class Pool {
 public:
  explicit Pool(std::size_t bytes)
      : bytes_(bytes),
        memory_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (valid()) ::madvise(memory_, bytes_, MADV_NOHUGEPAGE);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    if (valid()) ::munmap(memory_, bytes_);
  }

  bool valid() const { return memory_ != MAP_FAILED; }
  std::byte* begin() const { return static_cast<std::byte*>(memory_); }
  void refill() const {
    std::memset(memory_, kPattern, bytes_);
    benchmark::ClobberMemory();
  }

 private:
  std::size_t bytes_;
  void* memory_;
};

template <typename Clear>
void clear_pools(benchmark::State& state, Clear clear) {
  using Clock = std::chrono::steady_clock;
  const auto block_bytes = static_cast<std::size_t>(state.range(0));
  const std::size_t pool_bytes = static_cast<std::size_t>(state.range(1)) * 1_KiB;
  const Pool pool(pool_bytes);
  if (!pool.valid()) {
    state.SkipWithError("cannot map the pool");
    return;
  }
  const std::byte* const end = pool.begin() + pool_bytes;
  for (auto _ : state) {
    pool.refill();
    const Clock::time_point start = Clock::now();
    for (std::byte* block = pool.begin(); block < end; block += block_bytes) {
      clear(block, block_bytes);
    }
    const Clock::time_point stop = Clock::now();
    state.SetIterationTime(std::chrono::duration<double>(stop - start).count());
  }
  const auto iterations = static_cast<std::int64_t>(state.iterations());
  state.SetBytesProcessed(iterations * static_cast<std::int64_t>(pool_bytes));
}

void clear(benchmark::State& state, ClearKernel kernel) {
  if (const Result<void> possible = check_clear_kernel(kernel, cpu_features()); !possible) {
    state.SkipWithError(possible.error().message().c_str());
    return;
  }
  clear_pools(state, clear_kernel_function(kernel));
}

void clear_as_the_heap_does(benchmark::State& state) {
  clear_pools(state, [](void* block, std::size_t bytes) { clear_memory(block, bytes); });
}

void sizes_and_pools(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"bytes", "pool_KiB"})->UseManualTime()->MinTime(0.05);
  for (const std::size_t pool_bytes : {256_KiB, 4_MiB, 64_MiB}) {
    for (const std::size_t bytes : {std::size_t{16}, std::size_t{64}, std::size_t{256}, 1_KiB,
                                    4_KiB, 16_KiB, 64_KiB, 256_KiB, 4_MiB}) {
      if (bytes > pool_bytes) continue;
      benchmark->Args(
          {static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(pool_bytes / 1_KiB)});
    }
  }
  // One extent larger than an L3 cache.
  benchmark->Args({static_cast<std::int64_t>(64_MiB), static_cast<std::int64_t>(64_MiB / 1_KiB)});
}

BENCHMARK_CAPTURE(clear, stores, ClearKernel::stores)->Apply(sizes_and_pools);
BENCHMARK_CAPTURE(clear, rep_stosq, ClearKernel::rep_stosq)->Apply(sizes_and_pools);
BENCHMARK_CAPTURE(clear, rep_stosb, ClearKernel::rep_stosb)->Apply(sizes_and_pools);
BENCHMARK_CAPTURE(clear, avx2, ClearKernel::avx2)->Apply(sizes_and_pools);
BENCHMARK_CAPTURE(clear, memset, ClearKernel::memset)->Apply(sizes_and_pools);
BENCHMARK(clear_as_the_heap_does)->Name("clear/clear_memory")->Apply(sizes_and_pools);

}  // namespace

BENCHMARK_MAIN();
