#include <cstdlib>

#include "bench/heap/source.h"

namespace pagetide::bench {

namespace {

void* reallocate(void* block, std::size_t /*old_bytes*/, std::size_t new_bytes) {
  return std::realloc(block, new_bytes);
}

class MallocSource final : public OpenSource {
 public:
  Source table() const override { return {&std::malloc, &std::free, &reallocate}; }
};

}  // namespace

std::unique_ptr<OpenSource> open_malloc_source() {
  return std::make_unique<MallocSource>();
}

}  // namespace pagetide::bench
