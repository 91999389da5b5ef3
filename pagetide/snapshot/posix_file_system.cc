#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "pagetide/base/bytes.h"
#include "pagetide/base/page_range.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/snapshot/file_system.h"

namespace pagetide {
namespace {

using literals::operator""_KiB;
using literals::operator""_MiB;

constexpr mode_t kFileMode = 0600;
constexpr mode_t kDirectoryMode = 0700;
// Larger writes gain nothing, and a signal or a full disk is noticed after one chunk.
constexpr std::size_t kWriteChunkBytes = 1_MiB;
constexpr std::size_t kBounceBytes = 64_KiB;

template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Who owns the nearest thing on the way to the path that can be looked at.
std::string owner_way_out(const std::string& path) {
  std::string place = path;
  struct stat status {};
  while (::stat(place.c_str(), &status) != 0) {
    const std::string parent = parent_directory(place);
    if (parent == place) return "Check who owns the files with ls -ld.";
    place = parent;
  }
  const unsigned permissions = status.st_mode & 07777U;
  if (status.st_uid == ::geteuid()) {
    return fmt::format(
        "'{}' belongs to this user (mode {:04o}), so its mode, an attribute or a security policy "
        "forbids it; see ls -ld and lsattr.",
        place, permissions);
  }
  return fmt::format(
      "'{}' belongs to user id {} (mode {:04o}), and this process runs as user id {}. Run it as "
      "the owner, or change the owner of the files.",
      place, status.st_uid, permissions, ::geteuid());
}

std::string way_out(int error, const std::string& path) {
  switch (error) {
    case ENOSPC:
      return fmt::format(
          "Free some space on the file system of '{}', or move the store to a larger one.",
          parent_directory(path));
    case EDQUOT:
      return "Free some space of this user's quota, or have the quota raised.";
    case EFBIG:
      return "Raise the limit on file sizes (ulimit -f).";
    case EACCES:
    case EPERM:
      return owner_way_out(path);
    case EROFS:
      return "The file system is mounted read-only. Remount it writable, or move the store; "
             "commands that only read work meanwhile.";
    case EIO:
      return "The device failed; see dmesg. Move the store to another disk and verify it there.";
    case ENOENT:
      return "Check the path; every directory on the way must exist.";
    case EEXIST:
      return "Choose another path, or remove what is there.";
    case ENOTDIR:
      return "A part of the path is a file where a directory is needed.";
    case ELOOP:
      return "It is a symbolic link, and Pagetide does not write through links. Remove the link.";
    case EMFILE:
      return "Raise the limit on open files (ulimit -n).";
    case ENFILE:
      return "The machine has too many open files; raise fs.file-max.";
    case ENAMETOOLONG:
      return "Choose a shorter path.";
    default:
      return {};
  }
}

tl::unexpected<Error> failed(std::string_view verb, const std::string& path, int error) {
  return system_failure(fmt::format("{} '{}'", verb, path), error, way_out(error, path));
}

tl::unexpected<Error> not_a_regular_file(const std::string& path) {
  return failure(ErrorCode::not_a_store,
                 fmt::format("cannot use '{}': it is not a regular file. Move it away, or choose "
                             "another store.",
                             path));
}

// Refuses what is not a regular file (a read from a FIFO would wait for ever).
Result<struct stat> regular_file_status(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return failed("look at", path, errno);
  if (!S_ISREG(status.st_mode)) return not_a_regular_file(path);
  return status;
}

// Opens for reading and writing, for the owner alone: an existing file may have any mode.
Result<UniqueFd> open_private(std::string_view verb, const std::string& path, int flags) {
  UniqueFd fd(retry_interrupted([&] {
    return ::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | flags,
                  kFileMode);
  }));
  if (!fd.valid() && errno == EISDIR) return not_a_regular_file(path);
  if (!fd.valid()) return failed(verb, path, errno);
  auto status = regular_file_status(fd.get(), path);
  if (!status) return propagate(status);
  if ((status->st_mode & 07777U) != kFileMode && ::fchmod(fd.get(), kFileMode) != 0) {
    return failed("make private", path, errno);
  }
  return fd;
}

// pread for a file in O_DIRECT mode, which takes whole aligned blocks only. Returns the bytes
// read or a negative errno.
ssize_t read_in_blocks(int fd, char* buffer, std::size_t size, std::uint64_t offset) {
  const std::size_t block = page_size();
  const std::unique_ptr<char, decltype(&std::free)> bounce(
      static_cast<char*>(std::aligned_alloc(block, round_up(kBounceBytes, block))), &std::free);
  if (bounce == nullptr) return -ENOMEM;
  std::size_t done = 0;
  while (done < size) {
    const std::uint64_t start = round_down(offset + done, block);
    const std::size_t skip = offset + done - start;
    const std::size_t wanted =
        std::min(round_up(kBounceBytes, block), round_up(skip + size - done, block));
    const ssize_t n = retry_interrupted(
        [&] { return ::pread(fd, bounce.get(), wanted, static_cast<off_t>(start)); });
    if (n < 0) return -errno;
    const auto got = static_cast<std::size_t>(n);
    if (got <= skip) break;
    const std::size_t part = std::min(got - skip, size - done);
    std::memcpy(buffer + done, bounce.get() + skip, part);
    done += part;
  }
  return static_cast<ssize_t>(done);
}

class PosixFile final : public File {
 public:
  PosixFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Result<std::size_t> read_at(std::uint64_t offset, void* buffer,
                              std::size_t size_bytes) const override {
    ssize_t n = sys::read_full(fd_.get(), buffer, size_bytes, offset);
    if (n == -EINVAL) n = read_in_blocks(fd_.get(), static_cast<char*>(buffer), size_bytes, offset);
    if (n < 0) return failed("read", path_, static_cast<int>(-n));
    return static_cast<std::size_t>(n);
  }

