#include "pagetide/tracker/backends/uffd_sigbus_backend.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <csetjmp>
#include <csignal>
#include <functional>
#include <optional>

#include "tests/support/no_sanitizer_handlers.h"
#include "tests/support/run_program.h"
#include "tests/tracker/allocation_guard.h"
#include "tests/tracker/fault_backend_suite.h"

namespace pagetide {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(uffd_sigbus, FaultBackendTest, testing::Types<UffdSigbusBackend>);

using Memory = Watched<UffdSigbusBackend>;

class UffdSigbusTest : public testing::Test {
 protected:
  void SetUp() override {
    if (auto r = UffdSigbusBackend::probe(); !r) PAGETIDE_SKIP(r.error().message().c_str());
  }
};

// --- system calls: why these arenas must not be their targets ---

TEST_F(UffdSigbusTest,
       what_the_kernel_writes_into_armed_pages_fails_with_EFAULT_and_is_not_stored) {
  Memory watched(Mapping(4));
  watched.arm();
  const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::read(zero.get(), watched.memory().page(2), 10), -1);
  EXPECT_EQ(errno, EFAULT);
  char byte = 5;
  const iovec local{&byte, 1};
  const iovec remote{watched.memory().page(2), 1};
  EXPECT_EQ(::process_vm_writev(::getpid(), &local, 1, &remote, 1, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(*watched.memory().page(2), 1);
  EXPECT_EQ(watched.take(), Pages());
  // The way out is a write of the program's own in front of it.
  watched.memory().write(2, 7);
  EXPECT_EQ(::read(zero.get(), watched.memory().page(2), 10), 10);
  EXPECT_EQ(*watched.memory().page(2), 0);
  EXPECT_EQ(watched.take(), (Pages{2}));
}

TEST_F(UffdSigbusTest, what_the_kernel_writes_into_pages_that_were_never_armed_is_reported) {
  Memory watched(Mapping(4));
  const UniqueFd zero(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::read(zero.get(), watched.memory().page(2), 10), 10);
  EXPECT_EQ(watched.take(), (Pages{2}));
}

// --- what the handler leaves as it was ---

TEST_F(UffdSigbusTest, the_signal_mask_survives_a_fault) {
  Memory watched(Mapping(2));
  watched.arm();
  sigset_t usr1;
  ::sigemptyset(&usr1);
  ::sigaddset(&usr1, SIGUSR1);
  sigset_t before;
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &usr1, &before), 0);
  watched.memory().write(1, 2);
  sigset_t now;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, &now), 0);
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    EXPECT_EQ(::sigismember(&now, signal) == 1,
              signal == SIGUSR1 || ::sigismember(&before, signal) == 1)
        << signal;
  }
}

TEST_F(UffdSigbusTest, a_thread_with_an_alternate_stack_faults_onto_it) {
  Memory watched(Mapping(2));
  watched.arm();
  std::thread([&] {
    Mapping stack(64);
    const stack_t alternate{stack.page(0), 0, stack.range().size};
    ASSERT_EQ(::sigaltstack(&alternate, nullptr), 0);
    watched.memory().write(1, 2);
    EXPECT_GT(resident_pages(stack.range()), 0U);
    const stack_t none{nullptr, SS_DISABLE, 0};
    ASSERT_EQ(::sigaltstack(&none, nullptr), 0);
  }).join();
  EXPECT_EQ(watched.take(), (Pages{1}));
}

TEST_F(UffdSigbusTest, the_handler_allocates_nothing) {
  if (PAGETIDE_COUNTS_ALLOCATIONS == 0) PAGETIDE_SKIP("a sanitizer has an allocator of its own");
  AllocationGuard::violations.store(0);
  AllocationGuard::forbidden = true;
  std::free(std::malloc(1));  // NOLINT: that the guard counts
  AllocationGuard::forbidden = false;
  ASSERT_EQ(AllocationGuard::violations.exchange(0), 2);

  // Also in a thread for which it is the very first fault.
  Memory watched(Mapping(100));
  watched.arm();
  std::thread([&] {
    AllocationGuard::forbidden = true;
    for (std::size_t page = 0; page < 100; ++page) watched.memory().write(page, 2);
    AllocationGuard::forbidden = false;
  }).join();
  EXPECT_EQ(AllocationGuard::violations.load(), 0);
  EXPECT_EQ(watched.take(), all_pages(100));
}

