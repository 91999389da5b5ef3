#include <utility>

#include "bench/heap/source.h"
#include "pagetide/base/bytes.h"

namespace pagetide::bench {

namespace {

using namespace literals;

// Functions of the table take no object.
Arena* the_arena = nullptr;

void* allocate(std::size_t bytes) {
  const Result<void*> block = the_arena->allocate(bytes);
  return block ? *block : nullptr;
}

void deallocate(void* block) {
  the_arena->deallocate(block);
}

void* reallocate(void* block, std::size_t, std::size_t new_bytes) {
  const Result<void*> moved = the_arena->reallocate(block, new_bytes);
  return moved ? *moved : nullptr;
}

class ArenaSource final : public OpenSource {
 public:
  explicit ArenaSource(Arena arena) : arena_(std::move(arena)) { the_arena = &arena_; }
  ~ArenaSource() override { the_arena = nullptr; }

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
