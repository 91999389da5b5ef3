#include "pagetide/tracker/backends/soft_dirty_backend.h"

#include <utility>

#include "pagetide/tracker/disabled_features.h"

namespace pagetide {

Result<SoftDirtyBackend> SoftDirtyBackend::open() {
  if (is_disabled("soft_dirty")) {
    return failure(
        ErrorCode::unsupported,
        "cannot use soft-dirty bits: switched off by PAGETIDE_DISABLE. The compare back end "
        "works without them.");
  }
  auto process = SoftDirtyProcess::of_this_process();
  if (!process) return propagate(process);
  return SoftDirtyBackend(std::move(*process));
}

SoftDirtyBackend SoftDirtyBackend::over(std::shared_ptr<SoftDirtyProcess> process) {
  return SoftDirtyBackend(std::move(process));
}

Result<void> SoftDirtyBackend::probe() {
  auto opened = open();
  if (!opened) return propagate(opened);
  return {};
}

SoftDirtyBackend& SoftDirtyBackend::operator=(SoftDirtyBackend&& other) noexcept {
  if (this == &other) return *this;
  unwatch_all();
  process_ = std::move(other.process_);
  watches_ = std::exchange(other.watches_, {});
  return *this;
}

Result<void> SoftDirtyBackend::watch(ByteRange range) {
  auto watch = process_->add(range);
  if (!watch) return propagate(watch);
  watches_.insert_or_assign(range.begin, *watch);
  return {};
}

void SoftDirtyBackend::unwatch(ByteRange range) {
  const auto found = watches_.find(range.begin);
  if (found == watches_.end()) return;
  process_->remove(found->second);
  watches_.erase(found);
}

void SoftDirtyBackend::unwatch_all() {
  for (const auto& [begin, watch] : watches_) process_->remove(watch);
  watches_.clear();
}

Result<void> SoftDirtyBackend::collect(ByteRange whole, ByteRange part, CollectMode mode,
                                       DirtyBitmap& written) {
  const auto found = watches_.find(whole.begin);
  if (found == watches_.end()) {
    return failure(ErrorCode::invalid_argument, "cannot collect: the range is not watched.");
  }
  return process_->collect(*found->second, part, mode, written);
}

}  // namespace pagetide
