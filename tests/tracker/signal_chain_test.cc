#include "pagetide/tracker/backends/signal_chain.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/mapping.h"
#include "tests/support/must.h"
#include "tests/support/no_sanitizer_handlers.h"
#include "tests/support/random_source.h"

namespace pagetide {
namespace {

// Only this test's own chain of handlers, whatever ran before in this process: every test that
// installs one does so in a child.
void expect_in_child(const std::function<std::string()>& body, const std::string& end = "") {
  EXPECT_EQ(run_in_child(body), end);
}

void write_near_null() {
  // Volatile: the compiler shall not see what is coming.
  static volatile std::uintptr_t address = 16;
  *reinterpret_cast<volatile char*>(address) = 1;  // NOLINT
}

// --- a watch that makes its page writable again ---

struct Opener {
  explicit Opener(const Mapping& m) : mapping(m) {}
  const Mapping& mapping;
  std::atomic<int> calls{0};
  std::atomic<int> last_code{0};
  std::atomic<std::uintptr_t> last_address{0};

  static FaultAnswer open(void* owner, const MemoryFault& fault) noexcept {
    auto& self = *static_cast<Opener*>(owner);
    self.calls.fetch_add(1);
    self.last_code.store(fault.code);
    self.last_address.store(fault.address);
    errno = ENOTTY;  // to be undone
    const std::size_t page = (fault.address - self.mapping.range().begin) / page_size();
    (void)::mprotect(self.mapping.page(page), page_size(), PROT_READ | PROT_WRITE);
    return {FaultAnswer::Kind::resolved};
  }
};

FaultAnswer always_settled(void*, const MemoryFault&) noexcept {
  return {FaultAnswer::Kind::settled, 7};
}
FaultAnswer never_mine(void*, const MemoryFault&) noexcept {
  return {};
}

Mapping read_only(std::size_t pages) {
  return Mapping(pages, PROT_READ);
}

TEST(SignalChainTest, a_fault_in_a_watched_range_is_resolved_and_the_access_repeated) {
  expect_in_child([]() -> std::string {
    const Mapping mapping = read_only(4);
    Opener opener(mapping);
    const FaultWatch watch = must(FaultWatch::add(SIGSEGV, mapping.range(), Opener::open, &opener));
    mapping.page(2)[77] = 5;
    if (mapping.page(2)[77] != 5) return "not stored";
    if (opener.calls.load() != 1) return "calls";
    if (opener.last_code.load() != SEGV_ACCERR) return "code";
    return opener.last_address.load() == mapping.range().begin + 2 * page_size() + 77 ? ""
                                                                                      : "address";
  });
}

TEST(SignalChainTest, errno_is_what_it_was) {
  expect_in_child([]() -> std::string {
    const Mapping mapping = read_only(1);
    Opener opener(mapping);
    const FaultWatch watch = must(FaultWatch::add(SIGSEGV, mapping.range(), Opener::open, &opener));
    errno = EXDEV;
    mapping.write(0, 1);
    return errno == EXDEV ? "" : "errno changed";
  });
}

TEST(SignalChainTest, bus_errors_are_served_too) {
  expect_in_child([]() -> std::string {
    // A page behind the end of its file.
    const int fd = ::memfd_create("pagetide-test", 0);
    void* p = ::mmap(nullptr, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    static int the_fd;
    the_fd = fd;
    const FaultWatch watch = must(FaultWatch::add(
        SIGBUS, ByteRange::of(p, page_size()),
        [](void*, const MemoryFault& fault) noexcept -> FaultAnswer {
          if (fault.signal != SIGBUS || fault.code != BUS_ADRERR) return {};
          const bool grown = ::ftruncate(the_fd, static_cast<off_t>(page_size())) == 0;
          return {grown ? FaultAnswer::Kind::resolved : FaultAnswer::Kind::not_mine};
        },
        nullptr));
    static_cast<volatile char*>(p)[3] = 9;
    return static_cast<volatile char*>(p)[3] == 9 ? "" : "not stored";
  });
}

TEST(SignalChainTest, each_range_has_its_own_function_up_to_the_last_byte) {
  expect_in_child([]() -> std::string {
    const Mapping mapping = read_only(64);
    std::vector<std::unique_ptr<Opener>> openers;
    std::vector<FaultWatch> watches;
    for (std::size_t i = 0; i < 16; ++i) {
      openers.push_back(std::make_unique<Opener>(mapping));
      watches.push_back(must(
          FaultWatch::add(SIGSEGV, mapping.pages(4 * i, 4), Opener::open, openers.back().get())));
    }
    for (std::size_t page = 0; page < 64; ++page) mapping.page(page)[page_size() - 1] = 1;
    for (std::size_t i = 0; i < 16; ++i) {
      if (openers[i]->calls.load() != 4) return "range " + std::to_string(i);
    }
    return "";
  });
}

// --- what is not ours ---

TEST(SignalChainTest, a_wild_write_kills_by_sigsegv_as_without_us) {
  expect_in_child(
      []() -> std::string {
        const Mapping mapping(1);
        const FaultWatch watch =
            must(FaultWatch::add(SIGSEGV, mapping.range(), always_settled, nullptr));
        write_near_null();
        return "survived";
      },
      "killed by SIGSEGV");
}

TEST(SignalChainTest, a_fault_that_its_watch_does_not_want_kills) {
  expect_in_child(
      []() -> std::string {
        const Mapping mapping = read_only(1);
        const FaultWatch watch =
            must(FaultWatch::add(SIGSEGV, mapping.range(), never_mine, nullptr));
        mapping.write(0, 1);
        return "survived";
      },
      "killed by SIGSEGV");
}

TEST(SignalChainTest, a_fault_that_stays_after_it_was_called_settled_kills_instead_of_repeating) {
  expect_in_child(
      []() -> std::string {
        const Mapping mapping = read_only(1);
        const FaultWatch watch =
            must(FaultWatch::add(SIGSEGV, mapping.range(), always_settled, nullptr));
        ::alarm(20);
        mapping.write(0, 1);
        return "survived";
      },
      "killed by SIGSEGV");
}

TEST(SignalChainTest, a_fault_that_is_called_settled_may_come_back_when_the_generation_moved_on) {
  expect_in_child([]() -> std::string {
    struct Moving {
      const Mapping* mapping;
      std::uint64_t calls;
      static FaultAnswer answer(void* owner, const MemoryFault& fault) noexcept {
        auto& self = *static_cast<Moving*>(owner);
        if (++self.calls < 5) return {FaultAnswer::Kind::settled, self.calls};
        (void)fault;
        (void)::mprotect(self.mapping->page(0), page_size(), PROT_READ | PROT_WRITE);
        return {FaultAnswer::Kind::resolved};
      }
    };
    const Mapping mapping = read_only(1);
    Moving moving{&mapping, 0};
    const FaultWatch watch =
        must(FaultWatch::add(SIGSEGV, mapping.range(), Moving::answer, &moving));
    mapping.write(0, 1);
    return moving.calls == 5 ? "" : "calls";
  });
}

TEST(SignalChainTest, an_ended_watch_is_asked_no_more) {
  expect_in_child(
      []() -> std::string {
        const Mapping mapping = read_only(2);
        Opener opener(mapping);
        FaultWatch watch = must(FaultWatch::add(SIGSEGV, mapping.range(), Opener::open, &opener));
        mapping.write(0, 1);
        watch.end();
        ::alarm(20);
        mapping.write(1, 1);
        return "survived";
      },
      "killed by SIGSEGV");
}

// --- the handlers that were there before ---

std::atomic<int> foreign_calls{0};
std::atomic<int> foreign_errno{0};
std::atomic<void*> foreign_address{nullptr};
sigjmp_buf way_back;

void foreign_with_info(int, siginfo_t* info, void*) {
  foreign_calls.fetch_add(1);
  foreign_errno.store(errno);
  foreign_address.store(info->si_addr);
  siglongjmp(way_back, 1);
}
void foreign_plain(int) {
  foreign_calls.fetch_add(1);
  siglongjmp(way_back, 1);
}

void install(void (*handler)(int), int flags = 0, std::initializer_list<int> also_blocked = {}) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  for (const int signal : also_blocked) sigaddset(&action.sa_mask, signal);
  ::sigaction(SIGSEGV, &action, nullptr);
}
void install(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSEGV, &action, nullptr);
}

// A watch over memory of its own, so that the chain is installed.
struct Installed {
  Mapping mapping = read_only(1);
  Opener opener{mapping};
  FaultWatch watch = must(FaultWatch::add(SIGSEGV, mapping.range(), Opener::open, &opener));
};

TEST(SignalChainTest, a_previous_handler_gets_what_is_not_ours_with_its_details) {
  expect_in_child([]() -> std::string {
    install(foreign_with_info);
    const Installed installed;
    installed.mapping.write(0, 1);
    if (foreign_calls.load() != 0) return "called for ours";
    const Mapping other = read_only(1);
    errno = EXDEV;
    if (sigsetjmp(way_back, 1) == 0) {
      other.page(0)[5] = 1;
      return "no fault";
    }
    if (foreign_calls.load() != 1) return "calls";
#if !defined(__SANITIZE_THREAD__)  // which gives handlers an errno of its own
    if (foreign_errno.load() != EXDEV) return "errno";
#endif
    return foreign_address.load() == other.page(0) + 5 ? "" : "address";
  });
}

TEST(SignalChainTest, a_plain_previous_handler_is_called_each_time) {
  expect_in_child([]() -> std::string {
    install(foreign_plain);
    const Installed installed;
    const Mapping other = read_only(1);
    for (static int i = 0; i < 3; ++i) {
      if (sigsetjmp(way_back, 1) == 0) {
        other.write(0, 1);
        return "no fault";
      }
    }
    return foreign_calls.load() == 3 ? "" : "calls";
  });
}

TEST(SignalChainTest, a_previous_handler_that_resets_itself_is_called_once) {
  expect_in_child(
      []() -> std::string {
        install(foreign_plain, static_cast<int>(SA_RESETHAND));
        const Installed installed;
        const Mapping other = read_only(1);
        if (sigsetjmp(way_back, 1) == 0) other.write(0, 1);
        if (foreign_calls.load() != 1) return "calls";
        if (sigsetjmp(way_back, 1) == 0) other.write(0, 1);
        return "called twice";
      },
      "killed by SIGSEGV");
}

sigset_t mask_seen;

TEST(SignalChainTest, a_previous_handler_runs_with_the_mask_it_asked_for) {
  expect_in_child([]() -> std::string {
    install(
        [](int) {
          ::pthread_sigmask(SIG_BLOCK, nullptr, &mask_seen);
          siglongjmp(way_back, 1);
        },
        0, {SIGUSR1});
    const Installed installed;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    ::pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
    const Mapping other = read_only(1);
    if (sigsetjmp(way_back, 1) == 0) other.write(0, 1);
    for (int signal = 1; signal < SIGRTMIN; ++signal) {
      if (signal == SIGKILL || signal == SIGSTOP) continue;
      const bool wanted = signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGSEGV;
      if ((sigismember(&mask_seen, signal) == 1) != wanted) return strsignal(signal);
    }
    return "";
  });
}

TEST(SignalChainTest, an_ignored_signal_stays_ignored_when_sent_and_kills_when_real) {
  expect_in_child(
      []() -> std::string {
        install(SIG_IGN);
        const Installed installed;
        ::raise(SIGSEGV);
        ::kill(::getpid(), SIGSEGV);
        installed.mapping.write(0, 1);
        if (installed.opener.calls.load() != 1) return "calls";
        write_near_null();
        return "survived";
      },
      "killed by SIGSEGV");
}

TEST(SignalChainTest, a_sent_signal_kills_where_nobody_handled_it_before) {
  expect_in_child(
      []() -> std::string {
        const Installed installed;
        ::kill(::getpid(), SIGSEGV);
        return "survived";
      },
      "killed by SIGSEGV");
}

TEST(SignalChainTest, a_handler_installed_on_top_that_passes_on_keeps_us_working) {
  expect_in_child([]() -> std::string {
    const Installed installed;
    static struct sigaction ours;
    struct sigaction top {};
    top.sa_sigaction = [](int signal, siginfo_t* info, void* context) {
      foreign_calls.fetch_add(1);
      ours.sa_sigaction(signal, info, context);
    };
    top.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &top, &ours);
    installed.mapping.write(0, 1);
    return foreign_calls.load() == 1 && installed.opener.calls.load() == 1 ? "" : "calls";
  });
}

