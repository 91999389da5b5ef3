#include "pagetide/tracker/backends/uffd_sync_backend.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <vector>

#include "pagetide/base/bytes.h"
#include "pagetide/base/syscalls.h"
#include "pagetide/tracker/backends/fault_recorder.h"
#include "pagetide/tracker/backends/probe_round_trip.h"
#include "pagetide/tracker/disabled_features.h"
#include "pagetide/tracker/kernel/kernel_abi.h"

namespace pagetide {

namespace {

constexpr std::size_t kMaxFaults = 16;
constexpr int kUffdFlags = O_CLOEXEC | O_NONBLOCK;  // poll() needs the latter

// A descriptor that gets the kernel's faults too.
Result<UniqueFd> open_kernel_capable_userfaultfd() {
  const UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  const int device_errno = errno;
  UniqueFd fd;
  if (device.valid()) fd.reset(::ioctl(device.get(), USERFAULTFD_IOC_NEW, kUffdFlags));
  if (!fd.valid()) fd.reset(static_cast<int>(::syscall(SYS_userfaultfd, kUffdFlags)));
  if (fd.valid()) return fd;
  const int e = errno;
  if (e != EPERM) {
    return system_failure(
        "open userfaultfd", e,
        "Linux 5.7 or newer with CONFIG_USERFAULTFD is needed. The compare back end "
        "works without it (BackendKind::compare).");
  }
  return failure(
      ErrorCode::permission_denied,
      fmt::format(
          "cannot open userfaultfd for faults of the kernel: {}, and the system call is "
          "not permitted. With user-mode faults alone, read(2) and the like into tracked "
          "memory would fail with EFAULT. Needed is one of: access to /dev/userfaultfd "
          "(Linux 6.1: chown or chmod it), CAP_SYS_PTRACE (setcap cap_sys_ptrace=ep), "
          "sysctl vm.unprivileged_userfaultfd=1; in a container also a seccomp profile that "
          "allows userfaultfd. BackendKind::uffd_async needs none of them.",
          device.valid() ? std::string("/dev/userfaultfd gave no descriptor")
                         : system_error("open /dev/userfaultfd", device_errno).message()),
      e);
}

// A stack that is mapped for this alone, with a page below it that faults.
class ThreadStack {
 public:
  static Result<ThreadStack> create() {
    auto memory = VirtualArray<std::byte>::create(kBytes);
    if (!memory) return propagate(memory);
    if (::mprotect(memory->span().data(), page_size(), PROT_NONE) != 0) {
      return system_failure("protect the end of a thread's stack", errno);
    }
    return ThreadStack(std::move(*memory));
  }
  std::byte* begin() { return &memory_[page_size()]; }
  std::size_t size() const { return memory_.size() - page_size(); }

 private:
  // A handler needs a few KiB; the C library also puts the program's static TLS here.
  static constexpr std::size_t kBytes = std::size_t{2} << 20;
  explicit ThreadStack(VirtualArray<std::byte> memory) : memory_(std::move(memory)) {}
  VirtualArray<std::byte> memory_;
};

// Blocks every signal in this thread, and in those it makes meanwhile.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

// The threads and what they look at. Does not move.
class UffdSyncBackend::Handlers {
 public:
  static Result<std::unique_ptr<Handlers>> create(UniqueFd uffd, const UffdSyncOptions& options);
  Handlers(const Handlers&) = delete;
  Handlers& operator=(const Handlers&) = delete;
  ~Handlers();

  FaultRecorder& recorder() { return *recorder_; }
  // Goes off only while something is watched, so that an idle program sleeps.
  void set_watchdog();

 private:
  struct Thread {
    ThreadStack stack;
    pthread_t id;
  };

  explicit Handlers(FaultTable table) : table_(std::move(table)), owner_(::getpid()) {}
  Result<void> start(std::size_t count);
  static void* run(void* handlers);
  void handle_faults();

  bool forked() const { return ::getpid() != owner_; }

  FaultTable table_;
  std::unique_ptr<FaultRecorder> recorder_;
  UniqueFd stop_;   // an eventfd that stays readable once it is written
  UniqueFd timer_;  // none without a watchdog
  std::chrono::milliseconds watchdog_{};
  std::size_t faults_at_once_ = 1;
  std::vector<Thread> threads_;
  pid_t owner_;
};

Result<std::unique_ptr<UffdSyncBackend::Handlers>> UffdSyncBackend::Handlers::create(
    UniqueFd uffd, const UffdSyncOptions& options) {
  auto table = FaultTable::create();
  if (!table) return propagate(table);
  std::unique_ptr<Handlers> handlers(new Handlers(std::move(*table)));
  auto recorder = FaultRecorder::create(std::move(uffd), 0, handlers->table_);
  if (!recorder) return propagate(recorder);
  handlers->recorder_ = std::move(*recorder);
  handlers->stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!handlers->stop_.valid()) return system_failure("make an eventfd", errno);
  handlers->watchdog_ = options.watchdog;
  if (options.watchdog.count() > 0) {
    handlers->timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!handlers->timer_.valid()) return system_failure("make a timerfd", errno);
  }
  if (auto r = handlers->start(options.handler_threads); !r) return propagate(r);
  return handlers;
}