  Result<void> append(const void* data, std::size_t size_bytes) override {
    const auto* next = static_cast<const char*>(data);
    while (size_bytes > 0) {
      const ssize_t n = ::write(fd_.get(), next, std::min(size_bytes, kWriteChunkBytes));
      if (n > 0) {
        next += n;
        size_bytes -= static_cast<std::size_t>(n);
        continue;
      }
      const int error = n == 0 ? ENOSPC : errno;
      if (error == EINTR) continue;
      // A file system that takes O_DIRECT but not this write, or the rest of a short one.
      if (error == EINVAL && leave_direct_mode()) continue;
      return failed("write", path_, error);
    }
    return {};
  }

  Result<void> sync() override {
    if (retry_interrupted([&] { return ::fdatasync(fd_.get()); }) != 0) {
      return failed("sync", path_, errno);
    }
    return {};
  }

  Result<std::uint64_t> size() const override {
    struct stat status {};
    if (::fstat(fd_.get(), &status) != 0) return failed("look at", path_, errno);
    return static_cast<std::uint64_t>(status.st_size);
  }

  // Without effect where the file system refuses O_DIRECT.
  void enter_direct_mode() {
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    if (flags >= 0) static_cast<void>(::fcntl(fd_.get(), F_SETFL, flags | O_DIRECT));
  }

 private:
  // False when the file was not in direct mode.
  bool leave_direct_mode() {
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    if (flags < 0 || (flags & O_DIRECT) == 0) return false;
    return ::fcntl(fd_.get(), F_SETFL, flags & ~O_DIRECT) == 0;
  }

