#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

// Lets operator new fail. For one source file of a program: it replaces it for the whole program.

namespace pagetide {

// How many more times operator new works for this thread.
inline constinit thread_local std::size_t allocations_left = SIZE_MAX;

// Lets it work while this lives.
class WorkingNew {
 public:
  WorkingNew() { allocations_left = SIZE_MAX; }
  WorkingNew(const WorkingNew&) = delete;
  WorkingNew& operator=(const WorkingNew&) = delete;
  ~WorkingNew() { allocations_left = before_; }

 private:
  std::size_t before_ = allocations_left;
};

// Calls until it succeeds, with one more allocation each time; how often it failed. `has_failed` is
// asked about each result.
template <typename Call, typename HasFailed>
int count_failed_allocations(const Call& call, const HasFailed& has_failed) {
  for (int failures = 0;; ++failures) {
    allocations_left = static_cast<std::size_t>(failures);
    const auto result = call();
    allocations_left = SIZE_MAX;
    if (!has_failed(result)) return failures;
  }
}

}  // namespace pagetide

// Kept out of line: GCC 12 takes an inlined half of the pair for a mismatch.
[[gnu::noinline]] void* operator new(std::size_t size) {
  if (pagetide::allocations_left == 0) throw std::bad_alloc();
  --pagetide::allocations_left;
  if (void* block = std::malloc(size); block != nullptr) return block;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept {
  std::free(block);
}
