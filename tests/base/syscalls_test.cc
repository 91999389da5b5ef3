#include "pagetide/base/syscalls.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <string>
#include <utility>
#include <vector>

#include "pagetide/base/bytes.h"
#include "pagetide/base/unique_fd.h"
#include "tests/support/child_process.h"
#include "tests/support/mapping.h"
#include "tests/support/memory_facts.h"
#include "tests/support/temporary_directory.h"

namespace pagetide {
namespace {

// What the system calls below do instead of their work.
struct Obstacles {
  std::size_t longest_transfer = SIZE_MAX;
  int interruptions = 0;  // so many calls fail with EINTR first
  bool writes_nothing = false;
  int calls = 0;

  bool interrupted() {
    ++calls;
    if (interruptions == 0) return false;
    --interruptions;
    errno = EINTR;
    return true;
  }
};
Obstacles obstacles;

}  // namespace
}  // namespace pagetide

// The library's calls end here, because a program's own functions go before those of libc.
extern "C" {
ssize_t pread(int fd, void* buffer, std::size_t size, off_t offset) {
  auto& o = pagetide::obstacles;
  if (o.interrupted()) return -1;
  return ::syscall(SYS_pread64, fd, buffer, std::min(size, o.longest_transfer), offset);
}
ssize_t pwrite(int fd, const void* buffer, std::size_t size, off_t offset) {
  auto& o = pagetide::obstacles;
  if (o.interrupted()) return -1;
  if (o.writes_nothing) return 0;
  return ::syscall(SYS_pwrite64, fd, buffer, std::min(size, o.longest_transfer), offset);
}
int ioctl(int fd, unsigned long request, ...) noexcept {
  if (pagetide::obstacles.interrupted()) return -1;
  std::va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return static_cast<int>(::syscall(SYS_ioctl, fd, request, argument));
}
int madvise(void* address, std::size_t size, int advice) noexcept {
  auto& o = pagetide::obstacles;
  if (o.interrupted()) {
    errno = o.interruptions % 2 == 0 ? EAGAIN : EINTR;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_madvise, address, size, advice));
}
}

