#include "pagetide/tracker/capabilities.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <mutex>

#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/disabled_features.h"
#include "pagetide/tracker/uffd_async_backend.h"

namespace pagetide {

namespace {

// Calls visit for each name in PAGETIDE_DISABLE, without the spaces around it.
template <typename Visit>
void for_each_disabled(Visit&& visit) {
  const char* list = ::secure_getenv("PAGETIDE_DISABLE");
  std::string_view rest = list == nullptr ? std::string_view() : std::string_view(list);
  while (!rest.empty()) {
    std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    while (name.starts_with(' ')) name.remove_prefix(1);
    while (name.ends_with(' ')) name.remove_suffix(1);
    if (!name.empty()) visit(name);
  }
}

}  // namespace

bool is_disabled(std::string_view feature) {
  bool found = false;
  for_each_disabled([&](std::string_view name) { found = found || name == feature; });
  return found;
}

std::string unknown_disabled_features() {
  std::string unknown;
  for_each_disabled([&](std::string_view name) {
    if (name == "userfaultfd") return;
    if (!unknown.empty()) unknown += ", ";
    unknown += name;
  });
  return unknown;
}

bool has_lost_dirty_bit_bug(std::string_view release) {
  std::array<int, 3> version{};
  const char* at = release.data();
  const char* const end = release.data() + release.size();
  for (int& part : version) {
    const auto [next, error] = std::from_chars(at, end, part);
    if (error != std::errc{}) break;
    at = next;
    if (at == end || *at != '.') break;
    ++at;
  }
  const auto [major, minor, patch] = version;
  return major == 6 && (minor == 7 || (minor == 8 && patch < 10));
}

namespace {

std::string kernel_release() {
  utsname name{};
  return ::uname(&name) == 0 ? std::string(name.release) : std::string();
}

// A few pages of scratch memory that are registered with a back end of their own.
class Scratch {
 public:
  static constexpr std::size_t kPages = 8;

  static Result<Scratch> create() {
    auto backend = UffdAsyncBackend::open();
    if (!backend) return propagate(backend);
    const std::size_t size = kPages * page_size();
    void* p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return system_failure("map scratch memory for probing", errno);
    Scratch scratch(std::move(*backend), ByteRange::of(p, size));
    if (auto r = scratch.backend_.watch(scratch.range_); !r) return propagate(r);
    return scratch;
  }
  Scratch(Scratch&& other) noexcept
      : backend_(std::move(other.backend_)), range_(std::exchange(other.range_, {})) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch() {
    if (range_.empty()) return;
    backend_.unwatch(range_);
    ::munmap(range_.data(), range_.size);
  }

  UffdAsyncBackend& backend() { return backend_; }
  ByteRange range() const { return range_; }
  volatile char* page(std::size_t i) {
    return reinterpret_cast<volatile char*>(range_.begin + i * page_size());  // NOLINT
  }

  // The set of written pages as a bit mask.
  Result<std::uint64_t> collect(CollectMode mode) {
    DirtyBitmap written(kPages);
    if (auto r = backend_.collect(range_, range_, mode, written); !r) return propagate(r);
    return written.words()[0];
  }

 private:
  Scratch(UffdAsyncBackend backend, ByteRange range)
      : backend_(std::move(backend)), range_(range) {}

