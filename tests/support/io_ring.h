#pragma once

#include <liburing.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "pagetide/base/page_range.h"

namespace pagetide {

// An io_uring for one request at a time.
class IoRing {
 public:
  IoRing() : usable_(::io_uring_queue_init(4, &ring_, 0) == 0) {}
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;
  ~IoRing() {
    if (usable_) ::io_uring_queue_exit(&ring_);
  }

  bool register_buffer(ByteRange range) {
    const iovec part{range.data(), range.size};
    return usable_ && ::io_uring_register_buffers(&ring_, &part, 1) == 0;
  }
  // Bytes read, or a negative errno.
  ssize_t read(int fd, char* target, unsigned bytes) {
    return run([&](io_uring_sqe* sqe) { ::io_uring_prep_read(sqe, fd, target, bytes, 0); });
  }
  // Into the registered buffer.
  ssize_t read_fixed(int fd, char* target, unsigned bytes) {
    return run(
        [&](io_uring_sqe* sqe) { ::io_uring_prep_read_fixed(sqe, fd, target, bytes, 0, 0); });
  }

 private:
  template <typename Prepare>
  ssize_t run(Prepare&& prepare) {
    io_uring_sqe* sqe = usable_ ? ::io_uring_get_sqe(&ring_) : nullptr;
    if (sqe == nullptr) return -ENOSYS;
    prepare(sqe);
    io_uring_cqe* done = nullptr;
    if (::io_uring_submit_and_wait(&ring_, 1) != 1) return -EIO;
    if (::io_uring_wait_cqe(&ring_, &done) != 0) return -EIO;
    const ssize_t result = done->res;
    ::io_uring_cqe_seen(&ring_, done);
    return result;
  }

  io_uring ring_{};
  bool usable_;
};

}  // namespace pagetide