TEST_F(UffdSigbusTest, a_collect_allocates_nothing) {
  if (PAGETIDE_COUNTS_ALLOCATIONS == 0) PAGETIDE_SKIP("a sanitizer has an allocator of its own");
  Memory watched(Mapping(1000));
  DirtyBitmap written(1000);
  for (std::size_t page = 0; page < 1000; page += 3) watched.memory().write(page, 1);
  AllocationGuard::violations.store(0);
  AllocationGuard::forbidden = true;
  bool fine = true;
  for (const CollectMode mode : {CollectMode::peek, CollectMode::take, CollectMode::take}) {
    const ByteRange range = watched.memory().range();
    fine = fine && watched.backend().collect(range, range, mode, written).has_value();
  }
  AllocationGuard::forbidden = false;
  EXPECT_TRUE(fine);
  EXPECT_EQ(AllocationGuard::violations.load(), 0);
}

// --- privilege ---

std::string become_nobody() {
  constexpr uid_t kNobody = 65534;
  if (::setresgid(kNobody, kNobody, kNobody) != 0 || ::setresuid(kNobody, kNobody, kNobody) != 0) {
    return "cannot become nobody";
  }
  // As after an exec: a process that only changed its user may not read its pagemap.
  return ::prctl(PR_SET_DUMPABLE, 1) == 0 ? "" : "prctl";
}

TEST_F(UffdSigbusTest, needs_no_privilege) {
  if (::geteuid() != 0) PAGETIDE_SKIP("only root can become another user");
  EXPECT_EQ(run_in_child([&]() -> std::string {
              if (const std::string wrong = become_nobody(); !wrong.empty()) return wrong;
              const auto r = UffdSigbusBackend::probe();
              return r ? "" : r.error().message();
            }),
            "");
}

TEST(UffdSigbusDisabledTest, says_when_it_is_switched_off) {
  const Environment environment("PAGETIDE_DISABLE", "userfaultfd");
  const auto backend = UffdSigbusBackend::open();
  ASSERT_FALSE(backend);
  EXPECT_EQ(backend.error().code(), ErrorCode::unsupported);
  EXPECT_FALSE(UffdSigbusBackend::probe());
}

// --- SIGBUS that is not ours ---
//
// What was there before is set before the first back end of a process is opened, so each case
// runs in a process of its own: this program again, told by the environment what to do before its
// main() begins.

constexpr const char* kCaseVariable = "PAGETIDE_TEST_SIGBUS_CASE";

// A page behind the end of its file: SIGBUS, until the file is long enough.
class PageBeyondTheFile {
 public:
  PageBeyondTheFile() : fd_(::memfd_create("short", MFD_CLOEXEC)) { map(nullptr, 0); }
  // In the place of memory that is there.
  explicit PageBeyondTheFile(void* place) : fd_(::memfd_create("short", MFD_CLOEXEC)) {
    map(place, MAP_FIXED);
  }
  volatile char* bytes() const { return bytes_; }
  // Async-signal-safe.
  void extend() const { (void)!::ftruncate(fd_.get(), static_cast<off_t>(page_size())); }
  void truncate() const { (void)!::ftruncate(fd_.get(), 0); }

 private:
  void map(void* place, int flags) {
    bytes_ = static_cast<volatile char*>(
        ::mmap(place, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd_.get(), 0));
  }
  UniqueFd fd_;
  volatile char* bytes_ = nullptr;
};

// What the handler that was there before saw.
struct Seen {
  int calls = 0;
  int signal = 0;
  int code = 0;
  void* address = nullptr;
  sigset_t mask{};
};
Seen seen;
const PageBeyondTheFile* foreign = nullptr;
sigjmp_buf jump_target;