  UffdAsyncBackend backend_;
  ByteRange range_;
};

tl::unexpected<Error> wrong_answer(std::string_view what, std::uint64_t got, std::uint64_t wanted) {
  return failure(
      ErrorCode::unsupported,
      fmt::format("{}: the kernel reported pages {:#x} instead of {:#x}. This kernel's write "
                  "tracking cannot be trusted; the compare back end works.",
                  what, got, wanted));
}

// write -> reported -> armed -> silent -> write by us and by the kernel -> reported.
Result<void> round_trip() {
  auto scratch = Scratch::create();
  if (!scratch) return propagate(scratch);
  for (std::size_t i = 0; i < 4; ++i) *scratch->page(i) = 1;
  auto first = scratch->collect(CollectMode::take);
  if (!first) return propagate(first);
  if (*first != 0xf) return wrong_answer("first writes", *first, 0xf);
  auto quiet = scratch->collect(CollectMode::take);
  if (!quiet) return propagate(quiet);
  if (*quiet != 0) return wrong_answer("after arming", *quiet, 0);
  *scratch->page(1) = 2;
  const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  std::uint64_t wanted = 0x2;
  if (zero.valid()) {
    if (::read(zero.get(), const_cast<char*>(scratch->page(3)), 1) != 1) {
      return system_failure("read(2) into a tracked page", errno, "The compare back end works.");
    }
    wanted |= 0x8;
  }
  auto second = scratch->collect(CollectMode::take);
  if (!second) return propagate(second);
  if (*second != wanted) return wrong_answer("writes to armed pages", *second, wanted);
  return {};
}

Result<void> zero_page_prefill() {
  auto scratch = Scratch::create();
  if (!scratch) return propagate(scratch);
  if (auto r = scratch->backend().prefill_zero(scratch->range()); !r) return r;
  auto quiet = scratch->collect(CollectMode::take);
  if (!quiet) return propagate(quiet);
  if (*quiet != 0) return wrong_answer("after prefill", *quiet, 0);
  *scratch->page(5) = 1;
  auto written = scratch->collect(CollectMode::take);
  if (!written) return propagate(written);
  if (*written != 1U << 5U) return wrong_answer("a write after prefill", *written, 1U << 5U);
  return {};
}

// Informational: nothing relies on it, since purges are logged by whoever makes them.
Result<void> purges_reported() {
  auto scanner = PagemapScanner::open();
  if (!scanner) return propagate(scanner);
  auto scratch = Scratch::create();
  if (!scratch) return propagate(scratch);
  *scratch->page(0) = 1;
  *scratch->page(1) = 1;
  if (auto r = scratch->collect(CollectMode::take); !r) return propagate(r);
  if (const int r = sys::advise({scratch->range().begin, page_size()}, MADV_DONTNEED); r < 0) {
    return system_failure("purge a scratch page", -r);
  }
  ScanQuery query;
  query.mask = kernel::kPageWritten;
  query.returned = kernel::kPageWritten | kernel::kPagePresent;
  bool seen = false;
  auto r = scanner->scan(scratch->range(), query,
                         [&](std::uintptr_t first, std::uintptr_t, std::uint64_t) {
                           seen = seen || first == scratch->range().begin;
                         });
  if (!r) return r;
  if (!seen) {
    return failure(ErrorCode::unsupported,
                   "purged pages read as clean (fixed in July 2026 kernels). Harmless for arenas, "
                   "which log their purges; call note_purged() for memory of your own.");
  }
  return {};
}

Capability capability(std::string name, const Result<void>& result, std::string_view fine) {
  return {std::move(name), result.has_value(),
          result ? std::string(fine) : result.error().message()};
}

Result<void> check_release(const std::string& release) {
  if (!has_lost_dirty_bit_bug(release)) return {};
  return failure(
      ErrorCode::unsupported,
      fmt::format("Linux {} can lose writes when pages are armed (CVE-2024-36943). Update to "
                  "6.8.10 or newer; the compare back end works.",
                  release));
}

Result<void> probe_uffd_async() {
  if (auto r = check_release(kernel_release()); !r) return r;
  if (auto r = round_trip(); !r) return r;
  return zero_page_prefill();
}

}  // namespace

const Capability* Capabilities::find(std::string_view name) const {
  for (const Capability& item : items) {
    if (item.name == name) return &item;
  }
  return nullptr;
}

Capabilities probe_capabilities() {
  Capabilities found;
  const std::string release = kernel_release();
  found.items.push_back(
      capability("kernel.release", check_release(release),
                 fmt::format("Linux {}, pages of {} bytes", release, page_size())));
  Result<void> opened;
  if (auto backend = UffdAsyncBackend::open(); !backend) opened = propagate(backend);
  found.items.push_back(capability("uffd_async.open", opened,
                                   "userfaultfd without privilege, asynchronous write protection, "
                                   "PAGEMAP_SCAN's file"));
  found.items.push_back(capability("uffd_async.round_trip", round_trip(),
                                   "writes by the program and by read(2) are seen, once each"));
  found.items.push_back(
      capability("uffd_async.zero_page_prefill", zero_page_prefill(), "prefilled pages are armed"));
  found.items.push_back(
      capability("uffd_async.purges_reported", purges_reported(), "purged pages read as written"));
  found.items.push_back({"compare.always", true, "hashes every page; needs nothing of the kernel"});

  if (auto usable = check_uffd_async(); usable) {
    found.chosen = BackendKind::uffd_async;
    found.reason = "asynchronous write protection passed its round trip";
  } else {
    found.chosen = BackendKind::compare;
    found.reason = usable.error().message();
  }
  return found;
}

Result<void> check_uffd_async() {
  static std::mutex mutex;
  static std::string probed_with;
  static bool probed = false;
  static Result<void> answer;
  const char* disabled = ::secure_getenv("PAGETIDE_DISABLE");
  const std::string now = disabled == nullptr ? std::string() : std::string(disabled);
  const std::lock_guard lock(mutex);
  if (!probed || probed_with != now) {
    answer = probe_uffd_async();
    probed_with = now;
    probed = true;
  }
  return answer;
}

}  // namespace pagetide