Result<void> UffdSyncBackend::Handlers::start(std::size_t count) {
  const SignalsBlocked blocked;
  threads_.reserve(count);
  // Several handlers take one each, so that they share the work.
  faults_at_once_ = count > 1 ? 1 : kMaxFaults;
  for (std::size_t i = 0; i < count; ++i) {
    auto stack = ThreadStack::create();
    if (!stack) return propagate(stack);
    pthread_attr_t attributes;
    ::pthread_attr_init(&attributes);
    int e = ::pthread_attr_setstack(&attributes, stack->begin(), stack->size());
    pthread_t id{};
    if (e == 0) e = ::pthread_create(&id, &attributes, run, this);
    ::pthread_attr_destroy(&attributes);
    if (e != 0) {
      return system_failure("start a thread that handles faults", e,
                            "The limit of processes (ulimit -u) may be reached.");
    }
    ::pthread_setname_np(id, "pagetide-uffd");
    threads_.push_back({std::move(*stack), id});
  }
  return {};
}

UffdSyncBackend::Handlers::~Handlers() {
  // In a forked child the threads do not exist and the descriptors are the parent's. Recorder and
  // stacks are only copies: dropping them leaves the parent alone.
  if (forked()) return;
  // First, so that no thread waits for a handler that has ended.
  if (recorder_) recorder_->unwatch_all();
  const std::uint64_t one = 1;
  (void)!::write(stop_.get(), &one, sizeof(one));
  for (const Thread& thread : threads_) ::pthread_join(thread.id, nullptr);
}

void UffdSyncBackend::Handlers::set_watchdog() {
  if (!timer_.valid() || forked()) return;
  itimerspec period{};
  if (recorder_->is_watching()) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(watchdog_);
    period.it_interval.tv_sec = seconds.count();
    period.it_interval.tv_nsec = std::chrono::nanoseconds(watchdog_ - seconds).count();
    period.it_value = period.it_interval;
  }
  ::timerfd_settime(timer_.get(), 0, &period, nullptr);
}

// Runs in the handler threads: no allocation, no lock, no tracked memory.
void* UffdSyncBackend::Handlers::run(void* handlers) {
  Handlers& self = *static_cast<Handlers*>(handlers);
  std::array<pollfd, 3> events{};
  events[0] = {self.recorder_->uffd(), POLLIN, 0};
  events[1] = {self.stop_.get(), POLLIN, 0};
  events[2] = {self.timer_.get(), POLLIN, 0};  // poll() passes over one that is negative
  while (true) {
    if (::poll(events.data(), events.size(), -1) < 0) continue;
    if (events[1].revents != 0) return nullptr;
    if (events[0].revents != 0) self.handle_faults();
    if (events[2].revents != 0) {
      std::uint64_t times = 0;
      // Only one of several threads gets it.
      if (::read(self.timer_.get(), &times, sizeof(times)) > 0) self.table_.wake_all();
    }
  }
}

// Runs in the handler threads: no allocation, no lock, no tracked memory.
void UffdSyncBackend::Handlers::handle_faults() {
  std::array<uffd_msg, kMaxFaults> messages;
  const int uffd = recorder_->uffd();
  const ssize_t size = ::read(uffd, messages.data(), faults_at_once_ * sizeof(uffd_msg));
  const auto count = size > 0 ? static_cast<std::size_t>(size) / sizeof(uffd_msg) : 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (messages[i].event != UFFD_EVENT_PAGEFAULT) continue;
    const std::uintptr_t address = messages[i].arg.pagefault.address;
    // False when its watch has ended: then whoever waits tries again without a fault.
    (void)table_.resolve(address);
    uffdio_range page{round_down(address, page_size()), page_size()};
    (void)sys::ioctl(uffd, UFFDIO_WAKE, &page);
  }
}

UffdSyncBackend::UffdSyncBackend(std::unique_ptr<Handlers> handlers)
    : handlers_(std::move(handlers)) {}
UffdSyncBackend::UffdSyncBackend(UffdSyncBackend&&) noexcept = default;
UffdSyncBackend& UffdSyncBackend::operator=(UffdSyncBackend&&) noexcept = default;
UffdSyncBackend::~UffdSyncBackend() = default;

Result<UffdSyncBackend> UffdSyncBackend::open(const UffdSyncOptions& options) {
  if (options.handler_threads == 0 || options.watchdog.count() < 0) {
    return failure(ErrorCode::invalid_argument,
                   "a synchronous tracker needs at least one handler thread and a watchdog period "
                   "that is not negative.");
  }
  if (is_disabled("userfaultfd")) {
    return failure(
        ErrorCode::unsupported,
        "cannot open userfaultfd: switched off by PAGETIDE_DISABLE. The compare back end "
        "works without it (BackendKind::compare).");
  }
  auto uffd = open_kernel_capable_userfaultfd();
  if (!uffd) return propagate(uffd);
  auto handlers = Handlers::create(std::move(*uffd), options);
  if (!handlers) return propagate(handlers);
  return UffdSyncBackend(std::move(*handlers));
}

Result<void> UffdSyncBackend::probe() {
  auto backend = open();
  if (!backend) return propagate(backend);
  return probe_round_trip(*backend, KernelWrites::seen);
}

Result<void> UffdSyncBackend::watch(ByteRange range) {
  auto r = handlers_->recorder().watch(range);
  if (r) handlers_->set_watchdog();
  return r;
}

void UffdSyncBackend::unwatch(ByteRange range) {
  handlers_->recorder().unwatch(range);
  handlers_->set_watchdog();
}

Result<void> UffdSyncBackend::collect(ByteRange whole, ByteRange part, CollectMode mode,
                                      DirtyBitmap& written) {
  return handlers_->recorder().collect(whole, part, mode, written);
}

Result<void> UffdSyncBackend::prefill(ByteRange range, Prefill policy) {
  return handlers_->recorder().prefill(range, policy);
}

void UffdSyncBackend::purged(ByteRange range) {
  handlers_->recorder().purged(range);
}

std::size_t UffdSyncBackend::count_armed(ByteRange whole, ByteRange part) {
  return handlers_->recorder().count_armed(whole, part);
}

}  // namespace pagetide