// --- what a handler may not do ---

TEST(SignalChainTest, the_alternate_stack_is_used_where_there_is_one) {
  expect_in_child([]() -> std::string {
    static std::vector<char> stack(64 << 10);
    static std::atomic<bool> on_it{false};
    stack_t alternate{};
    alternate.ss_sp = stack.data();
    alternate.ss_size = stack.size();
    if (::sigaltstack(&alternate, nullptr) != 0) return "sigaltstack";
    const Mapping mapping = read_only(1);
    static const Mapping* the_mapping;
    the_mapping = &mapping;
    const FaultWatch watch = must(FaultWatch::add(
        SIGSEGV, mapping.range(),
        [](void*, const MemoryFault&) noexcept -> FaultAnswer {
          stack_t now{};
          (void)::sigaltstack(nullptr, &now);
          on_it.store((now.ss_flags & SS_ONSTACK) != 0);
          (void)::mprotect(the_mapping->page(0), page_size(), PROT_READ | PROT_WRITE);
          return {FaultAnswer::Kind::resolved};
        },
        nullptr));
    mapping.write(0, 1);
    return on_it.load() ? "" : "not on it";
  });
}

// --- making and ending ---

TEST(SignalChainTest, ranges_that_overlap_are_refused_and_may_be_watched_later) {
  expect_in_child([]() -> std::string {
    const Mapping mapping(8);
    FaultWatch first = must(FaultWatch::add(SIGSEGV, mapping.pages(2, 4), never_mine, nullptr));
    const std::pair<std::size_t, std::size_t> overlapping[] = {{0, 3}, {5, 2}, {3, 1}, {0, 8}};
    for (const auto& [from, count] : overlapping) {
      auto second = FaultWatch::add(SIGSEGV, mapping.pages(from, count), never_mine, nullptr);
      if (second || second.error().code() != ErrorCode::already_exists) return std::to_string(from);
    }
    // Beside it, and for the other signal.
    const FaultWatch beside =
        must(FaultWatch::add(SIGSEGV, mapping.pages(0, 2), never_mine, nullptr));
    const FaultWatch other = must(FaultWatch::add(SIGBUS, mapping.range(), never_mine, nullptr));
    first.end();
    return FaultWatch::add(SIGSEGV, mapping.pages(2, 4), never_mine, nullptr) ? "" : "not freed";
  });
}

