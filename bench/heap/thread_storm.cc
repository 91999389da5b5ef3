#include <array>
#include <thread>

#include "bench/heap/own_table.h"
#include "bench/heap/random.h"
#include "bench/heap/tagged_block.h"
#include "bench/heap/workload.h"

namespace pagetide::bench {

namespace {

constexpr std::size_t kThreads = 4;  // at a time
constexpr std::size_t kBlocks = 400;
constexpr std::size_t kLeft = kBlocks / 2;

// What one thread left; the next generation reads one and writes another.
using Leftovers = std::array<TaggedBlock, kLeft>;

class ThreadStorm final : public Workload {
 public:
  explicit ThreadStorm(Scale scale) : generations_(scale.of(150)), left_(2 * kThreads) {}
  ~ThreadStorm() override {
    for (Leftovers& leftovers : left_) free_all(leftovers);
  }

  std::uint64_t run() override {
    for (std::size_t i = 0; i < generations_; ++i) {
      // After an even number of generations in all, or an odd one: what is read was written last.
      const std::size_t written = parity_ * kThreads;
      const std::size_t read = (1 - parity_) * kThreads;
      std::array<std::thread, kThreads> threads;
      for (std::size_t lane = 0; lane < kThreads; ++lane) {
        Leftovers& from = left_[read + (lane + 1) % kThreads];
        Leftovers& to = left_[written + lane];
        threads[lane] = std::thread([&from, &to, seed = random_.next()] { live(from, to, seed); });
      }
      for (std::thread& thread : threads) thread.join();
      parity_ = 1 - parity_;
    }
    return generations_ * kThreads * kBlocks;
  }

 private:
  static void free_all(Leftovers& leftovers) {
    for (TaggedBlock& block : leftovers) release(block);
  }

  static void live(Leftovers& from, Leftovers& to, std::uint64_t seed) {
    Random random(seed);
    std::array<TaggedBlock, kBlocks> blocks;
    for (TaggedBlock& block : blocks) block = make_block(random.between(16, 512), random.tag());
    free_all(from);
    for (std::size_t i = 0; i < kLeft; ++i) {
      release(blocks[2 * i]);
      to[i] = blocks[2 * i + 1];
    }
  }

  std::size_t generations_;  // in a portion
  std::size_t parity_ = 0;
  Random random_{1};
  OwnTable<Leftovers> left_;
};

}  // namespace

std::unique_ptr<Workload> make_thread_storm(Scale scale) {
  return std::make_unique<ThreadStorm>(scale);
}

}  // namespace pagetide::bench
