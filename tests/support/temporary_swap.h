#pragma once

#include <fcntl.h>
#include <sys/swap.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "pagetide/base/unique_fd.h"

namespace pagetide {

// 64 MiB of swap in compressed memory (zram) while it lives. Needs root and zram.
class TemporarySwap {
 public:
  TemporarySwap() {
    const std::string id = read_small("/sys/class/zram-control/hot_add");
    if (id.empty()) return;
    device_ = "/dev/zram" + id;
    id_ = id;
    if (!write_small("/sys/block/zram" + id + "/disksize", "67108864")) return;
    const std::string make = "mkswap -f " + device_ + " >/dev/null 2>&1";
    if (std::system(make.c_str()) != 0) return;  // NOLINT: a test tool
    usable_ = ::swapon(device_.c_str(), 0) == 0;
  }
  TemporarySwap(const TemporarySwap&) = delete;
  TemporarySwap& operator=(const TemporarySwap&) = delete;
  ~TemporarySwap() {
    if (usable_) ::swapoff(device_.c_str());
    if (!id_.empty()) (void)write_small("/sys/class/zram-control/hot_remove", id_);
  }
  bool usable() const { return usable_; }

 private:
  static std::string read_small(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char text[16] = {};
    const ssize_t n = fd.valid() ? ::read(fd.get(), text, sizeof(text) - 1) : 0;
    std::string all(text, n > 0 ? static_cast<std::size_t>(n) : 0);
    while (!all.empty() && all.back() == '\n') all.pop_back();
    return all;
  }
  static bool write_small(const std::string& path, const std::string& text) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return fd.valid() &&
           ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

  std::string device_;
  std::string id_;
  bool usable_ = false;
};

}  // namespace pagetide
