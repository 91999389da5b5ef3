#include "examples/package_index/kill_switch.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <utility>

#include "pagetide/base/bytes.h"

namespace package_index {

using pagetide::ErrorCode;
using pagetide::File;
using pagetide::FileLock;
using pagetide::Result;
using pagetide::WriteMode;

namespace {

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace

Result<KillPoint> parse_kill_point(std::string_view text) {
  constexpr std::string_view kCommit = "commit:";
  KillPoint point;
  if (const auto operation = parse_number(text); operation && *operation > 0) {
    point.at = KillPoint::At::operation;
    point.operation = *operation;
    return point;
  }
  if (text.starts_with(kCommit)) {
    const std::string_view numbers = text.substr(kCommit.size());
    const std::size_t colon = std::min(numbers.find(':'), numbers.size());
    const auto commit = parse_number(numbers.substr(0, colon));
    const auto file_operation = parse_number(numbers.substr(std::min(colon + 1, numbers.size())));
    if (commit && file_operation && *file_operation > 0) {
      point.at = KillPoint::At::file_operation;
      point.commit = *commit;
      point.file_operation = *file_operation;
      return point;
    }
  }
  return pagetide::failure(
      ErrorCode::invalid_argument,
      fmt::format(
          "'{}' is no point to be killed at. Give a number K from 1 (after K records and updates "
          "of this run) or commit:S:OP (at the OP-th change of a file, from 1, in the S-th "
          "commit of this run; S = 0 is the opening of the store).",
          text));
}

void KillSwitch::operation_applied() {
  ++operations_;
  if (point_.at == KillPoint::At::operation && operations_ >= point_.operation) {
    kill(fmt::format("after {} records and updates", operations_));
  }
}

void KillSwitch::commit_begins() {
  ++commits_;
  file_operations_ = 0;
}

bool KillSwitch::file_operation_begins() {
  ++file_operations_;
  return point_.at == KillPoint::At::file_operation && commits_ == point_.commit &&
         file_operations_ == point_.file_operation;
}

void KillSwitch::kill(std::string_view where) const {
  fmt::print("killing this process with SIGKILL {}\n", where);
  std::fflush(stdout);
  ::kill(::getpid(), SIGKILL);
  while (true) ::pause();
}

void KillingFileSystem::before(std::string_view operation, const std::string& path) {
  if (kill_switch_.file_operation_begins()) {
    kill_switch_.kill(fmt::format("right before: {} {}", operation, path));
  }
}

class KillingFileSystem::KillingFile final : public File {
 public:
  KillingFile(KillingFileSystem& files, std::unique_ptr<File> inner, std::string path)
      : files_(files), inner_(std::move(inner)), path_(std::move(path)) {}

  Result<std::size_t> read_at(std::uint64_t offset, void* buffer,
                              std::size_t size_bytes) const override {
    return inner_->read_at(offset, buffer, size_bytes);
  }

  Result<void> append(const void* data, std::size_t size_bytes) override {
    if (files_.kill_switch_.file_operation_begins()) {
      // Whole pages, because direct writing takes nothing else.
      const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
      const std::size_t half_bytes = pagetide::round_down(size_bytes / 2, page_bytes);
      if (half_bytes > 0) (void)inner_->append(data, half_bytes);
      files_.kill_switch_.kill(
          fmt::format("with {} of {} bytes written to {}", half_bytes, size_bytes, path_));
    }
    return inner_->append(data, size_bytes);
  }

  Result<void> sync() override {
    files_.before("sync", path_);
    return inner_->sync();
  }

  Result<std::uint64_t> size() const override { return inner_->size(); }

 private:
  KillingFileSystem& files_;
  std::unique_ptr<File> inner_;
  std::string path_;
};

Result<void> KillingFileSystem::create_directory(const std::string& path) {
  before("create directory", path);
  return inner_.create_directory(path);
}

Result<std::unique_ptr<File>> KillingFileSystem::create(const std::string& path, WriteMode mode) {
  before("create", path);
  auto file = inner_.create(path, mode);
  if (!file) return file;
  return std::make_unique<KillingFile>(*this, std::move(*file), path);
}

Result<std::unique_ptr<File>> KillingFileSystem::open_read(const std::string& path) {
  return inner_.open_read(path);
}

Result<void> KillingFileSystem::rename(const std::string& from, const std::string& to) {
  before("rename", from + " to " + to);
  return inner_.rename(from, to);
}

Result<void> KillingFileSystem::remove(const std::string& path) {
  before("remove", path);
  return inner_.remove(path);
}

Result<void> KillingFileSystem::sync_directory(const std::string& path) {
  before("sync directory", path);
  return inner_.sync_directory(path);
}

Result<std::vector<std::string>> KillingFileSystem::list(const std::string& path) {
  return inner_.list(path);
}

Result<std::unique_ptr<FileLock>> KillingFileSystem::lock(const std::string& path) {
  before("lock", path);
  return inner_.lock(path);
}

}  // namespace package_index
