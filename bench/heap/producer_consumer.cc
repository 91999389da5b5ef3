#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "bench/heap/own_table.h"
#include "bench/heap/random.h"
#include "bench/heap/tagged_block.h"
#include "bench/heap/workload.h"

namespace pagetide::bench {

namespace {

// Batches, so that the queue's lock is a small part of the time.
struct Batch {
  std::array<TaggedBlock, 64> blocks;
};

constexpr std::size_t kQueueBatches = 32;

class ProducerConsumer final : public Workload {
 public:
  explicit ProducerConsumer(Scale scale) : batches_(scale.of(6'000)), queue_(kQueueBatches) {}

  std::uint64_t run() override {
    produced_ = consumed_ = 0;
    std::thread producer([this] { produce(); });
    std::thread consumer([this] { consume(); });
    producer.join();
    consumer.join();
    return batches_ * Batch{}.blocks.size();
  }

 private:
  void produce() {
    for (std::size_t i = 0; i < batches_; ++i) {
      wait_until([this] { return produced_ - consumed_ < kQueueBatches; });
      for (TaggedBlock& block : queue_[i % kQueueBatches].blocks) {
        block = make_block(random_.between(32, 288), random_.tag());
      }
      count_up(produced_);
    }
  }

  void consume() {
    for (std::size_t i = 0; i < batches_; ++i) {
      wait_until([this] { return produced_ > consumed_; });
      for (TaggedBlock& block : queue_[i % kQueueBatches].blocks) release(block);
      count_up(consumed_);
    }
  }

  template <typename Condition>
  void wait_until(Condition condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, condition);
  }
  void count_up(std::size_t& counter) {
    const std::lock_guard lock(mutex_);
    ++counter;
    changed_.notify_one();
  }

  std::size_t batches_;
  OwnTable<Batch> queue_;
  Random random_{1};  // the producer's
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t produced_ = 0;
  std::size_t consumed_ = 0;
};

}  // namespace

std::unique_ptr<Workload> make_producer_consumer(Scale scale) {
  return std::make_unique<ProducerConsumer>(scale);
}

}  // namespace pagetide::bench
