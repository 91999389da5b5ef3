#include "pagetide/tracker/backends/signal_chain.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "pagetide/base/lock_rank.h"
#include "pagetide/base/virtual_array.h"

namespace pagetide {

namespace {

// The words below are shared with signal handlers.
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

// --- the table of watches ---

constexpr int kFree = 0;
constexpr int kInTransit = -1;  // being filled, or ending

// A place keeps its range after its watch ended: a thread may have faulted just before.
struct Slot {
  std::atomic<int> state = kFree;  // kFree, kInTransit or the signal that is watched
  std::atomic<int> signal = 0;     // of the present or the latest watch
  std::atomic<std::uintptr_t> begin = 0;
  std::atomic<std::size_t> size = 0;
  std::atomic<FaultFunction> function = nullptr;
  std::atomic<void*> owner = nullptr;
  std::atomic<std::uint64_t> watches_ended = 0;
  std::atomic<pid_t> process = 0;  // that made the watch

  bool covers(const MemoryFault& fault) const {
    return fault.address - begin.load(std::memory_order_relaxed) <
               size.load(std::memory_order_relaxed) &&
           signal.load(std::memory_order_relaxed) == fault.signal;
  }
};

std::array<Slot, FaultWatch::kMaxWatches> slots;
std::atomic<std::size_t> slots_in_use = 0;  // the first so many; never shrinks
std::atomic<std::size_t> next_slot = 0;     // where to look for a free one

// How many threads are inside each slot's function. The kernel gives a forked child zeros, since
// the threads that were inside do not exist there.
std::atomic<std::uint32_t*> threads_inside = nullptr;

std::atomic_ref<std::uint32_t> inside(std::size_t slot) {
  return std::atomic_ref(threads_inside.load(std::memory_order_acquire)[slot]);
}

Result<void> map_thread_counts() {
  if (threads_inside.load(std::memory_order_acquire) != nullptr) return {};
  using Counts = VirtualArray<std::uint32_t>;
  auto counts = Counts::create(FaultWatch::kMaxWatches);
  if (!counts) return propagate(counts);
  // Linux 4.14. On older kernels a child that forks while another thread is in the handler and
  // then ends this very watch would wait for ever.
  (void)::madvise(counts->span().data(), counts->size() * sizeof(std::uint32_t), MADV_WIPEONFORK);
  threads_inside.store(counts->span().data(), std::memory_order_release);
  // Its destructor never runs: the handler stays.
  alignas(Counts) static std::byte kept[sizeof(Counts)];
  new (kept) Counts(std::move(*counts));
  return {};
}

// --- faults that nobody claims any more ---

// The latest settled fault of a thread, as one number, so that no reader sees half of it. Threads
// whose numbers fall together overwrite each other: a real fault then takes a few more rounds.
std::array<std::atomic<std::uint64_t>, 64> settled_faults;

constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

// Whether this thread was told for the same fault before that the access will work.
bool is_settled_again(const MemoryFault& fault, std::uint64_t generation) {
  const auto thread = static_cast<std::uint64_t>(::syscall(SYS_gettid));
  const std::uint64_t now =
      mix(mix(mix(thread) ^ fault.address) ^ generation) ^ static_cast<std::uint64_t>(fault.signal);
  return settled_faults[thread % settled_faults.size()].exchange(now) == now;
}

// --- the handler ---

FaultAnswer ask(std::size_t index, const MemoryFault& fault) {
  Slot& slot = slots[index];
  const FaultAnswer ended{FaultAnswer::Kind::settled,
                          slot.watches_ended.load(std::memory_order_relaxed)};
  if (slot.state.load(std::memory_order_acquire) != fault.signal) return ended;
  FaultAnswer answer = ended;
  // The order of these two against the two of end() is what makes the wait there safe: either
  // we see that the watch is ending, or it sees us.
  inside(index).fetch_add(1, std::memory_order_seq_cst);
  if (slot.state.load(std::memory_order_seq_cst) == fault.signal && slot.covers(fault)) {
    const FaultFunction function = slot.function.load(std::memory_order_relaxed);
    answer = function(slot.owner.load(std::memory_order_relaxed), fault);
  }
  inside(index).fetch_sub(1, std::memory_order_release);
  return answer;
}

// The answers of the watches that this process made, or of those it inherited.
struct Answers {
  bool is_resolved = false;
  bool is_settled = false;
  std::uint64_t generation = 0;
};

void ask_all(const MemoryFault& fault, bool inherited, Answers& answers) {
  const pid_t here = ::getpid();
  const std::size_t count = slots_in_use.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count && !answers.is_resolved; ++i) {
    if (!slots[i].covers(fault)) continue;
    if ((slots[i].process.load(std::memory_order_relaxed) != here) != inherited) continue;
    const FaultAnswer answer = ask(i, fault);
    answers.is_resolved = answer.kind == FaultAnswer::Kind::resolved;
    if (answer.kind != FaultAnswer::Kind::settled) continue;
    answers.is_settled = true;
    answers.generation = mix(answers.generation ^ answer.generation);
  }
}

// A forked child asks its own watches first: what they let through they also record.
bool resolve(const MemoryFault& fault) {
  Answers answers;
  ask_all(fault, false, answers);
  if (!answers.is_resolved) ask_all(fault, true, answers);
  if (answers.is_resolved) return true;
  return answers.is_settled && !is_settled_again(fault, answers.generation);
}

// --- who was there before ---

struct Chained {
  // Two, because somebody may install a handler between our look and our own installing.
  std::array<struct sigaction, 2> seen{};
  std::atomic<const struct sigaction*> previous = nullptr;
  std::atomic<bool> is_reset = false;  // SA_RESETHAND has done its work
};

Chained chained_segv;
Chained chained_bus;

Chained& chained(int signal) {
  return signal == SIGSEGV ? chained_segv : chained_bus;
}

// SA_RESETHAND does not fit into an int.
bool has_flag(const struct sigaction& action, unsigned flag) {
  return (static_cast<unsigned>(action.sa_flags) & flag) != 0;
}

// As the kernel would have it: the mask of the interrupted code and what the function asked for.
// In the kernel's own format, because the mask in a signal frame is that long and no longer.
void apply_mask(int signal, const struct sigaction& action, const ucontext_t& context) {
  constexpr std::size_t kMaskBytes = _NSIG / 8;
  std::array<unsigned char, kMaskBytes> mask{};
  std::array<unsigned char, kMaskBytes> wanted{};
  std::memcpy(mask.data(), &context.uc_sigmask, kMaskBytes);
  sigset_t blocked = action.sa_mask;
  if (!has_flag(action, SA_NODEFER)) sigaddset(&blocked, signal);
  std::memcpy(wanted.data(), &blocked, kMaskBytes);
  for (std::size_t i = 0; i < kMaskBytes; ++i) {
    mask[i] = static_cast<unsigned char>(mask[i] | wanted[i]);
  }
  (void)::syscall(SYS_rt_sigprocmask, SIG_SETMASK, mask.data(), nullptr, kMaskBytes);
}

// Made by the instruction that was interrupted, which makes it again when it is repeated. Signals
// that were sent are not, and neither is the early warning of a memory error.
bool is_real_fault(const siginfo_t& info) {
  return info.si_code > 0 && !(info.si_signo == SIGBUS && info.si_code == BUS_MCEERR_AO);
}

void die_by(int signal, siginfo_t* info) {
  struct sigaction fallback {};
  fallback.sa_handler = SIG_DFL;
  (void)::sigaction(signal, &fallback, nullptr);
  // A real fault comes again as soon as we return. A sent signal has to be sent again.
  if (is_real_fault(*info)) return;
  (void)::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::syscall(SYS_gettid), signal, info);
}