void note(int signal) {
  ++seen.calls;
  seen.signal = signal;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &seen.mask);
  if (foreign != nullptr) foreign->extend();
}
void note_plainly(int signal) {
  note(signal);
}
void note_info(int signal, siginfo_t* info, void* context) {
  note(signal);
  seen.code = info->si_code;
  seen.address = info->si_addr;
  if (context == nullptr) seen.calls = -1000;
}
void jump_away(int signal, siginfo_t*, void*) {
  ++seen.calls;
  seen.signal = signal;
  ::siglongjmp(jump_target, 1);
}

struct sigaction info_handler(int flags = 0) {
  struct sigaction action {};
  action.sa_sigaction = note_info;
  action.sa_flags = SA_SIGINFO | flags;
  return action;
}
struct sigaction plain_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  return action;
}

// The state in which a case begins: `previous` set up, then memory watched and armed.
class Scene {
 public:
  explicit Scene(const struct sigaction& previous) {
    ::sigaction(SIGBUS, &previous, nullptr);
    memory_.emplace(Mapping(8));
    memory_->memory().fill(1);
    (void)memory_->take();
  }
  Memory& memory() { return *memory_; }
  // From here on late faults of an ended watch are possible, and every foreign one is tried twice.
  void end_a_watch() {
    const Mapping other(1);
    UffdSigbusBackend backend = must(UffdSigbusBackend::open());
    must(backend.watch(other.range()));
    backend.unwatch(other.range());
  }
  // "" when tracked memory still works.
  std::string check() {
    memory_->memory().write(3, 2);
    memory_->memory().write(5, 2);
    return memory_->take(memory_->memory().pages(0, 7)) == Pages{3, 5} ? "" : "tracking is broken";
  }

 private:
  std::optional<Memory> memory_;
};

std::string expect_one_call(void* address) {
  if (seen.calls != 1) return "calls: " + std::to_string(seen.calls);
  if (seen.signal != SIGBUS) return "signal: " + std::to_string(seen.signal);
  if (address != nullptr && seen.address != address) return "another address";
  return {};
}

std::string touch_foreign_page(Scene& scene, bool has_info) {
  const PageBeyondTheFile page;
  foreign = &page;
  volatile char* const byte = page.bytes() + 77;
  *byte = 5;
  if (*byte != 5) return "not stored";
  if (std::string wrong = expect_one_call(has_info ? const_cast<char*>(byte) : nullptr);
      !wrong.empty()) {
    return wrong;
  }
  if (has_info && seen.code != BUS_ADRERR) return "code: " + std::to_string(seen.code);
  return scene.check();
}

struct Case {
  const char* name;
  int signal;  // that it is to end by; 0: it returns ""
  std::function<std::string()> run;
};

std::string call_siginfo_handler(bool after_the_end_of_a_watch) {
  Scene scene(info_handler());
  if (after_the_end_of_a_watch) scene.end_a_watch();
  return touch_foreign_page(scene, true);
}

std::string call_plain_handler() {
  Scene scene(plain_handler(note_plainly));
  return touch_foreign_page(scene, false);
}

std::string fault_with(void (*disposition)(int), bool after_the_end_of_a_watch) {
  Scene scene(plain_handler(disposition));
  if (after_the_end_of_a_watch) scene.end_a_watch();
  const PageBeyondTheFile page;
  *page.bytes() = 5;
  return "survived";
}

std::string kill_with(void (*disposition)(int)) {
  Scene scene(plain_handler(disposition));
  scene.end_a_watch();
  ::kill(::getpid(), SIGBUS);
  return scene.check();
}

std::string kill_with_handler() {
  Scene scene(info_handler());
  scene.end_a_watch();
  ::kill(::getpid(), SIGBUS);
  if (std::string wrong = expect_one_call(nullptr); !wrong.empty()) return wrong;
  if (seen.code != SI_USER) return "code: " + std::to_string(seen.code);
  return scene.check();
}

std::string jump_out_of_handler() {
  struct sigaction action {};
  action.sa_sigaction = jump_away;
  action.sa_flags = SA_SIGINFO;
  Scene scene(action);
  for (int round = 1; round <= 3; ++round) {
    if (round == 2) scene.end_a_watch();
    const PageBeyondTheFile page;
    if (sigsetjmp(jump_target, 1) == 0) {
      *page.bytes() = 5;
      return "no jump";
    }
    if (seen.calls != round) return "calls: " + std::to_string(seen.calls);
    if (std::string wrong = scene.check(); !wrong.empty()) return wrong;
  }
  return {};
}

