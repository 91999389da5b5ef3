#include <array>
#include <thread>

#include "bench/heap/own_table.h"
#include "bench/heap/random.h"
#include "bench/heap/tagged_block.h"
#include "bench/heap/workload.h"

namespace pagetide::bench {

namespace {

constexpr std::size_t kThreads = 2;
constexpr std::size_t kGenerations = 4;  // of threads, in a portion

class Server final : public Workload {
 public:
  explicit Server(Scale scale) : replaced_(scale.of(30'000)), blocks_(kThreads * scale.of(10'000)) {
    for (TaggedBlock& block : blocks_) block = make(random_);
  }
  ~Server() override {
    for (TaggedBlock& block : blocks_) release(block);
  }

  std::uint64_t run() override {
    for (std::size_t generation = 0; generation < kGenerations; ++generation) {
      std::array<std::thread, kThreads> threads;
      for (std::size_t i = 0; i < kThreads; ++i) {
        // Never the table that this thread's predecessor had.
        const std::size_t table = (i + generation) % kThreads;
        threads[i] = std::thread([this, table, seed = random_.next()] { serve(table, seed); });
      }
      for (std::thread& thread : threads) thread.join();
    }
    return kGenerations * kThreads * replaced_;
  }

 private:
  static TaggedBlock make(Random& random) {
    return make_block(random.between(16, 1024), random.tag());
  }

  void serve(std::size_t table, std::uint64_t seed) {
    Random random(seed);
    const std::size_t count = blocks_.size() / kThreads;
    TaggedBlock* const blocks = blocks_.data() + table * count;
    for (std::size_t i = 0; i < replaced_; ++i) {
      TaggedBlock& block = blocks[random.below(count)];
      release(block);
      block = make(random);
    }
  }

  std::size_t replaced_;  // by a thread
  Random random_{1};
  OwnTable<TaggedBlock> blocks_;  // a table after the other
};

}  // namespace

std::unique_ptr<Workload> make_server(Scale scale) {
  return std::make_unique<Server>(scale);
}

}  // namespace pagetide::bench