TEST(SignalChainTest, wrong_arguments_are_refused) {
  const Mapping mapping(1);
  for (const auto& refused :
       {FaultWatch::add(SIGUSR1, mapping.range(), never_mine, nullptr).has_value(),
        FaultWatch::add(SIGSEGV, {mapping.range().begin, 0}, never_mine, nullptr).has_value(),
        FaultWatch::add(SIGSEGV, mapping.range(), nullptr, nullptr).has_value()}) {
    EXPECT_FALSE(refused);
  }
}

TEST(SignalChainTest, a_full_table_is_an_error_and_a_place_is_used_again) {
  expect_in_child([]() -> std::string {
    const Mapping mapping(FaultWatch::kMaxWatches + 1, PROT_NONE);
    std::vector<FaultWatch> watches;
    for (std::size_t i = 0; i < FaultWatch::kMaxWatches; ++i) {
      watches.push_back(must(FaultWatch::add(SIGSEGV, mapping.pages(i, 1), never_mine, nullptr)));
    }
    const ByteRange one_more = mapping.pages(FaultWatch::kMaxWatches, 1);
    const auto refused = FaultWatch::add(SIGSEGV, one_more, never_mine, nullptr);
    if (refused || refused.error().code() != ErrorCode::out_of_memory) return "not refused";
    if (refused.error().message().find("Watch fewer") == std::string::npos) return "no way out";
    watches[500].end();
    return FaultWatch::add(SIGSEGV, one_more, never_mine, nullptr) ? "" : "not freed";
  });
}