namespace pagetide {
namespace {

using namespace literals;

class SyscallsTest : public testing::Test {
 protected:
  void SetUp() override { obstacles = {}; }
  void TearDown() override { obstacles = {}; }
};

class FileTransferTest : public SyscallsTest {
 protected:
  FileTransferTest()
      : file_(::open(directory_.file("data").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    for (std::size_t i = 0; i < 1000; ++i) text_.push_back(static_cast<char>('a' + i * 7 % 26));
  }
  std::string read(std::size_t size, std::uint64_t offset) {
    std::string buffer(size, '?');
    const ssize_t n = sys::read_full(file_.get(), buffer.data(), size, offset);
    EXPECT_GE(n, 0);
    buffer.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    return buffer;
  }

  TemporaryDirectory directory_;
  UniqueFd file_;
  std::string text_;
};

TEST_F(FileTransferTest, reads_back_what_was_written_at_its_offset) {
  EXPECT_EQ(sys::write_full(file_.get(), text_.data(), text_.size(), 5), 1000);
  EXPECT_EQ(read(1000, 5), text_);
  EXPECT_EQ(read(5, 0), std::string(5, '\0'));
  EXPECT_EQ(read(0, 5), "");
}

TEST_F(FileTransferTest, short_transfers_are_continued) {
  obstacles.longest_transfer = 7;
  EXPECT_EQ(sys::write_full(file_.get(), text_.data(), text_.size(), 3), 1000);
  EXPECT_EQ(read(1000, 3), text_);
  EXPECT_EQ(obstacles.calls, 2 * 143);
}

TEST_F(FileTransferTest, interrupted_transfers_are_repeated) {
  obstacles.interruptions = 3;
  EXPECT_EQ(sys::write_full(file_.get(), text_.data(), text_.size(), 0), 1000);
  obstacles.interruptions = 3;
  EXPECT_EQ(read(1000, 0), text_);
}

TEST_F(FileTransferTest, a_read_is_shorter_only_at_the_end_of_the_file) {
  ASSERT_EQ(sys::write_full(file_.get(), text_.data(), text_.size(), 0), 1000);
  obstacles.longest_transfer = 64;
  EXPECT_EQ(read(400, 700), text_.substr(700));
  EXPECT_EQ(read(400, 1000), "");
}

TEST_F(FileTransferTest, a_failure_gives_the_negative_errno) {
  char buffer[8] = {};
  EXPECT_EQ(sys::read_full(-1, buffer, sizeof(buffer), 0), -EBADF);
  EXPECT_EQ(sys::write_full(-1, buffer, sizeof(buffer), 0), -EBADF);
  const UniqueFd read_only(::open(directory_.file("data").c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(sys::write_full(read_only.get(), buffer, sizeof(buffer), 0), -EBADF);
}

TEST_F(FileTransferTest, a_write_of_nothing_does_not_loop_for_ever) {
  obstacles.writes_nothing = true;
  EXPECT_EQ(sys::write_full(file_.get(), text_.data(), text_.size(), 0), -ENOSPC);
}

TEST_F(SyscallsTest, ioctl_is_repeated_while_a_signal_interrupts_it) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  ASSERT_EQ(::write(writer.get(), "12345", 5), 5);
  obstacles.interruptions = 3;
  int waiting = 0;
  EXPECT_EQ(sys::ioctl(reader.get(), FIONREAD, &waiting), 0);
  EXPECT_EQ(waiting, 5);
  EXPECT_EQ(obstacles.calls, 4);
}

TEST_F(SyscallsTest, ioctl_gives_the_negative_errno) {
  int waiting = 0;
  EXPECT_EQ(sys::ioctl(-1, FIONREAD, &waiting), -EBADF);
}

// Addresses that are free: those of a mapping that was unmapped again.
ByteRange free_address_range(std::size_t pages) {
  return Mapping(pages).range();
}

TEST_F(SyscallsTest, a_reservation_is_at_its_base_and_not_usable_yet) {
  const ByteRange range = free_address_range(16);
  ASSERT_EQ(sys::reserve_address_range(range), 0);
  EXPECT_EQ(run_in_child([&] {
              *reinterpret_cast<volatile char*>(range.data()) = 1;
              return std::string("wrote to a reservation");
            }),
            "killed by SIGSEGV");
  ASSERT_EQ(sys::protect_read_write({range.begin, page_size()}), 0);
  std::memset(range.data(), 7, page_size());
  EXPECT_EQ(sys::release_address_range(range), 0);
  EXPECT_TRUE(is_unmapped(range));
}

TEST_F(SyscallsTest, a_reservation_replaces_nothing) {
  const Mapping mapping(4);
  mapping.fill(42);
  EXPECT_EQ(sys::reserve_address_range(mapping.range()), -EEXIST);
  EXPECT_EQ(sys::reserve_address_range(mapping.pages(3, 1)), -EEXIST);
  EXPECT_EQ(std::count(mapping.page(0), mapping.page(4), 42),
            static_cast<std::ptrdiff_t>(mapping.range().size));
}

TEST_F(SyscallsTest, a_reservation_without_size_or_off_a_page_is_invalid) {
  const ByteRange range = free_address_range(2);
  EXPECT_EQ(sys::reserve_address_range({range.begin, 0}), -EINVAL);
  EXPECT_EQ(sys::reserve_address_range({range.begin + 1, page_size()}), -EINVAL);
}

TEST_F(SyscallsTest, protecting_what_is_not_mapped_fails) {
  EXPECT_EQ(sys::protect_read_write(free_address_range(2)), -ENOMEM);
}

TEST_F(SyscallsTest, advice_reaches_the_kernel_however_often_it_is_put_off) {
  const Mapping mapping(2);
  mapping.fill(42);
  obstacles.interruptions = 4;
  EXPECT_EQ(sys::advise(mapping.pages(1, 1), MADV_DONTNEED), 0);
  EXPECT_EQ(*mapping.page(0), 42);
  EXPECT_EQ(*mapping.page(1), 0);
  EXPECT_EQ(sys::advise(free_address_range(1), MADV_DONTNEED), -ENOMEM);
}

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}
int open_something() {
  return ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

TEST(UniqueFdTest, closes_at_its_end) {
  int number = -1;
  {
    const UniqueFd fd(open_something());
    number = fd.get();
    EXPECT_TRUE(fd.valid());
    EXPECT_TRUE(is_open(number));
  }
  EXPECT_FALSE(is_open(number));
}

TEST(UniqueFdTest, moving_leaves_one_owner) {
  UniqueFd first(open_something());
  const int number = first.get();
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT: what a moved-from descriptor is, is the point
  EXPECT_EQ(second.get(), number);
  UniqueFd third(open_something());
  const int replaced = third.get();
  third = std::move(second);
  EXPECT_EQ(third.get(), number);
  EXPECT_FALSE(is_open(replaced));
  EXPECT_TRUE(is_open(number));
}

TEST(UniqueFdTest, release_gives_up_ownership) {
  UniqueFd fd(open_something());
  const UniqueFd owner(fd.release());
  EXPECT_FALSE(fd.valid());
  EXPECT_TRUE(is_open(owner.get()));
}

TEST(UniqueFdTest, closing_keeps_errno) {
  // An invalid number makes close() itself set errno.
  UniqueFd fd(1'000'000);
  errno = ENOSPC;
  fd.reset();
  EXPECT_EQ(errno, ENOSPC);
}

}  // namespace
}  // namespace pagetide
