#pragma once

#include <compare>
#include <string>
#include <string_view>

namespace pagetide {

// A kernel's version. What cannot be read counts as 0.
struct KernelVersion {
  int major = 0;
  int minor = 0;
  int patch = 0;
  // clang-tidy 14 takes the comparison with 0 in it for a null pointer.
  friend auto operator<=>(const KernelVersion&, const KernelVersion&) = default;  // NOLINT
};

// "6.8.4-amd64" gives 6.8.4.
KernelVersion parse_kernel_release(std::string_view release);

// uname's release; empty when even that fails.
std::string running_kernel_release();

}  // namespace pagetide
