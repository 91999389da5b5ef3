#include "tests/support/crash_file_system.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "pagetide/base/page_range.h"
#include "tests/support/file_operation.h"

namespace pagetide {

namespace {

tl::unexpected<Error> simulated_crash() {
  return failure(ErrorCode::system_failure, "simulated crash");
}

tl::unexpected<Error> not_a_regular_file(const std::string& path) {
  return failure(ErrorCode::not_a_store,
                 fmt::format("cannot use '{}': it is not a regular file", path));
}

bool is_disk_full(int system_errno) {
  return system_errno == ENOSPC || system_errno == EDQUOT;
}

}  // namespace

// The disk, the faults and the record, shared with open files and locks.
class CrashFileSystem::State {
 public:
  explicit State(CrashDisk initial_disk) : disk(std::move(initial_disk)) {}

  // Runs one mutating operation under the mutex. apply(injected) does it and returns a
  // Result<T>; injected is the errno to fail with, or 0.
  template <typename Apply>
  auto mutate(const std::string& what, const Apply& apply) -> decltype(apply(0)) {
    const std::lock_guard guard(mutex);
    if (crashed) return simulated_crash();
    const std::size_t operation = operations.size();
    operations.push_back(what);
    if (operation < crash_operation) return apply(failure_at(operation));
    crashed = true;
    if (operation == crash_operation && crash_timing == CrashTiming::after) {
      // The result is lost with the process, but so is what it holds, such as a lock.
      static_cast<void>(apply(failure_at(operation)));
    }
    return simulated_crash();
  }

  // The same where failing means no effect.
  template <typename DoIt>
  Result<void> mutate_or_fail(const std::string& what, const DoIt& do_it) {
    return mutate(what, [&](int injected) -> Result<void> {
      const OrErrno<void> result =
          injected != 0 ? OrErrno<void>(tl::unexpected<int>(injected)) : do_it();
      if (!result) return system_failure(what, result.error());
      return {};
    });
  }

  // Counts a sync. True when it is to be ignored.
  bool skip_sync() { return ignored_syncs.contains(sync_count++); }

  mutable std::mutex mutex;
  CrashDisk disk;
  std::vector<std::string> operations;
  std::size_t sync_count = 0;
  bool crashed = false;
  std::size_t crash_operation = std::numeric_limits<std::size_t>::max();
  CrashTiming crash_timing = CrashTiming::before;
  std::map<std::size_t, int> failures;
  std::set<std::size_t> ignored_syncs;
  std::uint64_t capacity_bytes = std::numeric_limits<std::uint64_t>::max();

 private:
  int failure_at(std::size_t operation) {
    const auto found = failures.find(operation);
    return found != failures.end() ? found->second : 0;
  }
};

class CrashFileSystem::OpenFile final : public File {
 public:
  enum class Access : std::uint8_t { read_only, append, append_pages };

  OpenFile(std::shared_ptr<State> state, CrashInodePtr inode, std::string path, Access access)
      : state_(std::move(state)),
        inode_(std::move(inode)),
        path_(std::move(path)),
        access_(access) {}

  Result<std::size_t> read_at(std::uint64_t offset, void* buffer,
                              std::size_t size_bytes) const override {
    const std::lock_guard guard(state_->mutex);
    if (state_->crashed) return simulated_crash();
    const auto& content = inode_->content;
    if (offset >= content.size()) return std::size_t{0};
    const std::size_t bytes = std::min(size_bytes, content.size() - offset);
    if (bytes > 0) std::memcpy(buffer, content.data() + offset, bytes);
    return bytes;
  }

  Result<void> append(const void* data, std::size_t size_bytes) override {
    const std::string what = file_operation::append(path_, size_bytes);
    return state_->mutate(what, [&](int injected) -> Result<void> {
      if (access_ == Access::read_only) return system_failure(what, EBADF);
      if (access_ == Access::append_pages && !ByteRange::of(data, size_bytes).is_page_aligned()) {
        return failure(ErrorCode::invalid_argument,
                       fmt::format("cannot {}: direct writes are whole pages from page-aligned "
                                   "memory",
                                   what));
      }
      const std::size_t written = std::min(size_bytes, free_bytes());
      const int error = injected != 0 ? injected : written < size_bytes ? ENOSPC : 0;
      const auto* bytes = static_cast<const std::byte*>(data);
      if (injected == 0) CrashDisk::append(*inode_, bytes, written);
      if (is_disk_full(injected)) {
        CrashDisk::append(*inode_, bytes, std::min(size_bytes / 2, written));
      }
      if (error != 0) return system_failure(what, error);
      return {};
    });
  }

