#include <array>
#include <thread>

#include "bench/heap/own_table.h"
#include "bench/heap/random.h"
#include "bench/heap/tagged_block.h"
#include "bench/heap/workload.h"

namespace pagetide::bench {

namespace {

constexpr std::size_t kThreads = 2;
constexpr std::size_t kSlots = 8;
constexpr int kWrites = 200;

// The blocks of a thread, on cache lines of their own: what is shared is for the allocator to say.
struct alignas(128) Slots {
  std::array<TaggedBlock, kSlots> blocks;
};

// As a counter would be used: each write waits for the one before.
void write_many_times(const TaggedBlock& block) {
  auto* const word = static_cast<volatile std::uint64_t*>(block.at);
  const std::uint64_t first = *word;
  for (int i = 0; i < kWrites; ++i) *word = *word + 1;
  if (*word != first + kWrites) stop_worker("another thread writes to the same block");
  *word = first;
}

class FalseSharing final : public Workload {
 public:
  explicit FalseSharing(Scale scale) : objects_(scale.of(120'000)), slots_(kThreads) {}

  std::uint64_t run() override {
    // In turn for one and the other thread, so that neighbours get different ones.
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      for (Slots& slots : slots_) slots.blocks[slot] = make(random_);
    }
    std::array<std::thread, kThreads> threads;
    for (std::size_t i = 0; i < kThreads; ++i) {
      threads[i] = std::thread([this, i, seed = random_.next()] { use(slots_[i], seed); });
    }
    for (std::thread& thread : threads) thread.join();
    return kThreads * (kSlots + objects_);
  }

 private:
  static TaggedBlock make(Random& random) {
    return make_block(TaggedBlock::kMinBytes, random.tag());
  }

  void use(Slots& slots, std::uint64_t seed) const {
    Random random(seed);
    for (std::size_t i = 0; i < objects_; ++i) {
      TaggedBlock& block = slots.blocks[i % kSlots];
      write_many_times(block);
      release(block);
      block = make(random);
    }
    for (TaggedBlock& block : slots.blocks) release(block);
  }

  std::size_t objects_;  // of a thread, in a portion
  Random random_{1};
  OwnTable<Slots> slots_;
};

}  // namespace

std::unique_ptr<Workload> make_false_sharing(Scale scale) {
  return std::make_unique<FalseSharing>(scale);
}

}  // namespace pagetide::bench
