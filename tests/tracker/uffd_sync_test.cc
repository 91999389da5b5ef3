#include "pagetide/tracker/backends/uffd_sync_backend.h"

#include <dirent.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string_view>

#include "pagetide/tracker/kernel/kernel_abi.h"
#include "tests/support/kernel_writers.h"
#include "tests/support/no_sanitizer_handlers.h"
#include "tests/tracker/allocation_guard.h"
#include "tests/tracker/fault_backend_suite.h"

namespace pagetide {
namespace {

using testing::HasSubstr;

INSTANTIATE_TYPED_TEST_SUITE_P(uffd_sync, FaultBackendTest, testing::Types<UffdSyncBackend>);

using Memory = Watched<UffdSyncBackend>;

constexpr const char* kHandlerName = "pagetide-uffd";

class UffdSyncTest : public testing::Test {
 protected:
  void SetUp() override {
    if (auto r = UffdSyncBackend::probe(); !r) PAGETIDE_SKIP(r.error().message().c_str());
  }
};

// --- the kernel as the writer ---

// All but /proc/PID/mem, which does not wait for a handler; see below.
std::vector<KernelWriter> waiting_kernel_writers() {
  std::vector<KernelWriter> writers(std::begin(kKernelWriters), std::end(kKernelWriters));
  std::erase_if(
      writers, [](const auto& writer) { return std::string_view(writer.name) == "proc_self_mem"; });
  return writers;
}

class SyncKernelWriterTest : public UffdSyncTest,
                             public testing::WithParamInterface<KernelWriter> {};

INSTANTIATE_TEST_SUITE_P(by, SyncKernelWriterTest, testing::ValuesIn(waiting_kernel_writers()),
                         [](const auto& writer) { return std::string(writer.param.name); });

TEST_P(SyncKernelWriterTest, what_the_kernel_writes_into_armed_pages_arrives_and_is_reported) {
  Memory watched(Mapping(16));
  watched.arm();
  // Across a border of pages.
  char* const target = watched.memory().page(4) - 40;
  ASSERT_TRUE(GetParam().write(target)) << std::strerror(errno);
  EXPECT_EQ(std::string(target, kKernelWriterBytes), std::string(kKernelWriterBytes, 'k'));
  EXPECT_EQ(watched.take(), (Pages{3, 4}));
  EXPECT_EQ(watched.take(), Pages());
}

TEST_P(SyncKernelWriterTest, what_the_kernel_writes_into_prefilled_pages_arrives_and_is_reported) {
  for (const Prefill policy : {Prefill::zero_page, Prefill::marker, Prefill::none}) {
    Memory watched(Mapping(16));
    must(watched.backend().prefill(watched.memory().range(), policy));
    char* const target = watched.memory().page(4) - 40;
    ASSERT_TRUE(GetParam().write(target)) << std::strerror(errno);
    EXPECT_EQ(std::string(target, kKernelWriterBytes), std::string(kKernelWriterBytes, 'k'));
    EXPECT_EQ(watched.take(), (Pages{3, 4})) << to_string(policy);
  }
}

// The kernel lets these not wait for a handler. Debuggers write this way.
TEST_F(UffdSyncTest, writes_through_proc_mem_into_armed_pages_fail_with_EIO_and_are_not_stored) {
  Memory watched(Mapping(4));
  watched.arm();
  const UniqueFd memory(::open("/proc/self/mem", O_RDWR | O_CLOEXEC));
  const auto write = [&](std::size_t page) {
    const auto offset =
        static_cast<off_t>(reinterpret_cast<std::uintptr_t>(watched.memory().page(page)));
    return ::pwrite(memory.get(), "k", 1, offset);
  };
  EXPECT_EQ(write(2), -1);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(*watched.memory().page(2), 1);
  EXPECT_EQ(watched.take(), Pages());
  // Into a page that is dirty already they work, and it is reported.
  watched.memory().write(2, 7);
  EXPECT_EQ(write(2), 1);
  EXPECT_EQ(*watched.memory().page(2), 'k');
  EXPECT_EQ(watched.take(), (Pages{2}));
}

TEST_F(UffdSyncTest, direct_reads_into_armed_pages_are_reported) {
  const FileOfText file;
  const UniqueFd direct = file.open(O_RDONLY | O_DIRECT);
  if (!direct.valid()) PAGETIDE_SKIP("the file system of the build directory has no O_DIRECT");
  Memory watched(Mapping(16));
  watched.arm();
  ASSERT_EQ(::pread(direct.get(), watched.memory().page(6), 2 * page_size(), 0),
            static_cast<ssize_t>(2 * page_size()));
  EXPECT_EQ(*watched.memory().page(6), 'k');
  EXPECT_EQ(watched.take(), (Pages{6, 7}));
}

// --- the handler threads ---

// A field of /proc/self/task/*/status of every thread with the handlers' name.
std::vector<std::string> handler_fields(const std::string& field) {
  std::vector<std::string> found;
  DIR* const tasks = ::opendir("/proc/self/task");
  for (const dirent* entry = ::readdir(tasks); entry != nullptr; entry = ::readdir(tasks)) {
    std::ifstream status("/proc/self/task/" + std::string(entry->d_name) + "/status");
    std::string name;
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("Name:\t", 0) == 0) name = line.substr(6);
      if (line.rfind(field + ":\t", 0) == 0 && name == kHandlerName) {
        found.push_back(line.substr(field.size() + 2));
      }
    }
  }
  ::closedir(tasks);
  return found;
}