void pass_on(int signal, siginfo_t* info, void* context) {
  Chained& chain = chained(signal);
  const struct sigaction& action = *chain.previous.load(std::memory_order_acquire);
  const bool has_info = has_flag(action, SA_SIGINFO);
  const bool is_default = !has_info && action.sa_handler == SIG_DFL;
  const bool is_ignored = !has_info && action.sa_handler == SIG_IGN;
  if (is_ignored && !is_real_fault(*info)) return;
  const bool resets = has_flag(action, SA_RESETHAND);
  if (is_default || is_ignored || (resets && chain.is_reset.exchange(true))) {
    return die_by(signal, info);
  }
  apply_mask(signal, action, *static_cast<const ucontext_t*>(context));
  if (has_info) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const MemoryFault fault{signal, info->si_code, reinterpret_cast<std::uintptr_t>(info->si_addr)};
  const bool is_resolved = is_real_fault(*info) && resolve(fault);
  errno = saved_errno;
  if (!is_resolved) pass_on(signal, info, context);
}

bool is_ours(const struct sigaction& action) {
  return has_flag(action, SA_SIGINFO) && action.sa_sigaction == on_fault;
}

// Under the lock of install().
Result<void> install_once(int signal) {
  Chained& chain = chained(signal);
  if (chain.previous.load(std::memory_order_relaxed) != nullptr) return {};
  if (auto r = map_thread_counts(); !r) return r;
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  // Nothing may come between: another handler that writes to watched memory could wait for a lock
  // that the interrupted function holds. All bits, because sigfillset() leaves out those of the C
  // library's own, by one of which a thread can be cancelled.
  std::memset(&ours.sa_mask, 0xff, sizeof(ours.sa_mask));
  if (::sigaction(signal, nullptr, &chain.seen[0]) != 0) {
    return system_failure("ask for the handler of a signal", errno);
  }
  // Whether a sent signal interrupts system calls stays as it was.
  const bool is_ignored =
      !has_flag(chain.seen[0], SA_SIGINFO) && chain.seen[0].sa_handler == SIG_IGN;
  if (is_ignored || has_flag(chain.seen[0], SA_RESTART)) ours.sa_flags |= SA_RESTART;
  chain.previous.store(&chain.seen[0], std::memory_order_release);
  if (::sigaction(signal, &ours, &chain.seen[1]) != 0) {
    chain.previous.store(nullptr, std::memory_order_relaxed);
    return system_failure("install the handler of a signal", errno);
  }
  if (!is_ours(chain.seen[1])) chain.previous.store(&chain.seen[1], std::memory_order_release);
  return {};
}

