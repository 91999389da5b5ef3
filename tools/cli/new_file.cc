#include "tools/cli/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "pagetide/base/bytes.h"
#include "pagetide/snapshot/file_system.h"

namespace pagetide::cli {

namespace {

using literals::operator""_MiB;

constexpr mode_t kFileMode = 0600;
// A signal or a full disk is noticed after one chunk.
constexpr std::size_t kWriteChunkBytes = 1_MiB;

// What the signal handler removes; empty when there is nothing to remove.
std::array<char, PATH_MAX> unfinished_path{};
std::atomic<bool> is_unfinished{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler reads it");

// In a signal handler: calls only what is safe there.
void remove_unfinished_and_die(int signal) {
  if (is_unfinished.load()) ::unlink(unfinished_path.data());
  (void)std::signal(signal, SIG_DFL);
  (void)std::raise(signal);
}

void guard_against_signals(const std::string& partial_path) {
  if (partial_path.size() >= unfinished_path.size()) return;  // open() refused such a path
  partial_path.copy(unfinished_path.data(), partial_path.size());
  unfinished_path[partial_path.size()] = '\0';
  is_unfinished = true;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction old {};
    ::sigaction(signal, nullptr, &old);
    if (old.sa_handler == SIG_IGN) continue;  // nohup
    struct sigaction action {};
    action.sa_handler = remove_unfinished_and_die;
    ::sigaction(signal, &action, nullptr);
  }
}

std::string_view way_out(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "Free some space, or name a file on another file system.";
    case EFBIG:
      return "Raise the limit on file sizes (ulimit -f), or use another file system.";
    case ENOENT:
      return "Every directory on the way must exist.";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Name a file in a directory that this user can write to.";
    default:
      return {};
  }
}

tl::unexpected<Error> exists(const std::string& path) {
  return failure(
      ErrorCode::already_exists,
      fmt::format("'{}' exists. Name another file, or overwrite it with --force.", path));
}

// The place of the new file, after following a symbolic link that is there.
Result<std::string> find_place(const std::string& path, bool overwrite) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return path;
    const int error = errno;
    return system_failure(fmt::format("look at '{}'", path), error, way_out(error));
  }
  const std::unique_ptr<char, decltype(&std::free)> resolved(::realpath(path.c_str(), nullptr),
                                                             &std::free);
  if (resolved == nullptr || ::stat(resolved.get(), &status) != 0) {
    return system_failure(fmt::format("follow '{}'", path), errno);
  }
  if (!S_ISREG(status.st_mode)) {
    return failure(ErrorCode::invalid_argument,
                   fmt::format("'{}' is not a regular file. Name a file, or write to standard "
                               "output with -o -.",
                               path));
  }
  if (!overwrite) return exists(path);
  return std::string(resolved.get());
}

}  // namespace

NewFile::NewFile(std::string path, std::string partial_path, UniqueFd fd, bool overwrite)
    : path_(std::move(path)),
      partial_path_(std::move(partial_path)),
      fd_(std::move(fd)),
      overwrite_(overwrite) {}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_path_(std::exchange(other.partial_path_, {})),
      fd_(std::move(other.fd_)),
      overwrite_(other.overwrite_) {}

NewFile::~NewFile() {
  if (partial_path_.empty()) return;
  ::unlink(partial_path_.c_str());
  is_unfinished = false;
}

tl::unexpected<Error> NewFile::failed(const char* what, int error) const {
  return system_failure(fmt::format("{} '{}'", what, path_), error, way_out(error));
}

Result<NewFile> NewFile::create(const std::string& path, bool overwrite) {
  Result<std::string> place = find_place(path, overwrite);
  if (!place) return propagate(place);
  const std::string partial = fmt::format("{}.partial-{}", *place, ::getpid());
  UniqueFd fd(
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kFileMode));
  if (!fd.valid()) {
    const int error = errno;
    return system_failure(fmt::format("create '{}'", partial), error, way_out(error));
  }
  guard_against_signals(partial);
  return NewFile(std::move(*place), partial, std::move(fd), overwrite);
}

Result<void> NewFile::write_at(std::uint64_t offset, const void* data, std::size_t size_bytes) {
  const char* at = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t n =
        ::pwrite(fd_.get(), at, std::min(size_bytes, kWriteChunkBytes), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed("write", errno);
    at += n;
    offset += static_cast<std::uint64_t>(n);
    size_bytes -= static_cast<std::size_t>(n);
  }
  return {};
}

Result<void> NewFile::take_name() const {
  const char* const from = partial_path_.c_str();
  const char* const to = path_.c_str();
  if (!overwrite_) {
    if (::renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return {};
    if (errno == EEXIST) return exists(path_);
    if (errno != EINVAL && errno != ENOSYS) return failed("give the image its name", errno);
    // A file system without it; create() found the name free, which must do.
  }
  if (::rename(from, to) != 0) return failed("give the image its name", errno);
  return {};
}

Result<void> NewFile::commit(std::uint64_t size_bytes) {
  if (::ftruncate(fd_.get(), static_cast<off_t>(size_bytes)) != 0) return failed("write", errno);
  if (::fsync(fd_.get()) != 0) return failed("write", errno);
  if (::close(fd_.release()) != 0) return failed("write", errno);
  if (auto r = take_name(); !r) return r;
  is_unfinished = false;
  partial_path_.clear();
  return posix_file_system().sync_directory(parent_directory(path_));
}

}  // namespace pagetide::cli
