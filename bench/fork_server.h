#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "pagetide/base/error.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide::bench {

// What putting a state back by fork() costs: a process that holds the state, and for each
// iteration a child of it that writes to its copy and is thrown away.
//
// It is a process of its own, so that its forks do not leave copy-on-write protection in the
// memory whose costs are measured beside it. Start it before that memory exists, else fork()
// copies that, too. It ends with this object or with the program. Not thread-safe.
class ForkServer {
 public:
  // Holds `data_bytes` of populated plain memory of base pages.
  static Result<std::unique_ptr<ForkServer>> start(std::size_t data_bytes);
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;
  ~ForkServer();

  struct Times {
    double pause_seconds = 0;      // fork() in the server
    double iteration_seconds = 0;  // fork(), one write to each page, exit and wait
  };
  Result<Times> run(std::span<const std::uint32_t> pages);

 private:
  struct Request {
    std::size_t page_count = 0;
    Times times = {};
  };

  ForkServer() = default;
  Result<void> share_memory(std::size_t page_count);
  [[noreturn]] void serve(std::size_t data_bytes, int socket);

  pid_t server_ = -1;
  UniqueFd socket_;
  // Shared with the server.
  Request* request_ = nullptr;
  std::span<std::uint32_t> pages_;
};

}  // namespace pagetide::bench