// A leaf, taken under the lock of a tracker.
RankedMutex& install_mutex() {
  static RankedMutex mutex(LockRank::signal_handlers, "signal handlers");
  return mutex;
}

Result<void> install(int signal) {
  const RankedLock lock(install_mutex());
  return install_once(signal);
}

// --- making a watch ---

// A free slot, now in transit. Goes round the table, so that an ended watch is remembered long.
std::size_t claim_slot() {
  const std::size_t start = next_slot.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::size_t index = (start + i) % slots.size();
    int expected = kFree;
    if (slots[index].state.compare_exchange_strong(expected, kInTransit)) return index;
  }
  return SIZE_MAX;
}

void raise_to(std::atomic<std::size_t>& value, std::size_t least) {
  std::size_t now = value.load();
  while (now < least && !value.compare_exchange_weak(now, least)) {
  }
}

bool overlaps(const Slot& slot, int signal, ByteRange range) {
  if (slot.state.load() != signal) return false;
  return !ByteRange{slot.begin.load(), slot.size.load()}.intersect(range).empty();
}

// A forked child may watch what its parent watches.
bool overlaps_another(std::size_t index, int signal, ByteRange range) {
  const pid_t here = ::getpid();
  const std::size_t count = slots_in_use.load();
  for (std::size_t i = 0; i < count; ++i) {
    if (i == index || slots[i].process.load() != here) continue;
    if (overlaps(slots[i], signal, range)) return true;
  }
  return false;
}

}  // namespace

Result<FaultWatch> FaultWatch::add(int signal, ByteRange range, FaultFunction function,
                                   void* owner) {
  if ((signal != SIGSEGV && signal != SIGBUS) || range.empty() || function == nullptr) {
    return failure(ErrorCode::invalid_argument,
                   "cannot watch for faults: only SIGSEGV and SIGBUS, over a range that is not "
                   "empty, can be watched.");
  }
  if (auto r = install(signal); !r) return propagate(r);
  const std::size_t index = claim_slot();
  if (index == SIZE_MAX) {
    return failure(
        ErrorCode::out_of_memory,
        "cannot watch for faults: this process watches 1024 ranges already. Watch fewer, "
        "larger ranges, or use a back end that needs no signals (compare).");
  }
  Slot& slot = slots[index];
  slot.signal.store(signal);
  slot.begin.store(range.begin);
  slot.size.store(range.size);
  slot.function.store(function);
  slot.owner.store(owner);
  slot.process.store(::getpid());
  raise_to(slots_in_use, index + 1);
  slot.state.store(signal);
  FaultWatch watch(index + 1);
  // Looked for after our own range is to be seen: of two that overlap at least one finds the other.
  if (overlaps_another(index, signal, range)) {
    return failure(ErrorCode::already_exists,
                   "cannot watch for faults: a part of the range is watched already, by this or by "
                   "another tracker of the process. Share one tracker; it has several consumers.");
  }
  return watch;
}

bool FaultWatch::is_inherited(int signal, ByteRange range) {
  const pid_t here = ::getpid();
  const std::size_t count = slots_in_use.load();
  return std::any_of(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(count),
                     [&](const Slot& slot) {
                       return slot.process.load() != here && overlaps(slot, signal, range);
                     });
}

Result<void> FaultWatch::check_handler(int signal) {
  const RankedLock lock(install_mutex());
  if (chained(signal).previous.load(std::memory_order_relaxed) == nullptr) return {};
  struct sigaction now {};
  if (::sigaction(signal, nullptr, &now) != 0) {
    return system_failure("ask for the handler of a signal", errno);
  }
  if (is_ours(now)) return {};
  const std::string name = signal == SIGBUS ? "SIGBUS" : "SIGSEGV";
  return failure(ErrorCode::busy,
                 "another handler of " + name +
                     " took the place of the tracker's, and writes to watched memory would end in "
                     "it. Install it before the first tracker that needs the signal, which then "
                     "calls it for what is not its own.");
}

void FaultWatch::end() {
  if (place_ == 0) return;
  const std::size_t index = std::exchange(place_, 0) - 1;
  Slot& slot = slots[index];
  slot.watches_ended.fetch_add(1);
  slot.state.store(kInTransit, std::memory_order_seq_cst);
  while (inside(index).load(std::memory_order_seq_cst) != 0) ::sched_yield();
  slot.state.store(kFree, std::memory_order_release);
}

}  // namespace pagetide
