#include "pagetide/allocator/clear/slot_kernels.h"

#if defined(__x86_64__)

namespace pagetide::clear_kernels {

__attribute__((target("avx2"))) void avx2_slot(void* block, std::size_t bytes) noexcept {
  store_zeros_in_slot(block, bytes);
}

}  // namespace pagetide::clear_kernels

#endif