  Result<void> sync() override {
    const std::string what = file_operation::sync(path_);
    return state_->mutate(what, [&](int injected) -> Result<void> {
      const bool skip = state_->skip_sync();
      if (injected != 0) {
        CrashDisk::lose_unsynced(*inode_);
        return system_failure(what, injected);
      }
      if (!skip) CrashDisk::sync(*inode_);
      return {};
    });
  }

  Result<std::uint64_t> size() const override {
    const std::lock_guard guard(state_->mutex);
    if (state_->crashed) return simulated_crash();
    return inode_->content.size();
  }

 private:
  std::size_t free_bytes() const {
    const std::uint64_t used = state_->disk.used_bytes();
    return used < state_->capacity_bytes ? state_->capacity_bytes - used : 0;
  }

  std::shared_ptr<State> state_;
  CrashInodePtr inode_;
  std::string path_;
  Access access_;
};

class CrashFileSystem::HeldLock final : public FileLock {
 public:
  HeldLock(std::shared_ptr<State> state, CrashInodePtr inode)
      : state_(std::move(state)), inode_(std::move(inode)) {}
  HeldLock(const HeldLock&) = delete;
  HeldLock& operator=(const HeldLock&) = delete;
  ~HeldLock() override {
    const std::lock_guard guard(state_->mutex);
    inode_->is_locked = false;
  }

