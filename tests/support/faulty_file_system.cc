#include "tests/support/faulty_file_system.h"

#include <atomic>
#include <utility>

#include "tests/support/file_operation.h"

namespace pagetide {

// Numbers the operations and asks the hook; shared with open files.
class FaultyFileSystem::Gate {
 public:
  explicit Gate(Hook hook) : hook_(std::move(hook)) {}

  Result<void> pass(const std::string& what) { return hook_(next_operation_++, what); }

 private:
  Hook hook_;
  std::atomic<std::size_t> next_operation_ = 0;
};

class FaultyFileSystem::HookedFile final : public File {
 public:
  HookedFile(std::unique_ptr<File> inner, std::string path, std::shared_ptr<Gate> gate)
      : inner_(std::move(inner)), path_(std::move(path)), gate_(std::move(gate)) {}

  Result<std::size_t> read_at(std::uint64_t offset, void* buffer,
                              std::size_t size_bytes) const override {
    return inner_->read_at(offset, buffer, size_bytes);
  }
  Result<void> append(const void* data, std::size_t size_bytes) override {
    auto passed = gate_->pass(file_operation::append(path_, size_bytes));
    return passed ? inner_->append(data, size_bytes) : passed;
  }
  Result<void> sync() override {
    auto passed = gate_->pass(file_operation::sync(path_));
    return passed ? inner_->sync() : passed;
  }
  Result<std::uint64_t> size() const override { return inner_->size(); }

 private:
  std::unique_ptr<File> inner_;
  std::string path_;
  std::shared_ptr<Gate> gate_;
};

FaultyFileSystem::FaultyFileSystem(FileSystem& inner, Hook hook)
    : inner_(inner), gate_(std::make_shared<Gate>(std::move(hook))) {}

Result<void> FaultyFileSystem::create_directory(const std::string& path) {
  auto passed = gate_->pass(file_operation::create_directory(path));
  return passed ? inner_.create_directory(path) : passed;
}

Result<std::unique_ptr<File>> FaultyFileSystem::create(const std::string& path, WriteMode mode) {
  auto passed = gate_->pass(file_operation::create(path, mode));
  if (!passed) return propagate(passed);
  auto file = inner_.create(path, mode);
  if (!file) return propagate(file);
  return std::make_unique<HookedFile>(*std::move(file), path, gate_);
}

Result<std::unique_ptr<File>> FaultyFileSystem::open_read(const std::string& path) {
  auto file = inner_.open_read(path);
  if (!file) return propagate(file);
  return std::make_unique<HookedFile>(*std::move(file), path, gate_);
}

Result<void> FaultyFileSystem::rename(const std::string& from, const std::string& to) {
  auto passed = gate_->pass(file_operation::rename(from, to));
  return passed ? inner_.rename(from, to) : passed;
}

Result<void> FaultyFileSystem::remove(const std::string& path) {
  auto passed = gate_->pass(file_operation::remove(path));
  return passed ? inner_.remove(path) : passed;
}

Result<void> FaultyFileSystem::sync_directory(const std::string& path) {
  auto passed = gate_->pass(file_operation::sync_directory(path));
  return passed ? inner_.sync_directory(path) : passed;
}

Result<std::vector<std::string>> FaultyFileSystem::list(const std::string& path) {
  return inner_.list(path);
}

Result<std::unique_ptr<FileLock>> FaultyFileSystem::lock(const std::string& path) {
  auto passed = gate_->pass(file_operation::lock(path));
  if (!passed) return propagate(passed);
  return inner_.lock(path);
}

}  // namespace pagetide
