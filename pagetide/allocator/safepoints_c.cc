#include "pagetide/allocator/safepoints_c.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>

#include "pagetide/allocator/safepoints_c_handle.h"
#include "pagetide/base/c_border.h"

using namespace pagetide::c_api;

namespace {

using pagetide::Mutator;
using pagetide::Result;

// Without at_border(): nothing here fails or throws, and a poll is to cost next to nothing.
template <typename Use>
void use_mutator(pagetide_mutator* mutator, Use&& use) {
  if (mutator == nullptr) return (void)fail_for_null("mutator");
  const KeptErrno kept_errno;
  use(mutator->mutator);
}

}  // namespace

int pagetide_safepoints_create(pagetide_safepoints** points) {
  return at_border({{points, "points"}}, [&]() -> Result<void> {
    *points = std::make_unique<pagetide_safepoints>().release();
    return {};
  });
}

void pagetide_safepoints_destroy(pagetide_safepoints* points) {
  const KeptErrno kept_errno;
  delete points;
}

int pagetide_safepoints_stop(pagetide_safepoints* points, uint64_t limit_ms) {
  // What is more than fits is for ever.
  const auto limit = static_cast<std::int64_t>(std::min<uint64_t>(limit_ms, INT64_MAX));
  return at_border({{points, "points"}},
                   [&] { return points->points.stop(std::chrono::milliseconds(limit)); });
}

int pagetide_safepoints_resume(pagetide_safepoints* points) {
  return at_border({{points, "points"}}, [&]() -> Result<void> {
    points->points.resume();
    return {};
  });
}

int pagetide_mutator_create(pagetide_safepoints* points, const char* name,
                            pagetide_mutator** mutator) {
  return at_border({{points, "points"}, {mutator, "mutator"}}, [&]() -> Result<void> {
    *mutator =
        std::make_unique<pagetide_mutator>(points->points, name != nullptr ? name : "").release();
    return {};
  });
}

void pagetide_mutator_destroy(pagetide_mutator* mutator) {
  const KeptErrno kept_errno;
  delete mutator;
}

void pagetide_mutator_poll(pagetide_mutator* mutator) {
  use_mutator(mutator, [](Mutator& mine) { mine.poll(); });
}

void pagetide_mutator_leave(pagetide_mutator* mutator) {
  use_mutator(mutator, [](Mutator& mine) { mine.leave(); });
}

void pagetide_mutator_enter(pagetide_mutator* mutator) {
  use_mutator(mutator, [](Mutator& mine) { mine.enter(); });
}
