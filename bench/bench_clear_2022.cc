// The four ways that Linux was to clear memory for user space by in 2022 (x86/clear_user: make it
// faster), at blocks of 16 KiB, which stay in the caches.
//
//   clear_2022/original    a loop of 8-byte stores
//   clear_2022/rep_good    rep stosq
//   clear_2022/erms        rep stosb
//   clear_2022/fsrm        rep stosb, without anything before it
//   clear_2022/clear_memory  what this machine's blocks of that size get from us
//   clear_2022/dd          dd if=/dev/zero of=/dev/null bs=16k: the kernel of this machine
//
// lkml_GB_s and lkml_ratio are the published numbers of a Zen 3. GB_s is ours, `ratio` the time of
// `original` divided by the row's, as lkml_ratio is.

#include <benchmark/benchmark.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench_clear.h"
#include "bench/clear_pool.h"
#include "bench/support.h"
#include "pagetide/base/bytes.h"

namespace pagetide::bench {

namespace {

using namespace literals;

constexpr std::size_t kBlockBytes = 16_KiB;
constexpr double kPublishedOriginal = 20.11;  // GB/s

struct Way {
  std::string name;
  Clearer clearer;
  std::optional<double> published;  // GB/s
};

#if defined(__x86_64__)
void bare_rep_stosb(std::byte* first, std::size_t bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* block = first + i * bytes;
    std::size_t left = bytes;
    asm volatile("rep stosb" : "+D"(block), "+c"(left) : "a"(0) : "memory");
  }
}
#endif

std::vector<Way> ways() {
  std::vector<Way> all = {
    {"original", clearer_of(ClearKernel::original), kPublishedOriginal},
#if defined(__x86_64__)
    {"rep_good", clearer_of(ClearKernel::rep_stosq), 34.66},
    {"erms", clearer_of(ClearKernel::rep_stosb), 36.38},
    {"fsrm", {"fsrm", bare_rep_stosb}, 36.40},
#endif
    {"clear_memory", clearer_of_the_heap(Cache::hot), std::nullopt},
  };
  return all;
}

void show(benchmark::State& state, double seconds, double original_seconds) {
  state.SetIterationTime(seconds);
  state.counters["GB_s"] = static_cast<double>(kBlockBytes) / seconds / 1e9;
  state.counters["ratio"] = original_seconds / seconds;
}

// Every row runs the race of all.
void one_way(benchmark::State& state, std::size_t which) {
  const std::vector<Way> all = ways();
  std::vector<Clearer> clearers;
  for (const Way& way : all) clearers.push_back(way.clearer);
  for (auto _ : state) {
    const std::vector<double> seconds = race({kBlockBytes, true, Cache::hot}, clearers);
    if (seconds.empty())
      return state.SkipWithError("no memory, or a kernel left bytes that are not zero");
    show(state, seconds[which], seconds[0]);
    if (const auto published = all[which].published) {
      state.counters["lkml_GB_s"] = *published;
      state.counters["lkml_ratio"] = *published / kPublishedOriginal;
    }
  }
}

// Seconds a block, as dd itself says. nullopt where there is no dd.
std::optional<double> seconds_of_dd() {
  constexpr int kBlocks = 500'000;
  const std::string command =
      "LC_ALL=C dd if=/dev/zero of=/dev/null bs=16k count=" + std::to_string(kBlocks) + " 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (!pipe) return std::nullopt;
  std::string text;
  std::array<char, 512> part;
  while (std::fgets(part.data(), static_cast<int>(part.size()), pipe.get()) != nullptr) {
    text += part.data();
  }
  // "8192000000 bytes (8.2 GB, 7.6 GiB) copied, 0.351 s, 23.3 GB/s"
  const std::size_t copied = text.find("copied, ");
  if (copied == std::string::npos) return std::nullopt;
  return std::stod(text.substr(copied + 8)) / kBlocks;
}

void dd(benchmark::State& state) {
  const std::vector<Clearer> original = {clearer_of(ClearKernel::original)};
  for (auto _ : state) {
    const std::vector<double> seconds = race({kBlockBytes, true, Cache::hot}, original);
    const auto of_dd = seconds_of_dd();
    if (!of_dd || seconds.empty()) return state.SkipWithError("dd cannot be run");
    show(state, *of_dd, seconds[0]);
    state.SetLabel("dd if=/dev/zero of=/dev/null bs=16k");
  }
}

}  // namespace

void register_clear_2022() {
  const std::vector<Way> all = ways();
  for (std::size_t i = 0; i < all.size(); ++i) {
    benchmark::RegisterBenchmark(("clear_2022/" + all[i].name).c_str(), one_way, i)->Apply(series);
  }
  benchmark::RegisterBenchmark("clear_2022/dd", dd)->Apply(series);
}

}  // namespace pagetide::bench
