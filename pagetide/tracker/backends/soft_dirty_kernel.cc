#include "pagetide/tracker/backends/soft_dirty_kernel.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "pagetide/base/syscalls.h"
#include "pagetide/base/unique_fd.h"
#include "pagetide/tracker/kernel/mapping_query.h"

namespace pagetide {

namespace {

class ProcSoftDirtyKernel final : public SoftDirtyKernel {
 public:
  ProcSoftDirtyKernel(UniqueFd pagemap, UniqueFd clear_refs)
      : pagemap_(std::move(pagemap)), clear_refs_(std::move(clear_refs)) {}

  Result<void> read_entries(ByteRange range, std::span<std::uint64_t> entries) override {
    const ssize_t size = sys::read_full(pagemap_.get(), entries.data(), entries.size_bytes(),
                                        range.begin / page_size() * sizeof(std::uint64_t));
    if (size >= 0 && static_cast<std::size_t>(size) == entries.size_bytes()) return {};
    return system_failure("read /proc/self/pagemap", size < 0 ? static_cast<int>(-size) : EIO,
                          "The range is taken as written in whole.");
  }

  Result<void> clear_all() override {
    ssize_t written = 0;
    do {
      written = ::write(clear_refs_.get(), "4", 1);
    } while (written < 0 && errno == EINTR);
    if (written == 1) return {};
    return system_failure("clear soft-dirty bits (/proc/self/clear_refs)", errno,
                          "No bit was lost; the next take tries again.");
  }

  void store(std::uintptr_t address) override {
    *reinterpret_cast<volatile char*>(address) = 1;  // NOLINT
  }

  bool is_private(ByteRange range) override {
    auto query = MappingQuery::open();
    if (!query) return false;
    const auto parts = query->parts_of(range);
    return parts && std::none_of(parts->begin(), parts->end(),
                                 [](const MappedPart& part) { return part.is_shared; });
  }

 private:
  UniqueFd pagemap_;
  UniqueFd clear_refs_;
};

}  // namespace

Result<std::unique_ptr<SoftDirtyKernel>> SoftDirtyKernel::open() {
  constexpr std::string_view kWayOut =
      "A process that changed its user id without exec is not dumpable: open the tracker before, "
      "or "
      "call prctl(PR_SET_DUMPABLE, 1); /proc must be mounted and writable. The compare back end "
      "works without it.";
  UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!pagemap.valid()) return system_failure("open /proc/self/pagemap", errno, kWayOut);
  UniqueFd clear_refs(::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC));
  if (!clear_refs.valid()) return system_failure("open /proc/self/clear_refs", errno, kWayOut);
  return std::make_unique<ProcSoftDirtyKernel>(std::move(pagemap), std::move(clear_refs));
}

}  // namespace pagetide