std::string fault_twice_in_one_shot_handler() {
  Scene scene(info_handler(static_cast<int>(SA_RESETHAND)));
  if (std::string wrong = touch_foreign_page(scene, true); !wrong.empty()) return wrong;
  const PageBeyondTheFile second;
  *second.bytes() = 5;
  return "survived";
}

// The handler runs with the mask that it was installed for.
std::string check_mask(int flags) {
  struct sigaction action = info_handler(flags);
  ::sigaddset(&action.sa_mask, SIGUSR1);
  sigset_t usr2;
  ::sigemptyset(&usr2);
  ::sigaddset(&usr2, SIGUSR2);
  ::pthread_sigmask(SIG_BLOCK, &usr2, nullptr);
  Scene scene(action);
  if (std::string wrong = touch_foreign_page(scene, true); !wrong.empty()) return wrong;
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    const bool expected =
        signal == SIGUSR1 || signal == SIGUSR2 || (signal == SIGBUS && (flags & SA_NODEFER) == 0);
    if ((::sigismember(&seen.mask, signal) == 1) != expected) {
      return "mask differs in signal " + std::to_string(signal);
    }
  }
  return {};
}

// Watched memory in whose place something else was mapped, which must not loop for ever.
std::string fault_in_the_place_of_watched_memory() {
  Scene scene(info_handler());
  scene.end_a_watch();
  const PageBeyondTheFile page(scene.memory().memory().page(7));
  foreign = &page;
  errno = EXDEV;
  *page.bytes() = 5;
  // The system call of the handler failed.
  if (errno != EXDEV) return "errno";
  if (*page.bytes() != 5) return "not stored";
  if (std::string wrong = expect_one_call(const_cast<char*>(page.bytes())); !wrong.empty()) {
    return wrong;
  }
  return scene.check();
}

// A forked child inherits the handler; a fault of its own, even where its parent watches, is not
// the tracker's, and must not reach the parent's memory.
std::string fault_in_a_forked_child() {
  Scene scene(info_handler());
  const PageBeyondTheFile page;
  page.extend();
  const ByteRange range = ByteRange::of(const_cast<char*>(page.bytes()), page_size());
  UffdSigbusBackend backend = must(UffdSigbusBackend::open());
  must(backend.watch(range));
  *page.bytes() = 1;
  DirtyBitmap written(1);
  must(backend.collect(range, range, CollectMode::take, written));
  page.truncate();
  foreign = &page;
  const std::string wrong = run_in_child([&]() -> std::string {
    ::alarm(20);  // for a handler that tries again for ever
    *page.bytes() = 2;
    return expect_one_call(const_cast<char*>(page.bytes()));
  });
  backend.unwatch(range);
  return wrong.empty() ? scene.check() : wrong;
}

// The file behind watched memory is cut off: a real SIGBUS at a page that is watched and armed.
std::string fault_beyond_the_file_in_watched_memory() {
  ::signal(SIGBUS, SIG_DFL);  // and not that of a sanitizer
  const PageBeyondTheFile page;
  page.extend();
  const ByteRange range = ByteRange::of(const_cast<char*>(page.bytes()), page_size());
  UffdSigbusBackend backend = must(UffdSigbusBackend::open());
  must(backend.watch(range));
  *page.bytes() = 1;
  DirtyBitmap written(1);
  must(backend.collect(range, range, CollectMode::take, written));
  page.truncate();
  ::alarm(20);  // for a handler that tries again for ever
  *page.bytes() = 2;
  return "it was written";
}

std::string refuse_after_being_replaced() {
  Scene scene(info_handler());
  const struct sigaction other = plain_handler(note_plainly);
  struct sigaction ours {};
  ::sigaction(SIGBUS, &other, &ours);
  const auto refused = UffdSigbusBackend::open();
  if (refused) return "it opened";
  if (refused.error().code() != ErrorCode::busy) return refused.error().message();
  ::sigaction(SIGBUS, &ours, nullptr);
  if (const auto again = UffdSigbusBackend::open(); !again) return again.error().message();
  return scene.check();
}

