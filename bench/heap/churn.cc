// small_churn, two_churns, pareto, large: a thread replaces random blocks.

#include <array>
#include <cmath>
#include <thread>

#include "bench/heap/own_table.h"
#include "bench/heap/random.h"
#include "bench/heap/tagged_block.h"
#include "bench/heap/workload.h"
#include "pagetide/base/bytes.h"
#include "pagetide/base/page_range.h"

namespace pagetide::bench {

namespace {

using namespace literals;

// Made beforehand: a size costs the same whatever its distribution.
using Sizes = std::array<std::uint32_t, 4096>;

template <typename Draw>
Sizes draw_sizes(Draw draw) {
  Random random(1);
  Sizes sizes{};
  for (std::uint32_t& size : sizes) size = static_cast<std::uint32_t>(draw(random));
  return sizes;
}

struct ChurnPlan {
  std::size_t live = 0;
  std::size_t replaced = 0;  // in a portion
  Sizes sizes = {};
  bool whole_pages = false;  // else only the ends of a block are written
};

class Churn final : public Workload {
 public:
  explicit Churn(const ChurnPlan& plan) : plan_(plan), blocks_(plan.live) {
    for (TaggedBlock& block : blocks_) block = make();
  }
  ~Churn() override {
    for (TaggedBlock& block : blocks_) release(block);
  }

  std::uint64_t run() override {
    for (std::size_t i = 0; i < plan_.replaced; ++i) {
      TaggedBlock& block = blocks_[random_.below(blocks_.size())];
      release(block);
      block = make();
    }
    return plan_.replaced;
  }

 private:
  TaggedBlock make() {
    const std::uint32_t bytes = plan_.sizes[random_.below(plan_.sizes.size())];
    const TaggedBlock block = make_block(bytes, random_.tag());
    if (plan_.whole_pages) write_each_page(block);
    return block;
  }

  static void write_each_page(const TaggedBlock& block) {
    for (std::size_t at = page_size(); at + page_size() <= block.bytes; at += page_size()) {
      detail::write_word(block.data() + at, block.tag);
    }
  }

  ChurnPlan plan_;
  Random random_{2};
  OwnTable<TaggedBlock> blocks_;
};

class TwoChurns final : public Workload {
 public:
  explicit TwoChurns(const ChurnPlan& plan) : first_(plan), second_(plan) {}

  std::uint64_t run() override {
    std::uint64_t by_second = 0;
    std::thread thread([&] { by_second = second_.run(); });
    const std::uint64_t by_first = first_.run();
    thread.join();
    return by_first + by_second;
  }

 private:
  Churn first_;
  Churn second_;
};

ChurnPlan small_churn(Scale scale) {
  // The product of two uniform numbers: half of the sizes are below 110 bytes.
  const auto draw = [](Random& random) { return 16 + random.below(1 + random.below(497)); };
  return {scale.of(50'000), scale.of(400'000), draw_sizes(draw), false};
}

}  // namespace

std::unique_ptr<Workload> make_small_churn(Scale scale) {
  return std::make_unique<Churn>(small_churn(scale));
}

std::unique_ptr<Workload> make_two_churns(Scale scale) {
  return std::make_unique<TwoChurns>(small_churn(scale));
}

std::unique_ptr<Workload> make_pareto(Scale scale) {
  constexpr double kShape = 1.1;
  const auto draw = [](Random& random) {
    const double uniform = (static_cast<double>(random.below(1'000'000)) + 1) / 1e6;
    const double size = 16 * std::pow(uniform, -1 / kShape);
    return std::min(static_cast<std::size_t>(size), 64_KiB);
  };
  return std::make_unique<Churn>(
      ChurnPlan{scale.of(20'000), scale.of(500'000), draw_sizes(draw), false});
}

std::unique_ptr<Workload> make_large(Scale scale) {
  const auto draw = [](Random& random) { return random.between(64_KiB, 1_MiB); };
  return std::make_unique<Churn>(ChurnPlan{scale.of(32), scale.of(2'000), draw_sizes(draw), true});
}

}  // namespace pagetide::bench
