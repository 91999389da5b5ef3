#include "bench/fork_server.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "bench/support.h"

namespace pagetide::bench {

namespace {

constexpr char kToken = 'x';

bool send_token(int socket) {
  return ::send(socket, &kToken, 1, MSG_NOSIGNAL) == 1;
}
bool receive_token(int socket) {
  char token = 0;
  return ::recv(socket, &token, 1, 0) == 1;
}

void* map_shared(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

Result<void> ForkServer::share_memory(std::size_t page_count) {
  void* request = map_shared(sizeof(Request));
  void* pages = map_shared(page_count * sizeof(std::uint32_t));
  if (request == nullptr || pages == nullptr) {
    return system_failure("map memory to share with the fork server", errno);
  }
  request_ = ::new (request) Request;
  pages_ = {static_cast<std::uint32_t*>(pages), page_count};
  return {};
}

Result<std::unique_ptr<ForkServer>> ForkServer::start(std::size_t data_bytes) {
  auto server = std::unique_ptr<ForkServer>(new ForkServer);
  if (auto r = server->share_memory(data_bytes / page_size()); !r) return propagate(r);
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    return system_failure("make a pair of sockets", errno);
  }
  server->socket_ = UniqueFd(sockets[0]);
  const UniqueFd other_end(sockets[1]);
  server->server_ = ::fork();
  if (server->server_ < 0) return system_failure("fork", errno);
  if (server->server_ == 0) {
    // Its own copy of our end would keep it from seeing that the program has ended.
    ::close(sockets[0]);
    server->serve(data_bytes, sockets[1]);
  }
  if (!receive_token(server->socket_.get())) {
    return failure(ErrorCode::out_of_memory, "the fork server could not get its memory");
  }
  return server;
}

void ForkServer::serve(std::size_t data_bytes, int socket) {
  const Pages data(data_bytes);
  if (data.range().empty()) ::_exit(1);
  fill_with_noise(data.range());
  bool going = true;
  while (send_token(socket) && receive_token(socket)) {
    Times& times = request_->times;
    times.iteration_seconds = seconds_of([&] {
      pid_t child = -1;
      times.pause_seconds = seconds_of([&] { child = ::fork(); });
      if (child == 0) {
        write_pages(data.range(), pages_.first(request_->page_count));
        ::_exit(0);
      }
      int status = 0;
      going = child > 0 && ::waitpid(child, &status, 0) == child && status == 0;
    });
    if (!going) break;
  }
  ::_exit(0);
}

Result<ForkServer::Times> ForkServer::run(std::span<const std::uint32_t> pages) {
  request_->page_count = std::min(pages.size(), pages_.size());
  std::copy_n(pages.begin(), request_->page_count, pages_.begin());
  if (send_token(socket_.get()) && receive_token(socket_.get())) return request_->times;
  return failure(ErrorCode::system_failure, "the fork server has ended");
}

ForkServer::~ForkServer() {
  socket_.reset();
  if (server_ > 0) ::waitpid(server_, nullptr, 0);
  if (request_ != nullptr) ::munmap(request_, sizeof(Request));
  if (!pages_.empty()) ::munmap(pages_.data(), pages_.size_bytes());
}

}  // namespace pagetide::bench
