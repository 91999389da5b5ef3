#include "pagetide/tracker/backend_choice.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>

#include "pagetide/tracker/backends/compare_backend.h"
#include "pagetide/tracker/backends/probe_round_trip.h"
#include "pagetide/tracker/backends/soft_dirty_backend.h"
#include "pagetide/tracker/backends/uffd_async_backend.h"
#include "pagetide/tracker/backends/uffd_sigbus_backend.h"
#include "pagetide/tracker/backends/uffd_sync_backend.h"
#include "pagetide/tracker/backends/write_protect_backend.h"
#include "pagetide/tracker/disabled_features.h"
#include "pagetide/tracker/kernel/kernel_release.h"
#include "pagetide/tracker/kernel_bugs.h"

namespace pagetide {

namespace {

// A race that no probe can show, so the version decides.
Result<void> probe_async() {
  const std::string release = running_kernel_release();
  if (has_lost_dirty_bit_bug(release)) {
    return failure(
        ErrorCode::unsupported,
        fmt::format("Linux {} can lose writes when pages are armed (CVE-2024-36943). Update to "
                    "6.8.10 or newer; the compare back end works.",
                    release));
  }
  auto backend = UffdAsyncBackend::open();
  if (!backend) return propagate(backend);
  return probe_round_trip(*backend, KernelWrites::seen);
}

template <typename B>
Result<AnyBackend> as_any(Result<B> backend) {
  if (!backend) return propagate(backend);
  return AnyBackend(std::move(*backend));
}

template <typename B>
Result<AnyBackend> open_plainly(const BackendSettings&) {
  return as_any(B::open());
}

Result<AnyBackend> open_sync(const BackendSettings& settings) {
  UffdSyncOptions options;
  options.handler_threads = settings.handler_threads;
  return as_any(UffdSyncBackend::open(options));
}

Result<AnyBackend> open_write_protect(const BackendSettings& settings) {
  WriteProtectOptions options;
  options.max_extra_mappings = settings.max_extra_mappings;
  return as_any(WriteProtectBackend::open(options));
}

struct Way {
  BackendKind kind;
  Result<void> (*probe)();
  Result<AnyBackend> (*open)(const BackendSettings& settings);
  bool BackendPromises::*needs;  // null: nothing
  std::string_view needs_in_words;
};

// In order of preference.
constexpr std::array<Way, 6> kWays = {{
    {BackendKind::uffd_async, probe_async, open_plainly<UffdAsyncBackend>, nullptr, ""},
    {BackendKind::uffd_sigbus, UffdSigbusBackend::probe, open_plainly<UffdSigbusBackend>,
     &BackendPromises::never_syscall_target,
     "not tried, since system calls may write to the memory"},
    {BackendKind::uffd_sync, UffdSyncBackend::probe, open_sync, nullptr, ""},
    {BackendKind::soft_dirty, SoftDirtyBackend::probe, open_plainly<SoftDirtyBackend>,
     &BackendPromises::writers_held_in_takes, "not tried, since threads may write during a take"},
    {BackendKind::write_protect, WriteProtectBackend::probe, open_write_protect,
     &BackendPromises::never_syscall_target,
     "not tried, since system calls may write to the memory"},
    {BackendKind::compare, [] { return Result<void>(); }, open_plainly<CompareBackend>, nullptr,
     ""},
}};

Result<const Way*> find_way(BackendKind kind) {
  for (const Way& way : kWays) {
    if (way.kind == kind) return &way;
  }
  return failure(
      ErrorCode::invalid_argument,
      fmt::format("'{}' is not one back end; choose_backend() finds one.", to_string(kind)));
}

Result<void> probe(const Way& way) {
  if (way.kind != BackendKind::compare && is_disabled(to_string(way.kind))) {
    return failure(
        ErrorCode::unsupported,
        fmt::format("cannot use {}: switched off by PAGETIDE_DISABLE.", to_string(way.kind)));
  }
  return way.probe();
}

// What was found out about this machine.
struct Answers {
  std::mutex mutex;
  std::string probed_with;  // the value of PAGETIDE_DISABLE
  std::map<BackendKind, Result<void>> by_kind;
};

Answers& answers() {
  static Answers all;
  return all;
}

// Messages say what is wrong, then what to do.
std::string_view first_sentence(std::string_view message) {
  message = message.substr(0, message.find(". "));
  while (message.ends_with('.')) message.remove_suffix(1);
  return message;
}

}  // namespace

Result<void> check_backend(BackendKind kind) {
  auto way = find_way(kind);
  if (!way) return propagate(way);
  const char* disabled = ::secure_getenv("PAGETIDE_DISABLE");
  const std::string now = disabled == nullptr ? std::string() : std::string(disabled);
  Answers& known = answers();
  {
    const std::lock_guard lock(known.mutex);
    if (known.probed_with != now) known.by_kind.clear();
    known.probed_with = now;
    const auto found = known.by_kind.find(kind);
    if (found != known.by_kind.end()) return found->second;
  }
  // Without the lock: a child that is forked meanwhile could never take it.
  auto answer = probe(**way);
  // What is missing now may come: descriptors, memory, permissions. What the kernel lacks will not.
  const bool stays = answer || answer.error().code() == ErrorCode::unsupported;
  const std::lock_guard lock(known.mutex);
  if (stays && known.probed_with == now) known.by_kind.insert_or_assign(kind, answer);
  return answer;
}

BackendChoice choose_backend(const BackendPromises& promises) {
  std::string missing;
  for (const Way& way : kWays) {
    if (way.kind == BackendKind::compare) break;
    std::string why(way.needs_in_words);
    if (way.needs == nullptr || promises.*way.needs) {
      auto usable = check_backend(way.kind);
      if (usable) {
        constexpr std::string_view kFine = "passed its round trip on scratch memory";
        return {way.kind, missing.empty()
                              ? fmt::format("{} {}", to_string(way.kind), kFine)
                              : fmt::format("{}; {} {}", missing, to_string(way.kind), kFine)};
      }
      why = first_sentence(usable.error().message());
    }
    if (!missing.empty()) missing += "; ";
    missing += fmt::format("{}: {}", to_string(way.kind), why);
  }
  return {BackendKind::compare, missing};
}

Result<AnyBackend> open_backend(BackendKind kind, const BackendSettings& settings) {
  auto way = find_way(kind);
  if (!way) return propagate(way);
  if (auto usable = check_backend(kind); !usable) return propagate(usable);
  return (*way)->open(settings);
}

}  // namespace pagetide