TEST_F(UffdSyncTest, there_are_as_many_handlers_as_asked_for_and_none_is_left) {
  EXPECT_EQ(handler_fields("Tgid").size(), 0U);
  {
    const UffdSyncBackend one = must(UffdSyncBackend::open());
    EXPECT_EQ(handler_fields("Tgid").size(), 1U);
    const UffdSyncBackend more = must(UffdSyncBackend::open({.handler_threads = 3}));
    EXPECT_EQ(handler_fields("Tgid").size(), 4U);
  }
  EXPECT_EQ(handler_fields("Tgid").size(), 0U);
}

TEST_F(UffdSyncTest, handlers_block_every_signal_and_the_opener_none) {
  sigset_t before;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &before), 0);
  const UffdSyncBackend backend = must(UffdSyncBackend::open());
  sigset_t after;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, nullptr, &after), 0);
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    EXPECT_EQ(::sigismember(&before, signal), ::sigismember(&after, signal)) << signal;
  }
  const std::vector<std::string> blocked = handler_fields("SigBlk");
  ASSERT_EQ(blocked.size(), 1U);
  // SIGKILL and SIGSTOP cannot be, and the two that the C library uses itself are not.
  const std::uint64_t never = 1ULL << (SIGKILL - 1) | 1ULL << (SIGSTOP - 1) | 3ULL << 31U;
  EXPECT_EQ(std::stoull(blocked[0], nullptr, 16) | never, ~0ULL);
}

TEST_F(UffdSyncTest, several_handlers_lose_nothing) {
  RandomSource random;
  constexpr std::size_t kPages = 256;
  Memory watched(Mapping(kPages), must(UffdSyncBackend::open({.handler_threads = 4})));
  watched.arm();
  for (std::size_t round = 0; round < scaled(40); ++round) {
    std::vector<std::thread> writers;
    for (std::size_t i = 0; i < 4; ++i) {
      writers.emplace_back([&, i] {
        for (std::size_t page = i; page < kPages; page += 4) watched.memory().write(page, 2);
      });
    }
    for (std::thread& writer : writers) writer.join();
    ASSERT_EQ(watched.take(), all_pages(kPages));
  }
}

TEST_F(UffdSyncTest, a_handler_allocates_nothing) {
  if (PAGETIDE_COUNTS_ALLOCATIONS == 0) PAGETIDE_SKIP("a sanitizer has an allocator of its own");
  AllocationGuard::violations.store(0);
  AllocationGuard::forbidden_thread.store(kHandlerName);
  std::thread([] {
    ::prctl(PR_SET_NAME, kHandlerName);
    std::free(std::malloc(1));  // NOLINT: that the guard counts
  }).join();
  EXPECT_GE(AllocationGuard::violations.exchange(0), 2);
  {
    Memory watched(Mapping(100));
    watched.arm();
    for (std::size_t page = 0; page < 100; ++page) watched.memory().write(page, 2);
    EXPECT_EQ(watched.take(), all_pages(100));
    EXPECT_EQ(AllocationGuard::violations.load(), 0);
  }
  AllocationGuard::forbidden_thread.store(nullptr);
}

