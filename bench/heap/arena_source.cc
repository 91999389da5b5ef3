#include <utility>

#include "bench/heap/source.h"
#include "pagetide/base/bytes.h"

namespace pagetide::bench {

namespace {

using namespace literals;

// Functions of the table take no object. What Arena adds to its heap is inlined into its callers;
// here it could not be.
Heap* the_heap = nullptr;

void* allocate(std::size_t bytes) {
  return the_heap->allocate(bytes);
}

void deallocate(void* block) {
  the_heap->deallocate(block);
}

void* reallocate(void* block, std::size_t, std::size_t new_bytes) {
  return the_heap->reallocate(block, new_bytes);
}

class ArenaSource final : public OpenSource {
 public:
  explicit ArenaSource(Arena arena) : arena_(std::move(arena)) { the_heap = &arena_.heap(); }
  ~ArenaSource() override { the_heap = nullptr; }

  Source table() const override { return {&allocate, &deallocate, &reallocate}; }
  Arena* arena() override { return &arena_; }

 private:
  Arena arena_;
};

}  // namespace

Result<std::unique_ptr<OpenSource>> open_arena_source(ClearPolicy clear, unsigned slack_percent) {
  ArenaOptions options;
  options.name = "bench_heap";
  options.reserve_bytes = 4_GiB;
  options.clear = clear;
  options.slack_percent = slack_percent;
  // The others that `automatic` may choose miss pages that were written with what they held.
  options.backend = BackendKind::uffd_async;
  auto arena = Arena::create(options);
  if (!arena) return propagate(arena);
  return std::make_unique<ArenaSource>(std::move(*arena));
}

}  // namespace pagetide::bench
