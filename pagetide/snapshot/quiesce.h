#pragma once

#include <chrono>
#include <functional>
#include <type_traits>
#include <utility>

#include "pagetide/allocator/safepoints.h"
#include "pagetide/base/error.h"

namespace pagetide {

// What makes a snapshot the memory of one instant: between pause() and resume() nobody writes to
// the arena and no thread is inside one of its calls. How is up to the program: a mutex that all
// writers share, vCPUs that are stopped, safepoints, or nothing where one thread does everything.
// (glibc's shared_mutex prefers those who share: pair it with a flag that lets no new writer in, or
// pause() may wait for ever.)
struct Quiesce {
  // Called once each, in this order, by the thread that takes the snapshot or rolls back. They
  // must not throw and must not use the arena. Keep them short: writers wait for resume(). Where
  // pause() fails the writers go on and resume() is not called: take() or rollback() fails with
  // that error, and nothing has changed.
  std::function<Result<void>()> pause;
  std::function<void()> resume;

  // `pause` returns Result<void> where it can fail, else nothing.
  template <typename Pause>
  static Quiesce caller(Pause pause, std::function<void()> resume) {
    if constexpr (std::is_void_v<std::invoke_result_t<Pause&>>) {
      std::function<void()> held = std::move(pause);
      if (!held) return {{}, std::move(resume)};
      return {[held = std::move(held)]() -> Result<void> {
                held();
                return {};
              },
              std::move(resume)};
    } else {
      return {std::move(pause), std::move(resume)};
    }
  }
  // All threads that use the arena are mutators of `points`, which outlives the snapshotter, and
  // come to a safepoint within `limit`; else the error is timed_out. The thread that takes the
  // snapshot may be one of them. Where several of them do, or one stops the others for something
  // else, it is away (Mutator::Away) while it does: the one may have to wait for the other.
  static Quiesce safepoint(Safepoints& points,
                           std::chrono::milliseconds limit = std::chrono::seconds(1)) {
    return {[&points, limit] { return points.stop(limit); }, [&points] { points.resume(); }};
  }
  // The caller itself is the only thread that uses the arena, or holds the others already: from
  // before take() or rollback() until it has returned (Safepoints::stop()).
  static Quiesce none() { return {}; }
};

}  // namespace pagetide