 private:
  std::shared_ptr<State> state_;
  CrashInodePtr inode_;
};

CrashFileSystem::CrashFileSystem() : state_(std::make_shared<State>(CrashDisk())) {}
CrashFileSystem::CrashFileSystem(std::shared_ptr<State> state) : state_(std::move(state)) {}
CrashFileSystem::~CrashFileSystem() = default;

Result<void> CrashFileSystem::create_directory(const std::string& path) {
  return state_->mutate_or_fail(file_operation::create_directory(path),
                                [&] { return state_->disk.create_directory(path); });
}

Result<std::unique_ptr<File>> CrashFileSystem::create(const std::string& path, WriteMode mode) {
  const std::string what = file_operation::create(path, mode);
  return state_->mutate(what, [&](int injected) -> Result<std::unique_ptr<File>> {
    if (injected != 0) return system_failure(what, injected);
    auto inode = state_->disk.create_file(path);
    if (!inode && inode.error() == EISDIR) return not_a_regular_file(path);
    if (!inode) return system_failure(what, inode.error());
    const auto access = mode == WriteMode::direct_if_possible ? OpenFile::Access::append_pages
                                                              : OpenFile::Access::append;
    return std::make_unique<OpenFile>(state_, *inode, path, access);
  });
}

Result<std::unique_ptr<File>> CrashFileSystem::open_read(const std::string& path) {
  const std::lock_guard guard(state_->mutex);
  if (state_->crashed) return simulated_crash();
  auto inode = state_->disk.find(path);
  if (!inode) return system_failure(fmt::format("open '{}'", path), inode.error());
  if ((*inode)->is_directory) return not_a_regular_file(path);
  return std::make_unique<OpenFile>(state_, *inode, path, OpenFile::Access::read_only);
}

Result<void> CrashFileSystem::rename(const std::string& from, const std::string& to) {
  return state_->mutate_or_fail(file_operation::rename(from, to),
                                [&] { return state_->disk.rename(from, to); });
}

Result<void> CrashFileSystem::remove(const std::string& path) {
  return state_->mutate_or_fail(file_operation::remove(path),
                                [&] { return state_->disk.remove(path); });
}

Result<void> CrashFileSystem::sync_directory(const std::string& path) {
  const std::string what = file_operation::sync_directory(path);
  return state_->mutate(what, [&](int injected) -> Result<void> {
    const bool skip = state_->skip_sync();
    if (injected != 0) return system_failure(what, injected);
    if (skip) return {};
    const auto synced = state_->disk.sync_directory(path);
    if (!synced) return system_failure(what, synced.error());
    return {};
  });
}

Result<std::vector<std::string>> CrashFileSystem::list(const std::string& path) {
  const std::lock_guard guard(state_->mutex);
  if (state_->crashed) return simulated_crash();
  auto directory = state_->disk.find(path);
  if (directory ? !(*directory)->is_directory : directory.error() == ENOTDIR) {
    return failure(ErrorCode::not_a_store, fmt::format("'{}' is not a directory", path), ENOTDIR);
  }
  if (!directory) return system_failure(fmt::format("list '{}'", path), directory.error());
  std::vector<std::string> names;
  for (const auto& [name, inode] : (*directory)->entries) names.push_back(name);
  return names;
}

Result<std::unique_ptr<FileLock>> CrashFileSystem::lock(const std::string& path) {
  const std::string what = file_operation::lock(path);
  CrashInodePtr locked;
  auto result = state_->mutate(what, [&](int injected) -> Result<void> {
    if (injected != 0) return system_failure(what, injected);
    auto inode = state_->disk.open_or_create(path);
    if (!inode && inode.error() == EISDIR) return not_a_regular_file(path);
    if (!inode) return system_failure(what, inode.error());
    if ((*inode)->is_locked) {
      return failure(ErrorCode::busy, fmt::format("'{}' is being written by process {}",
                                                  parent_directory(path), ::getpid()));
    }
    locked = *inode;
    locked->is_locked = true;
    return {};
  });
  if (!result) return propagate(result);
  return std::make_unique<HeldLock>(state_, locked);
}

std::vector<std::string> CrashFileSystem::operations() const {
  const std::lock_guard guard(state_->mutex);
  return state_->operations;
}

std::size_t CrashFileSystem::sync_count() const {
  const std::lock_guard guard(state_->mutex);
  return state_->sync_count;
}

void CrashFileSystem::crash_at(std::size_t operation, CrashTiming timing) {
  const std::lock_guard guard(state_->mutex);
  state_->crash_operation = operation;
  state_->crash_timing = timing;
}

bool CrashFileSystem::crashed() const {
  const std::lock_guard guard(state_->mutex);
  return state_->crashed;
}

void CrashFileSystem::fail_at(std::size_t operation, int system_errno) {
  const std::lock_guard guard(state_->mutex);
  state_->failures[operation] = system_errno;
}

void CrashFileSystem::ignore_sync(std::size_t n) {
  const std::lock_guard guard(state_->mutex);
  state_->ignored_syncs.insert(n);
}

void CrashFileSystem::capacity_bytes(std::uint64_t limit) {
  const std::lock_guard guard(state_->mutex);
  state_->capacity_bytes = limit;
}

std::unique_ptr<CrashFileSystem> CrashFileSystem::after_crash(const LossPolicy& policy) const {
  const std::lock_guard guard(state_->mutex);
  auto state = std::make_shared<State>(state_->disk.after_power_loss(policy));
  state->capacity_bytes = state_->capacity_bytes;
  return std::unique_ptr<CrashFileSystem>(new CrashFileSystem(std::move(state)));
}

std::unique_ptr<CrashFileSystem> CrashFileSystem::clone() const {
  const std::lock_guard guard(state_->mutex);
  auto state = std::make_shared<State>(state_->disk.clone());
  state->capacity_bytes = state_->capacity_bytes;
  return std::unique_ptr<CrashFileSystem>(new CrashFileSystem(std::move(state)));
}

std::vector<std::string> CrashFileSystem::file_names() const {
  const std::lock_guard guard(state_->mutex);
  std::vector<std::string> names;
  for (const auto& [path, inode] : state_->disk.files()) names.push_back(path);
  return names;
}

std::optional<std::uint64_t> CrashFileSystem::file_size(const std::string& path) const {
  const std::lock_guard guard(state_->mutex);
  const auto inode = state_->disk.find(path);
  if (!inode || (*inode)->is_directory) return std::nullopt;
  return (*inode)->content.size();
}

bool CrashFileSystem::flip_bit(const std::string& path, std::uint64_t offset, unsigned bit) {
  const std::lock_guard guard(state_->mutex);
  const auto inode = state_->disk.find(path);
  if (!inode || offset >= (*inode)->content.size() || bit >= 8) return false;
  (*inode)->content[offset] ^= std::byte{1} << bit;
  return true;
}

bool CrashFileSystem::truncate(const std::string& path, std::uint64_t size_bytes) {
  const std::lock_guard guard(state_->mutex);
  const auto inode = state_->disk.find(path);
  if (!inode || size_bytes > (*inode)->content.size()) return false;
  (*inode)->content.resize(size_bytes);
  (*inode)->durable_bytes = std::min<std::size_t>((*inode)->durable_bytes, size_bytes);
  return true;
}

}  // namespace pagetide
