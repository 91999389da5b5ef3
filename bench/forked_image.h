#pragma once

#include <sys/types.h>

#include <memory>

#include "pagetide/base/error.h"
#include "pagetide/base/unique_fd.h"

namespace pagetide::bench {

// A child that was forked to keep this process's memory as it is now: it sleeps, and every page
// that the parent writes to is copied first. Ends with the object.
class ForkedImage {
 public:
  static Result<std::unique_ptr<ForkedImage>> take();
  ForkedImage(const ForkedImage&) = delete;
  ForkedImage& operator=(const ForkedImage&) = delete;
  ~ForkedImage();

  // Of the fork() itself: the pause of the parent.
  double seconds() const { return seconds_; }

 private:
  ForkedImage() = default;

  UniqueFd keep_alive_;  // the child ends when this is closed
  pid_t child_ = -1;
  double seconds_ = 0;
};

}  // namespace pagetide::bench
