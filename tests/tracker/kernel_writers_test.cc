#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "tests/support/file_of_text.h"
#include "tests/support/kernel_writers.h"
#include "tests/support/watched_memory.h"

// Memory under the default back end as the target of system calls: what the kernel writes for the
// program arrives, and is reported like the program's own writes.

namespace pagetide {
namespace {

class KernelWriterTest : public UffdAsyncTest, public testing::WithParamInterface<KernelWriter> {};

INSTANTIATE_TEST_SUITE_P(by, KernelWriterTest, testing::ValuesIn(kKernelWriters),
                         [](const auto& writer) { return std::string(writer.param.name); });

TEST_P(KernelWriterTest, what_the_kernel_writes_into_armed_pages_arrives_and_is_reported) {
  WatchedMemory watched(Mapping(16));
  watched.arm();
  // Across a border of pages.
  char* const target = watched.memory().page(4) - 40;
  ASSERT_TRUE(GetParam().write(target)) << std::strerror(errno);
  EXPECT_EQ(std::string(target, kKernelWriterBytes), std::string(kKernelWriterBytes, 'k'));
  EXPECT_EQ(watched.take(), (Pages{3, 4}));
  EXPECT_EQ(watched.take(), Pages());
}

TEST_P(KernelWriterTest, what_the_kernel_writes_into_prefilled_pages_arrives_and_is_reported) {
  WatchedMemory watched(Mapping(16));
  must(watched.tracker().prefill(watched.memory().range(), Prefill::zero_page));
  char* const target = watched.memory().page(4) - 40;
  ASSERT_TRUE(GetParam().write(target)) << std::strerror(errno);
  EXPECT_EQ(std::string(target, kKernelWriterBytes), std::string(kKernelWriterBytes, 'k'));
  EXPECT_EQ(watched.take(), (Pages{3, 4}));
}

TEST_P(KernelWriterTest, what_the_kernel_writes_into_untouched_pages_is_reported) {
  WatchedMemory watched(Mapping(16));
  ASSERT_TRUE(GetParam().write(watched.memory().page(4) - 40)) << std::strerror(errno);
  EXPECT_EQ(watched.take(), (Pages{3, 4}));
}

TEST_F(UffdAsyncTest, direct_reads_into_armed_pages_are_reported) {
  const FileOfText file;
  const UniqueFd direct = file.open(O_RDONLY | O_DIRECT);
  if (!direct.valid()) PAGETIDE_SKIP("the file system of the build directory has no O_DIRECT");
  WatchedMemory watched(Mapping(16));
  watched.arm();
  ASSERT_EQ(::pread(direct.get(), watched.memory().page(6), 2 * page_size(), 0),
            static_cast<ssize_t>(2 * page_size()));
  EXPECT_EQ(*watched.memory().page(6), 'k');
  EXPECT_EQ(watched.take(), (Pages{6, 7}));
}

TEST_F(UffdAsyncTest, random_bytes_into_armed_pages_are_reported) {
  WatchedMemory watched(Mapping(16));
  watched.arm();
  char* const target = watched.memory().page(4) - 128;
  ASSERT_EQ(::getrandom(target, 256, 0), 256);
  // That all of them are what they were has odds of 2^-2048.
  EXPECT_NE(std::string(target, 256), std::string(256, 1));
  EXPECT_EQ(watched.take(), (Pages{3, 4}));
}

TEST_F(UffdAsyncTest, a_futex_in_an_armed_page_wakes_and_its_change_is_reported) {
  WatchedMemory watched(Mapping(4));
  watched.arm();
  auto* const word = reinterpret_cast<std::uint32_t*>(watched.memory().page(2));
  const std::uint32_t before = *word;
  EXPECT_EQ(watched.take(), Pages());
  std::thread sleeper([&] {
    while (std::atomic_ref(*word).load() == before) {
      ::syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, before, nullptr, nullptr, 0);
    }
  });
  std::atomic_ref(*word).store(before + 1);
  ::syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  sleeper.join();
  EXPECT_EQ(watched.take(), (Pages{2}));
}

// FUTEX_WAKE_OP writes to the word itself.
TEST_F(UffdAsyncTest, what_a_futex_operation_writes_is_reported) {
  WatchedMemory watched(Mapping(4));
  watched.arm();
  auto* const word = reinterpret_cast<std::uint32_t*>(watched.memory().page(1));
  auto* const other = reinterpret_cast<std::uint32_t*>(watched.memory().page(3));
  ASSERT_GE(::syscall(SYS_futex, word, FUTEX_WAKE_OP_PRIVATE, 1, 1, other,
                      FUTEX_OP(FUTEX_OP_SET, 77, FUTEX_OP_CMP_EQ, 0)),
            0)
      << std::strerror(errno);
  EXPECT_EQ(*other, 77U);
  EXPECT_EQ(watched.take(), (Pages{3}));
}

std::atomic<int> signals_seen{0};

void count_signal(int) {
  // Something to be written to the stack that the handler runs on.
  std::array<char, 3 * 4096> local{};
  static_cast<volatile char*>(local.data())[0] = 1;
  signals_seen.fetch_add(local[0]);
}

TEST_F(UffdAsyncTest, signal_frames_on_an_armed_alternate_stack_arrive_and_are_reported) {
  constexpr std::size_t kStackPages = 64;  // AVX-512 frames are some KiB, sanitizers want more
  WatchedMemory watched{Mapping(kStackPages)};
  watched.arm();
  stack_t stack{};
  stack_t before{};
  stack.ss_sp = watched.memory().page(0);
  stack.ss_size = kStackPages * page_size();
  ASSERT_EQ(::sigaltstack(&stack, &before), 0);
  struct sigaction action {};
  struct sigaction old {};
  action.sa_handler = count_signal;
  action.sa_flags = SA_ONSTACK;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &old), 0);
  const int seen = signals_seen.load();
  ::raise(SIGUSR1);
  EXPECT_EQ(signals_seen.load(), seen + 1);
  ::sigaction(SIGUSR1, &old, nullptr);
  ::sigaltstack(&before, nullptr);
  const Pages written = watched.take();
  // The frame lies at the upper end.
  EXPECT_TRUE(written.contains(kStackPages - 1));
  EXPECT_FALSE(written.contains(0));
}

TEST_F(UffdAsyncTest, gifted_pages_are_only_read) {
  WatchedMemory watched(Mapping(4));
  watched.arm();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  const iovec part{watched.memory().page(1), page_size()};
  ASSERT_EQ(::vmsplice(write_end.get(), &part, 1, 0), static_cast<ssize_t>(page_size()));
  EXPECT_EQ(watched.take(), Pages());
}

}  // namespace
}  // namespace pagetide
