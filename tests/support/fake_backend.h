#pragma once

#include <atomic>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include "pagetide/tracker/dirty_backend.h"

namespace pagetide {

// What a FakeBackend does and what was asked of it. Outlives the tracker.
struct FakeKernel {
  std::set<std::uintptr_t> written;  // addresses of pages
  std::vector<ByteRange> watched;
  std::vector<ByteRange> unwatched;
  std::vector<ByteRange> prefilled;
  std::vector<ByteRange> collected;
  std::atomic<bool> hold{false};    // while it is, a collect does not return
  std::atomic<bool> inside{false};  // a collect
  bool watch_fails = false;
  bool no_memory = false;      // a collect throws
  bool collect_fails = false;  // after the written pages were consumed, as the kernel does it
};

class FakeBackend {
 public:
  explicit FakeBackend(FakeKernel& kernel) : kernel_(&kernel) {}

  BackendKind kind() const { return BackendKind::compare; }
  Result<void> watch(ByteRange range) {
    if (kernel_->watch_fails) return failure(ErrorCode::unsupported, "no watching here.");
    kernel_->watched.push_back(range);
    return {};
  }
  void unwatch(ByteRange range) { kernel_->unwatched.push_back(range); }
  Result<void> collect(ByteRange whole, ByteRange part, CollectMode mode, DirtyBitmap& written) {
    kernel_->collected.push_back(part);
    kernel_->inside = true;
    while (kernel_->hold) std::this_thread::yield();
    kernel_->inside = false;
    if (kernel_->no_memory) throw std::bad_alloc();
    for (std::uintptr_t at = part.begin; at < part.end(); at += page_size()) {
      if (!kernel_->written.contains(at)) continue;
      written.set((at - whole.begin) / page_size());
      if (mode == CollectMode::take) kernel_->written.erase(at);
    }
    if (kernel_->collect_fails) return failure(ErrorCode::system_failure, "the scan broke.");
    return {};
  }
  Result<void> prefill(ByteRange range, Prefill) {
    kernel_->prefilled.push_back(range);
    return {};
  }

 private:
  FakeKernel* kernel_;
};

}  // namespace pagetide
