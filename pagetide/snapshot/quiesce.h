#pragma once

#include <functional>
#include <utility>

namespace pagetide {

// What makes a snapshot the memory of one instant: between pause() and resume() nobody writes to
// the arena and no thread is inside one of its calls. How is up to the program: a mutex that all
// writers share, vCPUs that are stopped, or nothing where one thread does everything. (glibc's
// shared_mutex prefers those who share: pair it with a flag that lets no new writer in, or pause()
// may wait for ever.)
struct Quiesce {
  // Called once each, in this order, by the thread that takes the snapshot or rolls back. They
  // must not throw and must not use the arena. Keep them short: writers wait for resume().
  std::function<void()> pause;
  std::function<void()> resume;

  static Quiesce caller(std::function<void()> pause, std::function<void()> resume) {
    return {std::move(pause), std::move(resume)};
  }
  // The caller itself is the only thread that uses the arena, or holds the others already.
  static Quiesce none() { return {}; }
};

}  // namespace pagetide