TEST_F(UffdSyncTest, options_that_cannot_work_are_refused) {
  for (const UffdSyncOptions& options :
       {UffdSyncOptions{.handler_threads = 0},
        UffdSyncOptions{.watchdog = std::chrono::milliseconds(-1)}}) {
    const auto backend = UffdSyncBackend::open(options);
    ASSERT_FALSE(backend);
    EXPECT_EQ(backend.error().code(), ErrorCode::invalid_argument);
  }
}

// --- the watchdog ---

// The userfaultfd that was opened last.
int newest_userfaultfd() {
  int newest = -1;
  for (int fd = 0; fd < 1024; ++fd) {
    std::array<char, 64> target{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), target.data(), target.size() - 1) < 0) continue;
    if (std::string_view(target.data()) == "anon_inode:[userfaultfd]") newest = fd;
  }
  return newest;
}

// A writer that waits for a fault of which no handler knows: as a kernel leaves it that parks a
// thread on a fault already resolved. Here a thief reads the message before the handler does.
// Gives how many were stolen while the writer got through to the end.
std::size_t steal_faults(std::chrono::milliseconds watchdog, std::size_t wanted) {
  Memory watched(Mapping(64), must(UffdSyncBackend::open({.watchdog = watchdog})));
  const int uffd = newest_userfaultfd();
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> stolen{0};
  std::thread thief([&] {
    while (!stop.load()) {
      uffd_msg message{};
      if (stolen.load() < wanted && ::read(uffd, &message, sizeof(message)) > 0)
        stolen.fetch_add(1);
    }
  });
  while (stolen.load() < wanted) {
    watched.arm();
    for (std::size_t page = 0; page < 64; ++page) watched.memory().write(page, 2);
    EXPECT_EQ(watched.take(), all_pages(64));
  }
  stop.store(true);
  thief.join();
  return stolen.load();
}

TEST_F(UffdSyncTest, a_writer_whose_fault_is_lost_is_woken_by_the_watchdog) {
  EXPECT_EQ(steal_faults(std::chrono::milliseconds(10), 3), 3U);
}

TEST_F(UffdSyncTest, without_the_watchdog_it_would_wait_for_ever) {
  EXPECT_EQ(run_in_child([]() -> std::string {
              ::alarm(2);
              steal_faults(std::chrono::milliseconds(0), 3);
              return "woken";
            }),
            "killed by SIGALRM");
}

// --- privilege ---

TEST_F(UffdSyncTest, refuses_with_the_way_out_where_only_user_mode_faults_are_possible) {
  if (::geteuid() != 0) PAGETIDE_SKIP("only root can become another user");
  std::ifstream sysctl("/proc/sys/vm/unprivileged_userfaultfd");
  if (int allowed = 0; sysctl >> allowed && allowed == 1) {
    PAGETIDE_SKIP("vm.unprivileged_userfaultfd is 1: everybody may");
  }
  EXPECT_THAT(run_in_child([&]() -> std::string {
                constexpr uid_t kNobody = 65534;
                if (::setresgid(kNobody, kNobody, kNobody) != 0) return "gid";
                if (::setresuid(kNobody, kNobody, kNobody) != 0) return "uid";
                const auto backend = UffdSyncBackend::open();
                if (backend) return "it opened";
                if (backend.error().code() != ErrorCode::permission_denied) return "other code";
                return backend.error().message().substr(0, 240);
              }),
              testing::StartsWith(
                  "cannot open userfaultfd for faults of the kernel: cannot open /dev/userfaultfd: "
                  "Permission denied, and the system call is not permitted. With user-mode faults "
                  "alone, read(2) and the like into tracked memory would fail with EFAULT. "));
}

TEST(UffdSyncDisabledTest, says_when_it_is_switched_off) {
  const Environment environment("PAGETIDE_DISABLE", "userfaultfd");
  const auto backend = UffdSyncBackend::open();
  ASSERT_FALSE(backend);
  EXPECT_EQ(backend.error().code(), ErrorCode::unsupported);
  EXPECT_FALSE(UffdSyncBackend::probe());
}

}  // namespace
}  // namespace pagetide
