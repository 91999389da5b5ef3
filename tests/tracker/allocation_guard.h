#pragma once

#include <sys/prctl.h>

#include <atomic>
#include <cstddef>
#include <cstring>

// Counts allocations where there must be none. For one source file of a program: it replaces
// malloc and free of the whole program. A sanitizer has an allocator of its own, so under one
// nothing is counted.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PAGETIDE_COUNTS_ALLOCATIONS 0
#else
#define PAGETIDE_COUNTS_ALLOCATIONS 1
#endif

namespace pagetide {

struct AllocationGuard {
  // Of this thread.
  static inline thread_local constinit bool forbidden = false;
  // Of every thread that has this name.
  static inline std::atomic<const char*> forbidden_thread{nullptr};
  static inline std::atomic<int> violations{0};

  static void check() {
    if (forbidden || is_forbidden_thread()) violations.fetch_add(1);
  }

 private:
  static bool is_forbidden_thread() {
    const char* name = forbidden_thread.load();
    if (name == nullptr) return false;
    char own[16] = {};
    ::prctl(PR_GET_NAME, own);
    return std::strcmp(own, name) == 0;
  }
};

}  // namespace pagetide

#if PAGETIDE_COUNTS_ALLOCATIONS

// Names of the C library.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* block, std::size_t size);
void __libc_free(void* block);

void* malloc(std::size_t size) noexcept {
  pagetide::AllocationGuard::check();
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) noexcept {
  pagetide::AllocationGuard::check();
  return __libc_calloc(count, size);
}
void* realloc(void* block, std::size_t size) noexcept {
  pagetide::AllocationGuard::check();
  return __libc_realloc(block, size);
}
void free(void* block) noexcept {
  pagetide::AllocationGuard::check();
  __libc_free(block);
}
}

#endif