void block_sigbus() {
  sigset_t sigbus;
  ::sigemptyset(&sigbus);
  ::sigaddset(&sigbus, SIGBUS);
  ::pthread_sigmask(SIG_BLOCK, &sigbus, nullptr);
}

std::string write_with_sigbus_blocked() {
  Scene scene(info_handler());
  block_sigbus();
  return scene.check();
}

std::string probe_with_sigbus_blocked() {
  block_sigbus();
  const auto r = UffdSigbusBackend::probe();
  return r ? "" : r.error().message();
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"siginfo_handler", 0, [] { return call_siginfo_handler(false); }},
      {"siginfo_handler_after_a_watch", 0, [] { return call_siginfo_handler(true); }},
      {"plain_handler", 0, call_plain_handler},
      {"fault_beyond_the_file_in_watched_memory", SIGBUS, fault_beyond_the_file_in_watched_memory},
      {"fault_by_default", SIGBUS, [] { return fault_with(SIG_DFL, false); }},
      {"fault_by_default_after_a_watch", SIGBUS, [] { return fault_with(SIG_DFL, true); }},
      {"fault_when_ignored", SIGBUS, [] { return fault_with(SIG_IGN, false); }},
      {"kill_by_default", SIGBUS, [] { return kill_with(SIG_DFL); }},
      {"kill_when_ignored", 0, [] { return kill_with(SIG_IGN); }},
      {"kill_with_handler", 0, kill_with_handler},
      {"jump_out_of_handler", 0, jump_out_of_handler},
      {"one_shot_handler", SIGBUS, fault_twice_in_one_shot_handler},
      {"mask", 0, [] { return check_mask(0); }},
      {"mask_with_nodefer", 0, [] { return check_mask(SA_NODEFER); }},
      {"in_the_place_of_watched_memory", 0, fault_in_the_place_of_watched_memory},
      {"in_a_forked_child", 0, fault_in_a_forked_child},
      {"after_being_replaced", 0, refuse_after_being_replaced},
      {"write_with_sigbus_blocked", SIGBUS, write_with_sigbus_blocked},
      {"probe_with_sigbus_blocked", 0, probe_with_sigbus_blocked},
  };
  return all;
}

// Before main(), which would run tests.
[[maybe_unused]] const bool no_case_asked_for = [] {
  const char* wanted = std::getenv(kCaseVariable);
  if (wanted == nullptr) return true;
  for (const Case& each : cases()) {
    if (each.name != std::string_view(wanted)) continue;
    const std::string wrong = each.run();
    std::printf("%s", wrong.c_str());
    std::fflush(stdout);
    ::_exit(0);
  }
  ::_exit(99);
}();

void PrintTo(const Case& each, std::ostream* out) {
  *out << each.name;
}

class ForeignSigbusTest : public UffdSigbusTest, public testing::WithParamInterface<Case> {};

INSTANTIATE_TEST_SUITE_P(each, ForeignSigbusTest, testing::ValuesIn(cases()),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(ForeignSigbusTest, ends_as_it_would_without_a_tracker) {
  const RunResult result =
      run_program({"/proc/self/exe"}, {.environment = {{kCaseVariable, GetParam().name}}});
  EXPECT_EQ(result.signal, GetParam().signal) << result.out << result.err;
  EXPECT_EQ(result.out, "") << result.err;
  EXPECT_EQ(result.exit_code, GetParam().signal == 0 ? 0 : -1) << result.err;
}

// --- vfork: a child that shares the memory ---

#if !defined(__SANITIZE_THREAD__)  // which makes a fork of it
TEST_F(UffdSigbusTest, a_write_of_a_vfork_child_is_let_through_and_reported) {
  Memory watched(Mapping(4));
  watched.arm();
  const pid_t child = ::vfork();  // NOLINT
  if (child == 0) {
    watched.memory().write(2, 5);
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(*watched.memory().page(2), 5);
  EXPECT_EQ(watched.take(), (Pages{2}));
}
#endif

}  // namespace
}  // namespace pagetide
