#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pagetide/base/error.h"
#include "pagetide/snapshot/file_system.h"

namespace package_index {

// Where the program kills itself, to show and to test what a crash leaves.
struct KillPoint {
  enum class At : std::uint8_t { never, operation, file_operation };
  At at = At::never;
  std::uint64_t operation = 0;  // after this many applied records and updates of this run
  std::uint64_t commit =
      0;  // in the commit of this number of this run, 0 while the store is opened
  std::uint64_t file_operation = 0;  // at this change of a file, counted from 1 in that commit
};

// "K" or "commit:S:OP".
pagetide::Result<KillPoint> parse_kill_point(std::string_view text);

// Counts, and ends the process with SIGKILL when the point is reached: no destructor and no
// handler runs, nothing is flushed.
class KillSwitch {
 public:
  explicit KillSwitch(const KillPoint& point) : point_(point) {}

  void operation_applied();
  void commit_begins();
  // Counts a change of a file that is about to be made; true when it must not be completed.
  bool file_operation_begins();
  [[noreturn]] void kill(std::string_view where) const;

  // Whether the run came to its end without reaching the point.
  bool is_pending() const { return point_.at != KillPoint::At::never; }

 private:
  KillPoint point_;
  std::uint64_t operations_ = 0;
  std::uint64_t commits_ = 0;
  std::uint64_t file_operations_ = 0;
};

// A FileSystem that passes everything on, but lets the switch kill the process before any change
// of a file. When that change appends data, half of it is written first.
class KillingFileSystem final : public pagetide::FileSystem {
 public:
  KillingFileSystem(pagetide::FileSystem& inner, KillSwitch& kill_switch)
      : inner_(inner), kill_switch_(kill_switch) {}

  pagetide::Result<void> create_directory(const std::string& path) override;
  pagetide::Result<std::unique_ptr<pagetide::File>> create(const std::string& path,
                                                           pagetide::WriteMode mode) override;
  pagetide::Result<std::unique_ptr<pagetide::File>> open_read(const std::string& path) override;
  pagetide::Result<void> rename(const std::string& from, const std::string& to) override;
  pagetide::Result<void> remove(const std::string& path) override;
  pagetide::Result<void> sync_directory(const std::string& path) override;
  pagetide::Result<std::vector<std::string>> list(const std::string& path) override;
  pagetide::Result<std::unique_ptr<pagetide::FileLock>> lock(const std::string& path) override;

 private:
  class KillingFile;

  void before(std::string_view operation, const std::string& path);

  pagetide::FileSystem& inner_;
  KillSwitch& kill_switch_;
};

}  // namespace package_index