  UniqueFd fd_;
  std::string path_;
};

// The process named in a lock file ("pid N\n"), if it runs: a killed holder leaves its number.
std::optional<pid_t> live_holder(int fd) {
  std::array<char, 32> text{};
  const ssize_t n = sys::read_full(fd, text.data(), text.size(), 0);
  constexpr std::string_view kPrefix = "pid ";
  const std::string_view content(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  if (content.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  pid_t pid = 0;
  std::from_chars(content.data() + kPrefix.size(), content.data() + content.size(), pid);
  if (pid <= 0 || (::kill(pid, 0) != 0 && errno == ESRCH)) return std::nullopt;
  return pid;
}

tl::unexpected<Error> lock_is_held(int fd, const std::string& path) {
  const std::string directory = parent_directory(path);
  const std::optional<pid_t> holder = live_holder(fd);
  std::string message;
  if (!holder) {
    message = fmt::format(
        "'{}' is being written by another process; fuser '{}' shows which. Wait for it or end it",
        directory, path);
  } else if (*holder == ::getpid()) {
    message = fmt::format(
        "'{}' is already open for writing in this process (process {}); close it there first",
        directory, *holder);
  } else {
    message = fmt::format("'{}' is being written by process {}; wait for it or end it", directory,
                          *holder);
  }
  return failure(ErrorCode::busy, message + ". Commands that only read work meanwhile.");
}

class PosixFileLock final : public FileLock {
 public:
  explicit PosixFileLock(UniqueFd fd) : fd_(std::move(fd)), owner_(::getpid()) {
    std::array<char, 32> text{};
    const auto end = fmt::format_to_n(text.data(), text.size(), "pid {}\n", owner_);
    // For the message of others only, so a full disk is no reason to fail.
    [[maybe_unused]] const int ignored = ::ftruncate(fd_.get(), 0);
    static_cast<void>(sys::write_full(fd_.get(), text.data(), end.size, 0));
  }
  PosixFileLock(const PosixFileLock&) = delete;
  PosixFileLock& operator=(const PosixFileLock&) = delete;

  // A forked child shares the lock of its parent: only who took it gives it up. The explicit
  // unlock keeps such a child from holding it longer than its owner.
  ~PosixFileLock() override {
    if (::getpid() != owner_) return;
    [[maybe_unused]] const int ignored = ::ftruncate(fd_.get(), 0);
    ::flock(fd_.get(), LOCK_UN);
  }

 private:
  UniqueFd fd_;
  pid_t owner_;
};

// Opens a directory itself, for syncing or listing it.
int open_directory(const std::string& path) {
  return retry_interrupted(
      [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
}

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

class PosixFileSystem final : public FileSystem {
 public:
  Result<void> create_directory(const std::string& path) override {
    if (::mkdir(path.c_str(), kDirectoryMode) != 0) {
      return failed("create the directory", path, errno);
    }
    return {};
  }

  Result<std::unique_ptr<File>> create(const std::string& path, WriteMode mode) override {
    auto fd = open_private("create", path, O_TRUNC | O_APPEND);
    if (!fd) return propagate(fd);
    auto file = std::make_unique<PosixFile>(*std::move(fd), path);
    if (mode == WriteMode::direct_if_possible) file->enter_direct_mode();
    return file;
  }

  Result<std::unique_ptr<File>> open_read(const std::string& path) override {
    // O_NONBLOCK means nothing to a regular file and keeps a FIFO from blocking the open.
    UniqueFd fd(retry_interrupted(
        [&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY); }));
    if (!fd.valid()) return failed("open", path, errno);
    auto status = regular_file_status(fd.get(), path);
    if (!status) return propagate(status);
    return std::make_unique<PosixFile>(std::move(fd), path);
  }

  Result<void> rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) {
      const int error = errno;
      return system_failure(fmt::format("rename '{}' to '{}'", from, to), error,
                            way_out(error, from));
    }
    return {};
  }

  Result<void> remove(const std::string& path) override {
    if (std::remove(path.c_str()) != 0) return failed("remove", path, errno);
    return {};
  }

  Result<void> sync_directory(const std::string& path) override {
    const UniqueFd fd(open_directory(path));
    if (!fd.valid()) return failed("open the directory", path, errno);
    if (retry_interrupted([&] { return ::fsync(fd.get()); }) == 0) return {};
    if (errno != EINVAL) return failed("sync the directory", path, errno);
    return failure(ErrorCode::unsupported,
                   fmt::format("cannot make the entries of '{}' durable: its file system does not "
                               "sync directories. Keep the store on a local file system.",
                               path),
                   EINVAL);
  }

  Result<std::vector<std::string>> list(const std::string& path) override {
    UniqueFd fd(open_directory(path));
    if (!fd.valid() && errno == ENOTDIR) {
      return failure(
          ErrorCode::not_a_store,
          fmt::format("'{}' is not a directory, so it holds no store. Check the path.", path),
          ENOTDIR);
    }
    if (!fd.valid()) return failed("list", path, errno);
    const std::unique_ptr<DIR, CloseDirectory> directory(::fdopendir(fd.get()));
    if (directory == nullptr) return failed("list", path, errno);
    fd.release();  // closed by closedir from now on
    std::vector<std::string> names;
    errno = 0;  // readdir tells the end from a failure by it alone
    while (const dirent* entry = ::readdir(directory.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    if (errno != 0) return failed("list", path, errno);
    return names;
  }

  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override {
    auto fd = open_private("open the lock file", path, 0);
    if (!fd) return propagate(fd);
    if (retry_interrupted([&] { return ::flock(fd->get(), LOCK_EX | LOCK_NB); }) != 0) {
      if (errno == EWOULDBLOCK) return lock_is_held(fd->get(), path);
      return failed("lock", path, errno);
    }
    return std::make_unique<PosixFileLock>(*std::move(fd));
  }
};

}  // namespace

FileSystem& posix_file_system() {
  // Never destroyed, so that destructors of static objects may still use it.
  static FileSystem& file_system = *new PosixFileSystem;
  return file_system;
}

}  // namespace pagetide