TEST(SignalChainTest, a_moved_watch_is_one_watch) {
  expect_in_child([]() -> std::string {
    const Mapping mapping = read_only(2);
    Opener opener(mapping);
    FaultWatch first = must(FaultWatch::add(SIGSEGV, mapping.range(), Opener::open, &opener));
    FaultWatch second(std::move(first));
    first = FaultWatch();
    mapping.write(0, 1);
    FaultWatch third;
    third = std::move(second);
    mapping.write(1, 1);
    return opener.calls.load() == 2 ? "" : "calls";
  });
}

// Threads fault all the time while watches come and go around them; a watch that has ended must
// not be asked, because what it points to is gone.
TEST(SignalChainTest, watches_come_and_go_while_threads_fault) {
  expect_in_child([]() -> std::string {
    struct Guarded {
      explicit Guarded(const Mapping& m) : opener(m) {}
      ~Guarded() { alive.store(false); }
      Opener opener;
      std::atomic<bool> alive{true};
      static FaultAnswer open(void* owner, const MemoryFault& fault) noexcept {
        auto& self = *static_cast<Guarded*>(owner);
        if (!self.alive.load()) std::abort();
        return Opener::open(&self.opener, fault);
      }
    };
    const Mapping mapping(64);
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> writes{0};
    std::vector<std::thread> writers;
    for (std::size_t t = 0; t < 3; ++t) {
      writers.emplace_back([&, t] {
        RandomSource random(t);
        while (!stop.load(std::memory_order_relaxed)) {
          const auto byte = std::atomic_ref(mapping.page(random.below(64))[t]);
          byte.store(1, std::memory_order_relaxed);
          writes.fetch_add(1, std::memory_order_relaxed);
        }
      });
    }
    RandomSource random(9);
    const std::size_t rounds = scaled(300);
    std::uint64_t faults = 0;
    // On a busy machine the writers may not get a CPU for a while.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    std::size_t round = 0;
    for (; round < rounds || faults == 0; ++round) {
      if (std::chrono::steady_clock::now() > deadline) break;
      const auto guarded = std::make_unique<Guarded>(mapping);
      const std::size_t first = random.below(60);
      const ByteRange range = mapping.pages(first, 4);
      FaultWatch watch = must(FaultWatch::add(SIGSEGV, range, Guarded::open, guarded.get()));
      (void)::mprotect(range.data(), range.size, PROT_READ);
      if (random.one_in(2)) std::this_thread::yield();
      (void)::mprotect(range.data(), range.size, PROT_READ | PROT_WRITE);
      watch.end();
      faults += static_cast<std::uint64_t>(guarded->opener.calls.load());
    }
    stop.store(true);
    for (std::thread& writer : writers) writer.join();
    std::fprintf(stderr, "%llu faults in %zu watches\n", static_cast<unsigned long long>(faults),
                 round);
    return faults > 0 ? "" : "nothing was tried";
  });
}

