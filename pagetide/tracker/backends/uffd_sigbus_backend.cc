#include "pagetide/tracker/backends/uffd_sigbus_backend.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <map>
#include <utility>

#include "pagetide/tracker/backends/fault_recorder.h"
#include "pagetide/tracker/backends/fault_table.h"
#include "pagetide/tracker/backends/probe_round_trip.h"
#include "pagetide/tracker/backends/signal_chain.h"
#include "pagetide/tracker/disabled_features.h"
#include "pagetide/tracker/kernel/kernel_abi.h"

namespace pagetide {

namespace {

constexpr std::string_view kCompareWayOut =
    "The compare back end works without it (BackendKind::compare).";

// Faults of the kernel's own accesses are of no use here: they are EFAULT either way.
Result<UniqueFd> open_userfaultfd() {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  UniqueFd fd(static_cast<int>(::syscall(SYS_userfaultfd, kFlags | kernel::kUffdUserModeOnly)));
  // Linux before 5.11 does not know the flag, and asks for vm.unprivileged_userfaultfd.
  if (!fd.valid() && errno == EINVAL)
    fd.reset(static_cast<int>(::syscall(SYS_userfaultfd, kFlags)));
  if (fd.valid()) return fd;
  const int e = errno;
  return system_failure(
      "open userfaultfd", e,
      (e == EPERM ? std::string("A sandbox (seccomp) forbids the call, or Linux is older "
                                "than 5.11 and vm.unprivileged_userfaultfd is 0. ")
                  : std::string("Linux 5.7 or newer with CONFIG_USERFAULTFD is needed. ")) +
          std::string(kCompareWayOut));
}

// Allows SIGBUS in this thread for a while.
class SigbusUnblocked {
 public:
  SigbusUnblocked() {
    sigset_t sigbus;
    ::sigemptyset(&sigbus);
    ::sigaddset(&sigbus, SIGBUS);
    ::pthread_sigmask(SIG_UNBLOCK, &sigbus, &before_);
  }
  SigbusUnblocked(const SigbusUnblocked&) = delete;
  SigbusUnblocked& operator=(const SigbusUnblocked&) = delete;
  ~SigbusUnblocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// Runs in the thread that wrote, at the instruction that did: no lock, no allocation, nothing of
// the watched memory.
FaultAnswer resolve(void* table, const MemoryFault& fault) noexcept {
  if (fault.code != BUS_ADRERR) return {};
  const ResolvedFault resolved = static_cast<FaultTable*>(table)->resolve(fault.address);
  // A page that was recorded before and still faults may be about something else, such as memory
  // beyond the end of its file: the second time in a row is.
  if (resolved.is_ours && !resolved.was_recorded) return {FaultAnswer::Kind::resolved};
  return {FaultAnswer::Kind::settled, resolved.takes};
}

}  // namespace

// Does not move: handlers use the table.
struct UffdSigbusBackend::Parts {
  explicit Parts(FaultTable t) : table(std::move(t)) {}

  FaultTable table;
  std::map<std::uintptr_t, FaultWatch> faults;  // by start address; ends before the table
  std::unique_ptr<FaultRecorder> recorder;      // ends first: unregisters the memory
};

UffdSigbusBackend::UffdSigbusBackend(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
UffdSigbusBackend::UffdSigbusBackend(UffdSigbusBackend&&) noexcept = default;
UffdSigbusBackend& UffdSigbusBackend::operator=(UffdSigbusBackend&&) noexcept = default;
UffdSigbusBackend::~UffdSigbusBackend() = default;

Result<UffdSigbusBackend> UffdSigbusBackend::open() {
  if (is_disabled("userfaultfd")) {
    return failure(ErrorCode::unsupported,
                   "cannot open userfaultfd: switched off by PAGETIDE_DISABLE. " +
                       std::string(kCompareWayOut));
  }
  if (auto r = FaultWatch::check_handler(SIGBUS); !r) return propagate(r);
  auto fd = open_userfaultfd();
  if (!fd) return propagate(fd);
  auto table = FaultTable::create();
  if (!table) return propagate(table);
  auto parts = std::make_unique<Parts>(std::move(*table));
  auto recorder = FaultRecorder::create(std::move(*fd), UFFD_FEATURE_SIGBUS, parts->table);
  if (!recorder) return propagate(recorder);
  parts->recorder = std::move(*recorder);
  return UffdSigbusBackend(std::move(parts));
}

Result<void> UffdSigbusBackend::probe() {
  auto backend = open();
  if (!backend) return propagate(backend);
  // The kernel kills a thread that faults with the signal blocked.
  const SigbusUnblocked unblocked;
  return probe_round_trip(*backend, KernelWrites::fail);
}

// Every fault finds its handler: that is there before the memory is registered and stays until
// after it is not.
Result<void> UffdSigbusBackend::watch(ByteRange range) {
  auto faults = FaultWatch::add(SIGBUS, range, resolve, &parts_->table);
  if (!faults) return propagate(faults);
  if (auto r = parts_->recorder->watch(range); !r) return r;
  parts_->faults.insert_or_assign(range.begin, std::move(*faults));
  return {};
}

void UffdSigbusBackend::unwatch(ByteRange range) {
  parts_->recorder->unwatch(range);
  parts_->faults.erase(range.begin);
}

Result<void> UffdSigbusBackend::collect(ByteRange whole, ByteRange part, CollectMode mode,
                                        DirtyBitmap& written) {
  return parts_->recorder->collect(whole, part, mode, written);
}

Result<void> UffdSigbusBackend::prefill(ByteRange range, Prefill policy) {
  return parts_->recorder->prefill(range, policy);
}

void UffdSigbusBackend::purged(ByteRange range) {
  parts_->recorder->purged(range);
}

std::size_t UffdSigbusBackend::count_armed(ByteRange whole, ByteRange part) {
  return parts_->recorder->count_armed(whole, part);
}

}  // namespace pagetide
