#include "tests/support/random_mutator.h"

#include <cstring>

#include "pagetide/base/hash.h"
#include "tests/support/must.h"
#include "tests/support/untouched_free.h"

namespace pagetide {

RandomMutator::RandomMutator(Arena& arena, std::uint64_t seed)
    : arena_(arena),
      blocks_(must(arena.find_or_construct<Blocks>("blocks", arena.resource()))),
      random_(seed) {}

void RandomMutator::allocate() {
  std::size_t size = 1 + below(600);
  if (below(10) == 0) size = 1 + below(20'000);
  if (below(40) == 0) size = 100'000 + below(400'000);
  auto* data = static_cast<std::byte*>(must(arena_.allocate(size)));
  if (const std::size_t usable = arena_.heap().usable_size(data);
      defers_clearing_ && !is_all_zero(data, usable)) {
    std::memset(data, 0, usable);
  }
  blocks_->push_back({data, size});
  if (below(4) != 0) write(blocks_->back());
}

void RandomMutator::write(const Block& block) {
  const std::size_t first = below(block.size);
  const std::size_t count = 1 + below(block.size - first);
  std::memset(block.data + first, static_cast<int>(below(256)), count);
}

void RandomMutator::step() {
  const std::size_t what = below(10);
  if (blocks_->empty() || what < 4) return allocate();
  const std::size_t chosen = below(blocks_->size());
  if (what < 7) return write((*blocks_)[chosen]);
  if (defers_clearing_ && (*blocks_)[chosen].size <= layout::kMaxSlotBytes && below(4) != 0) {
    free_untouched(arena_, (*blocks_)[chosen].data);
  } else {
    arena_.deallocate((*blocks_)[chosen].data);
  }
  (*blocks_)[chosen] = blocks_->back();
  blocks_->pop_back();
}

}  // namespace pagetide
