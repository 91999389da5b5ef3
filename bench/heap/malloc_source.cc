#include <malloc.h>

#include <cstdlib>
#include <cstring>

#include "bench/heap/source.h"

namespace pagetide::bench {

namespace {

void* reallocate(void* block, std::size_t /*old_bytes*/, std::size_t new_bytes) {
  return std::realloc(block, new_bytes);
}

void clear_and_free(void* block) {
  std::memset(block, 0, ::malloc_usable_size(block));
  asm volatile("" : : "r"(block) : "memory");  // or the stores are dropped
  std::free(block);
}

class MallocSource final : public OpenSource {
 public:
  explicit MallocSource(bool clears) : clears_(clears) {}

  Source table() const override {
    return {&std::malloc, clears_ ? &clear_and_free : &std::free, &reallocate};
  }

 private:
  bool clears_;
};

}  // namespace

std::unique_ptr<OpenSource> open_malloc_source(bool clears) {
  return std::make_unique<MallocSource>(clears);
}

}  // namespace pagetide::bench
