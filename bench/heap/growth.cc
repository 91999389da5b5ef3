#include "bench/heap/own_table.h"
#include "bench/heap/random.h"
#include "bench/heap/tagged_block.h"
#include "bench/heap/workload.h"
#include "pagetide/base/bytes.h"

namespace pagetide::bench {

namespace {

using namespace literals;

// Buffers that grow in turn, each by a share of its size, as std::vector and the like do.
struct GrowthPlan {
  std::size_t first_bytes;
  std::size_t last_bytes;
  std::size_t share;  // 2: by a half
};

constexpr GrowthPlan kSmall{16, 16_KiB, 2};
constexpr GrowthPlan kLarge{4_KiB, 4_MiB, 4};

class Growth final : public Workload {
 public:
  explicit Growth(Scale scale) : small_(scale.of(800)), large_(scale.of(8)) {}

  std::uint64_t run() override { return grow_all(small_, kSmall) + grow_all(large_, kLarge); }

 private:
  std::uint64_t grow_all(const OwnTable<TaggedBlock>& blocks, const GrowthPlan& plan) {
    std::uint64_t operations = 0;
    for (TaggedBlock& block : blocks) block = make_block(plan.first_bytes, random_.tag());
    for (std::size_t bytes = plan.first_bytes; bytes < plan.last_bytes;) {
      bytes = round_up(bytes + bytes / plan.share, 8);
      for (TaggedBlock& block : blocks) grow(block, bytes);
      operations += blocks.size();
    }
    for (TaggedBlock& block : blocks) release(block);
    return operations;
  }

  Random random_{1};
  OwnTable<TaggedBlock> small_;
  OwnTable<TaggedBlock> large_;
};

}  // namespace

std::unique_ptr<Workload> make_growth(Scale scale) {
  return std::make_unique<Growth>(scale);
}

}  // namespace pagetide::bench
