#include "bench/forked_image.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "bench/support.h"

namespace pagetide::bench {

Result<std::unique_ptr<ForkedImage>> ForkedImage::take() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_failure("make a pipe", errno);
  auto image = std::unique_ptr<ForkedImage>(new ForkedImage);
  const UniqueFd child_end(ends[0]);
  image->keep_alive_ = UniqueFd(ends[1]);
  image->seconds_ = seconds_of([&] { image->child_ = ::fork(); });
  if (image->child_ < 0) return system_failure("fork", errno);
  if (image->child_ == 0) {
    ::close(ends[1]);  // else the child would keep itself alive
    char nothing = 0;
    (void)!::read(ends[0], &nothing, 1);
    ::_exit(0);
  }
  return image;
}

ForkedImage::~ForkedImage() {
  keep_alive_ = UniqueFd();
  if (child_ > 0) (void)::waitpid(child_, nullptr, 0);
}

}  // namespace pagetide::bench