TEST(SignalChainTest, a_forked_child_inherits_the_watches_and_can_end_them) {
  expect_in_child([]() -> std::string {
    const Mapping mapping = read_only(2);
    Opener opener(mapping);
    FaultWatch watch = must(FaultWatch::add(SIGSEGV, mapping.range(), Opener::open, &opener));
    const std::string in_child = run_in_child([&]() -> std::string {
      mapping.write(0, 1);
      if (opener.calls.load() != 1) return "calls";
      watch.end();
      return "";
    });
    if (!in_child.empty()) return "child: " + in_child;
    mapping.write(0, 1);
    return opener.calls.load() == 1 ? "" : "calls in the parent";
  });
}

// Stays inside until it is told to go on.
struct Slow {
  const Mapping* mapping;
  std::atomic<bool> inside{false};
  std::atomic<bool> go_on{false};
  static FaultAnswer open(void* owner, const MemoryFault&) noexcept {
    auto& self = *static_cast<Slow*>(owner);
    self.inside.store(true);
    while (!self.go_on.load()) ::usleep(100);
    (void)::mprotect(self.mapping->page(0), page_size(), PROT_READ | PROT_WRITE);
    return {FaultAnswer::Kind::resolved};
  }
};

TEST(SignalChainTest, ending_a_watch_waits_for_those_who_are_inside_its_function) {
  expect_in_child([]() -> std::string {
    const Mapping mapping = read_only(1);
    Slow slow{&mapping};
    FaultWatch watch = must(FaultWatch::add(SIGSEGV, mapping.range(), Slow::open, &slow));
    std::thread writer([&] { mapping.write(0, 1); });
    while (!slow.inside.load()) ::usleep(100);
    std::atomic<bool> has_ended{false};
    std::thread ender([&] {
      watch.end();
      has_ended.store(true);
    });
    ::usleep(50'000);
    const bool was_too_early = has_ended.load();
    slow.go_on.store(true);
    writer.join();
    ender.join();
    return was_too_early ? "did not wait" : "";
  });
}

// Ending a watch waits for those inside its function. In a child those threads do not exist.
TEST(SignalChainTest, a_child_forked_while_a_thread_is_inside_does_not_wait_for_it) {
  expect_in_child([]() -> std::string {
    const Mapping mapping = read_only(1);
    Slow slow{&mapping};
    FaultWatch watch = must(FaultWatch::add(SIGSEGV, mapping.range(), Slow::open, &slow));
    std::thread writer([&] { mapping.write(0, 1); });
    while (!slow.inside.load()) ::usleep(100);
    const std::string in_child = run_in_child([&]() -> std::string {
      ::alarm(20);
      watch.end();
      return "";
    });
    slow.go_on.store(true);
    writer.join();
    return in_child;
  });
}

}  // namespace
}  // namespace pagetide
