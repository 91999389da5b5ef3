#include "pagetide/snapshot/file_system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string_view>
#include <thread>

#include "pagetide/base/page_range.h"
#include "pagetide/base/unique_fd.h"
#include "tests/support/crash_file_system.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/skip.h"

namespace pagetide {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// An empty directory, removed with everything in it.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& in = std::filesystem::temp_directory_path())
      : path_(in + "/pagetide-test-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Page-aligned memory full of a pattern.
class PageBuffer {
 public:
  explicit PageBuffer(std::size_t pages)
      : size_(pages * page_size()),
        data_(static_cast<char*>(std::aligned_alloc(page_size(), size_)), &std::free) {
    for (std::size_t i = 0; i < size_; ++i) data_.get()[i] = static_cast<char>('a' + i / 7 % 26);
  }
  const char* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::string_view view() const { return {data(), size()}; }

 private:
  std::size_t size_;
  std::unique_ptr<char, decltype(&std::free)> data_;
};

std::string read_all(const File& file) {
  std::string content(file.size().value(), '?');
  EXPECT_EQ(file.read_at(0, content.data(), content.size()).value(), content.size());
  return content;
}

std::string read_all(FileSystem& fs, const std::string& path) {
  return read_all(*fs.open_read(path).value());
}

void write_file(FileSystem& fs, const std::string& path, std::string_view content) {
  auto file = fs.create(path, WriteMode::buffered);
  ASSERT_TRUE(file) << file.error().message();
  const auto appended = (*file)->append(content.data(), content.size());
  ASSERT_TRUE(appended) << appended.error().message();
}

template <typename T>
ErrorCode code_of(const Result<T>& result) {
  EXPECT_FALSE(result.has_value());
  return result.has_value() ? ErrorCode{} : result.error().code();
}

// What every file system does alike, in a directory of its own.

struct World {
  std::unique_ptr<TemporaryDirectory> directory;  // null for a file system in memory
  std::unique_ptr<FileSystem> owned;
  FileSystem* fs = nullptr;
  std::string root;
};

World posix_world(const std::string& in) {
  World world;
  world.directory = std::make_unique<TemporaryDirectory>(in);
  world.fs = &posix_file_system();
  world.root = world.directory->path();
  return world;
}

World disk_world() {
  return posix_world(std::filesystem::temp_directory_path());
}
World shared_memory_world() {
  return posix_world("/dev/shm");
}

World faulty_world() {
  World world = disk_world();
  world.owned = std::make_unique<FaultyFileSystem>(
      posix_file_system(), [](std::size_t, std::string_view) { return Result<void>(); });
  world.fs = world.owned.get();
  return world;
}

World crash_world() {
  World world;
  world.owned = std::make_unique<CrashFileSystem>();
  world.fs = world.owned.get();
  world.root = "/root";
  EXPECT_TRUE(world.fs->create_directory(world.root));
  return world;
}

struct WorldKind {
  const char* name;
  World (*make)();
};

class FileSystemTest : public ::testing::TestWithParam<WorldKind> {
 protected:
  void SetUp() override {
    world_ = GetParam().make();
    if (world_.root.empty()) PAGETIDE_SKIP("cannot create a temporary directory there");
  }
  FileSystem& fs() { return *world_.fs; }
  std::string path(const std::string& name) const { return world_.root + "/" + name; }

  World world_;
};

INSTANTIATE_TEST_SUITE_P(Every, FileSystemTest,
                         ::testing::Values(WorldKind{"Posix", disk_world},
                                           WorldKind{"PosixSharedMemory", shared_memory_world},
                                           WorldKind{"Faulty", faulty_world},
                                           WorldKind{"Crash", crash_world}),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(FileSystemTest, FileHoldsWhatWasAppended) {
  auto file = fs().create(path("f"), WriteMode::buffered).value();
  ASSERT_TRUE(file->append("hello ", 6));
  ASSERT_TRUE(file->append("", 0));
  ASSERT_TRUE(file->append("world", 5));
  ASSERT_TRUE(file->sync());
  EXPECT_EQ(file->size().value(), 11U);
  EXPECT_EQ(read_all(fs(), path("f")), "hello world");
  EXPECT_EQ(read_all(*file), "hello world");
}

TEST_P(FileSystemTest, ReadIsShortOnlyAtTheEnd) {
  write_file(fs(), path("f"), "0123456789");
  const auto file = fs().open_read(path("f")).value();
  std::array<char, 8> buffer{};
  EXPECT_EQ(file->read_at(3, buffer.data(), 4).value(), 4U);
  EXPECT_EQ(std::string_view(buffer.data(), 4), "3456");
  EXPECT_EQ(file->read_at(7, buffer.data(), buffer.size()).value(), 3U);
  EXPECT_EQ(std::string_view(buffer.data(), 3), "789");
  EXPECT_EQ(file->read_at(10, buffer.data(), buffer.size()).value(), 0U);
  EXPECT_EQ(file->read_at(1 << 20, buffer.data(), buffer.size()).value(), 0U);
}

TEST_P(FileSystemTest, AppendLargerThanOneWrite) {
  std::string content(3 * 1024 * 1024 + 5, ' ');
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 3);
  write_file(fs(), path("f"), content);
  EXPECT_EQ(read_all(fs(), path("f")), content);
}

TEST_P(FileSystemTest, DirectFileHoldsItsPages) {
  const PageBuffer pages(300);  // more than one write
  auto file = fs().create(path("f"), WriteMode::direct_if_possible).value();
  ASSERT_TRUE(file->append(pages.data(), pages.size()));
  ASSERT_TRUE(file->append(pages.data(), page_size()));
  ASSERT_TRUE(file->sync());
  EXPECT_EQ(file->size().value(), pages.size() + page_size());
  const std::string expected = std::string(pages.view()) + std::string(pages.data(), page_size());
  EXPECT_TRUE(read_all(fs(), path("f")) == expected);
}

TEST_P(FileSystemTest, DirectFileIsReadAtAnyOffset) {
  const PageBuffer pages(40);
  auto file = fs().create(path("f"), WriteMode::direct_if_possible).value();
  ASSERT_TRUE(file->append(pages.data(), pages.size()));
  std::string buffer(20 * page_size() + 3, '?');
  EXPECT_EQ(file->read_at(11, buffer.data() + 1, buffer.size() - 1).value(), buffer.size() - 1);
  EXPECT_TRUE(buffer.substr(1) == pages.view().substr(11, buffer.size() - 1));
  EXPECT_EQ(file->read_at(pages.size() - 5, buffer.data(), 100).value(), 5U);
  EXPECT_EQ(buffer.substr(0, 5), pages.view().substr(pages.size() - 5));
  EXPECT_EQ(file->read_at(pages.size(), buffer.data(), 100).value(), 0U);
  EXPECT_EQ(file->read_at(pages.size() + 9, buffer.data(), 100).value(), 0U);
}

TEST_P(FileSystemTest, CreateReplacesAFile) {
  write_file(fs(), path("f"), "a long content");
  write_file(fs(), path("f"), "short");
  EXPECT_EQ(read_all(fs(), path("f")), "short");
}

TEST_P(FileSystemTest, ThreadsReadAtTheSameTime) {
  const PageBuffer pages(16);
  write_file(fs(), path("f"), pages.view());
  const auto file = fs().open_read(path("f")).value();
  std::array<std::size_t, 4> equal{};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      std::string page(page_size(), '?');
      for (std::size_t i = 0; i < 16; ++i) {
        const std::size_t at = (i + t) % 16 * page_size();
        const auto n = file->read_at(at, page.data(), page.size());
        if (n && *n == page.size() && page == pages.view().substr(at, page.size())) ++equal.at(t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, ::testing::Each(16U));
}

TEST_P(FileSystemTest, OpenReadOfNothingIsNotFound) {
  const auto file = fs().open_read(path("f"));
  ASSERT_EQ(code_of(file), ErrorCode::not_found);
  EXPECT_THAT(file.error().message(), HasSubstr(path("f")));
  EXPECT_EQ(file.error().system_errno(), ENOENT);
}

TEST_P(FileSystemTest, CreateInNoDirectoryIsNotFound) {
  EXPECT_EQ(code_of(fs().create(path("d/f"), WriteMode::buffered)), ErrorCode::not_found);
}

TEST_P(FileSystemTest, FileOpenedForReadingTakesNoAppend) {
  write_file(fs(), path("f"), "content");
  EXPECT_EQ(code_of(fs().open_read(path("f")).value()->append("x", 1)), ErrorCode::system_failure);
  EXPECT_EQ(read_all(fs(), path("f")), "content");
}

TEST_P(FileSystemTest, DirectoryIsNotAFile) {
  ASSERT_TRUE(fs().create_directory(path("d")));
  EXPECT_EQ(code_of(fs().open_read(path("d"))), ErrorCode::not_a_store);
  EXPECT_EQ(code_of(fs().create(path("d"), WriteMode::buffered)), ErrorCode::not_a_store);
  EXPECT_EQ(code_of(fs().lock(path("d"))), ErrorCode::not_a_store);
}

TEST_P(FileSystemTest, FileIsNotADirectory) {
  write_file(fs(), path("f"), "content");
  EXPECT_EQ(code_of(fs().list(path("f"))), ErrorCode::not_a_store);
  EXPECT_EQ(code_of(fs().list(path("f/g"))), ErrorCode::not_a_store);
  EXPECT_EQ(code_of(fs().create(path("f/g"), WriteMode::buffered)), ErrorCode::system_failure);
  EXPECT_EQ(code_of(fs().sync_directory(path("f"))), ErrorCode::system_failure);
}

TEST_P(FileSystemTest, CreateDirectoryOnceOnly) {
  ASSERT_TRUE(fs().create_directory(path("d")));
  EXPECT_EQ(code_of(fs().create_directory(path("d"))), ErrorCode::already_exists);
  write_file(fs(), path("f"), "content");
  EXPECT_EQ(code_of(fs().create_directory(path("f"))), ErrorCode::already_exists);
  EXPECT_EQ(code_of(fs().create_directory(path("x/y"))), ErrorCode::not_found);
}

TEST_P(FileSystemTest, ListNamesFilesAndDirectories) {
  EXPECT_THAT(fs().list(world_.root).value(), IsEmpty());
  write_file(fs(), path("f"), "1");
  write_file(fs(), path(".hidden"), "2");
  ASSERT_TRUE(fs().create_directory(path("d")));
  write_file(fs(), path("d/inner"), "3");
  EXPECT_THAT(fs().list(world_.root).value(), UnorderedElementsAre("f", ".hidden", "d"));
  EXPECT_THAT(fs().list(path("d/")).value(), UnorderedElementsAre("inner"));
  EXPECT_EQ(code_of(fs().list(path("x"))), ErrorCode::not_found);
}

TEST_P(FileSystemTest, RenameReplacesTheTarget) {
  write_file(fs(), path("a"), "new");
  write_file(fs(), path("b"), "old");
  ASSERT_TRUE(fs().rename(path("a"), path("b")));
  EXPECT_THAT(fs().list(world_.root).value(), UnorderedElementsAre("b"));
  EXPECT_EQ(read_all(fs(), path("b")), "new");
}

TEST_P(FileSystemTest, RenameIntoAnotherDirectory) {
  ASSERT_TRUE(fs().create_directory(path("d")));
  write_file(fs(), path("a"), "content");
  ASSERT_TRUE(fs().rename(path("a"), path("d/b")));
  EXPECT_EQ(read_all(fs(), path("d/b")), "content");
  EXPECT_THAT(fs().list(world_.root).value(), UnorderedElementsAre("d"));
}

TEST_P(FileSystemTest, RenameOfADirectoryTakesItsFilesAlong) {
  ASSERT_TRUE(fs().create_directory(path("d")));
  write_file(fs(), path("d/f"), "content");
  ASSERT_TRUE(fs().rename(path("d"), path("e")));
  EXPECT_EQ(read_all(fs(), path("e/f")), "content");
  EXPECT_THAT(fs().list(world_.root).value(), UnorderedElementsAre("e"));
}

TEST_P(FileSystemTest, RenameToItselfChangesNothing) {
  write_file(fs(), path("f"), "content");
  ASSERT_TRUE(fs().rename(path("f"), path("f")));
  EXPECT_EQ(read_all(fs(), path("f")), "content");
}

TEST_P(FileSystemTest, ImpossibleRenamesChangeNothing) {
  ASSERT_TRUE(fs().create_directory(path("d")));
  write_file(fs(), path("d/inner"), "1");
  ASSERT_TRUE(fs().create_directory(path("e")));
  write_file(fs(), path("f"), "2");
  EXPECT_EQ(code_of(fs().rename(path("x"), path("y"))), ErrorCode::not_found);
  EXPECT_EQ(code_of(fs().rename(path("f"), path("x/y"))), ErrorCode::not_found);
  EXPECT_EQ(fs().rename(path("f"), path("d")).error().system_errno(), EISDIR);
  EXPECT_EQ(fs().rename(path("d"), path("f")).error().system_errno(), ENOTDIR);
  EXPECT_EQ(fs().rename(path("e"), path("d")).error().system_errno(), ENOTEMPTY);
  EXPECT_THAT(fs().list(world_.root).value(), UnorderedElementsAre("d", "e", "f"));
  EXPECT_THAT(fs().list(path("d")).value(), UnorderedElementsAre("inner"));
}

TEST_P(FileSystemTest, RemoveTakesFilesAndEmptyDirectories) {
  ASSERT_TRUE(fs().create_directory(path("d")));
  write_file(fs(), path("d/f"), "content");
  EXPECT_EQ(fs().remove(path("d")).error().system_errno(), ENOTEMPTY);
  EXPECT_TRUE(fs().remove(path("d/f")));
  EXPECT_TRUE(fs().remove(path("d")));
  EXPECT_EQ(code_of(fs().remove(path("d"))), ErrorCode::not_found);
  EXPECT_THAT(fs().list(world_.root).value(), IsEmpty());
}

TEST_P(FileSystemTest, OpenFileOutlivesItsName) {
  write_file(fs(), path("a"), "content");
  const auto file = fs().open_read(path("a")).value();
  ASSERT_TRUE(fs().rename(path("a"), path("b")));
  EXPECT_EQ(read_all(*file), "content");
  ASSERT_TRUE(fs().remove(path("b")));
  EXPECT_EQ(read_all(*file), "content");
}

TEST_P(FileSystemTest, DirectoriesAreSynced) {
  ASSERT_TRUE(fs().create_directory(path("d")));
  EXPECT_TRUE(fs().sync_directory(path("d")));
  EXPECT_TRUE(fs().sync_directory(world_.root));
  EXPECT_EQ(code_of(fs().sync_directory(path("x"))), ErrorCode::not_found);
}

TEST_P(FileSystemTest, LockIsExclusiveAndNamesItsHolder) {
  auto held = fs().lock(path("lock"));
  ASSERT_TRUE(held) << held.error().message();
  const auto second = fs().lock(path("lock"));
  ASSERT_EQ(code_of(second), ErrorCode::busy);
  EXPECT_THAT(second.error().message(),
              AllOf(HasSubstr(fmt::format("process {}", ::getpid())), HasSubstr(world_.root)));
  EXPECT_TRUE(fs().lock(path("other")));
  held->reset();
  EXPECT_TRUE(fs().lock(path("lock")));
  EXPECT_THAT(fs().list(world_.root).value(), UnorderedElementsAre("lock", "other"));
  EXPECT_EQ(code_of(fs().lock(path("x/lock"))), ErrorCode::not_found);
}

// What only the real one has.

class PosixFileSystemTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(directory_.path().empty()); }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  static FileSystem& fs() { return posix_file_system(); }

  static unsigned mode_of(const std::string& path) {
    struct stat status {};
    EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777U;
  }

  TemporaryDirectory directory_;
};

// A forked child that runs a function, then waits to be told to end. The function returns a line
// that the parent gets.
class Child {
 public:
  explicit Child(const std::function<std::string()>& work) {
    std::array<int, 2> lines{};
    std::array<int, 2> stop{};
    EXPECT_EQ(::pipe2(lines.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(stop.data(), O_CLOEXEC), 0);
    lines_ = UniqueFd(lines[0]);
    stop_ = UniqueFd(stop[1]);
    UniqueFd child_lines(lines[1]);
    UniqueFd child_stop(stop[0]);
    pid_ = ::fork();
    if (pid_ != 0) return;
    stop_.reset();
    const std::string line = work();
    [[maybe_unused]] const ssize_t written = ::write(child_lines.get(), line.data(), line.size());
    child_lines.reset();
    char nothing = 0;
    while (::read(child_stop.get(), &nothing, 1) < 0) {
    }
    ::_exit(0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { end(); }

  pid_t pid() const { return pid_; }
  // Returns when work() has.
  std::string line() {
    std::string text;
    std::array<char, 256> buffer{};
    for (;;) {
      const ssize_t n = ::read(lines_.get(), buffer.data(), buffer.size());
      if (n > 0) text.append(buffer.data(), static_cast<std::size_t>(n));
      if (n == 0 || (n < 0 && errno != EINTR)) return text;
    }
  }
  void end() {
    stop_.reset();
    wait();
  }
  void kill() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    wait();
  }

 private:
  void wait() {
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  UniqueFd lines_;
  UniqueFd stop_;
  pid_t pid_ = -1;
};

template <typename T>
std::string message_of(const Result<T>& result) {
  return result ? "no error" : result.error().message();
}

TEST_F(PosixFileSystemTest, EverythingBelongsToItsOwnerAlone) {
  const mode_t before = ::umask(0);
  EXPECT_TRUE(fs().create_directory(path("d")));
  EXPECT_TRUE(fs().create(path("f"), WriteMode::buffered));
  EXPECT_TRUE(fs().create(path("direct"), WriteMode::direct_if_possible));
  EXPECT_TRUE(fs().lock(path("lock")));
  ::umask(before);
  EXPECT_EQ(mode_of(path("d")), 0700U);
  EXPECT_EQ(mode_of(path("f")), 0600U);
  EXPECT_EQ(mode_of(path("direct")), 0600U);
  EXPECT_EQ(mode_of(path("lock")), 0600U);
}

TEST_F(PosixFileSystemTest, ReplacedFilesBecomePrivate) {
  for (const char* name : {"f", "lock"}) {
    std::ofstream(path(name)) << "old";
    ASSERT_EQ(::chmod(path(name).c_str(), 0666), 0);
  }
  EXPECT_TRUE(fs().create(path("f"), WriteMode::buffered));
  EXPECT_TRUE(fs().lock(path("lock")));
  EXPECT_EQ(mode_of(path("f")), 0600U);
  EXPECT_EQ(mode_of(path("lock")), 0600U);
}

TEST_F(PosixFileSystemTest, CreateAndLockDoNotFollowALink) {
  std::ofstream(path("precious")) << "keep me";
  ASSERT_EQ(::symlink(path("precious").c_str(), path("link").c_str()), 0);
  const auto created = fs().create(path("link"), WriteMode::buffered);
  ASSERT_EQ(code_of(created), ErrorCode::system_failure);
  EXPECT_THAT(created.error().message(), HasSubstr("symbolic link"));
  EXPECT_EQ(code_of(fs().lock(path("link"))), ErrorCode::system_failure);
  EXPECT_EQ(read_all(fs(), path("precious")), "keep me");
}

TEST_F(PosixFileSystemTest, FifoIsRefusedWithoutWaiting) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(code_of(fs().open_read(path("fifo"))), ErrorCode::not_a_store);
  EXPECT_EQ(code_of(fs().create(path("fifo"), WriteMode::buffered)), ErrorCode::not_a_store);
  EXPECT_EQ(code_of(fs().lock(path("fifo"))), ErrorCode::not_a_store);
}

// The flags of this process's descriptor for the file, from /proc; nothing when it has none.
std::optional<int> open_flags(const std::string& path) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry.path(), gone) != std::filesystem::canonical(path)) {
      continue;
    }
    const int fd = std::stoi(entry.path().filename().string());
    return ::fcntl(fd, F_GETFL) | (::fcntl(fd, F_GETFD) == FD_CLOEXEC ? O_CLOEXEC : 0);
  }
  return std::nullopt;
}

TEST_F(PosixFileSystemTest, DescriptorsAreNotInherited) {
  const auto created = fs().create(path("created"), WriteMode::buffered).value();
  std::ofstream(path("read")) << "content";
  const auto read = fs().open_read(path("read")).value();
  const auto lock = fs().lock(path("lock")).value();
  for (const char* name : {"created", "read", "lock"}) {
    const auto flags = open_flags(path(name));
    ASSERT_TRUE(flags) << name;
    EXPECT_NE(*flags & O_CLOEXEC, 0) << name;
  }
}

TEST_F(PosixFileSystemTest, DirectWritesAreUsedWhereTheyCanBe) {
  const UniqueFd probe(
      ::open(path("probe").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  const bool possible = probe.valid();
  const auto direct = fs().create(path("direct"), WriteMode::direct_if_possible).value();
  const auto buffered = fs().create(path("buffered"), WriteMode::buffered).value();
  EXPECT_EQ((open_flags(path("direct")).value() & O_DIRECT) != 0, possible);
  EXPECT_EQ(open_flags(path("buffered")).value() & O_DIRECT, 0);
}

// An odd size is against the contract, and here it stands for a file system that takes O_DIRECT
// when opening and refuses the write.
TEST_F(PosixFileSystemTest, RefusedDirectWriteGoesOnBuffered) {
  const PageBuffer pages(2);
  const auto file = fs().create(path("f"), WriteMode::direct_if_possible).value();
  ASSERT_TRUE(file->append(pages.data(), page_size()));
  ASSERT_TRUE(file->append(pages.data() + page_size(), 123));
  EXPECT_EQ(read_all(*file), pages.view().substr(0, page_size() + 123));
  ASSERT_TRUE(file->append(pages.data(), page_size()));
  ASSERT_TRUE(file->sync());
  EXPECT_EQ(file->size().value(), 2 * page_size() + 123);
}

TEST_F(PosixFileSystemTest, ShortWriteIsContinuedAndTheFailureReported) {
  const auto file = fs().create(path("f"), WriteMode::buffered).value();
  const std::string content(300'000, 'x');
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignored_before = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{200'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto appended = file->append(content.data(), content.size());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, ignored_before);
  ASSERT_EQ(code_of(appended), ErrorCode::system_failure);
  EXPECT_EQ(appended.error().system_errno(), EFBIG);
  EXPECT_THAT(appended.error().message(), AllOf(HasSubstr(path("f")), HasSubstr("ulimit -f")));
  EXPECT_EQ(file->size().value(), 200'000U);
  ASSERT_TRUE(file->append(content.data(), content.size()));
  EXPECT_EQ(file->size().value(), 500'000U);
}

TEST_F(PosixFileSystemTest, ForeignDirectoryIsExplained) {
  ASSERT_TRUE(fs().create_directory(path("d")));
  ASSERT_EQ(::chmod(path("d").c_str(), 0), 0);
  ASSERT_EQ(::chmod(directory_.path().c_str(), 0755), 0);
  const bool is_root = ::geteuid() == 0;
  Child child([&] {
    // Permissions do not bind root.
    if (is_root && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return std::string("setuid");
    const auto created = fs().create(path("d/f"), WriteMode::buffered);
    return std::string(created ? "" : to_string(created.error().code())) + "|" +
           message_of(created);
  });
  const std::string line = child.line();
  EXPECT_THAT(line, AllOf(HasSubstr("permission denied|"),
                          HasSubstr(fmt::format("'{}' belongs to", path("d")))));
  if (is_root) {
    EXPECT_THAT(line, AllOf(HasSubstr("user id 0 "), HasSubstr("runs as user id 65534")));
  }
  ASSERT_EQ(::chmod(path("d").c_str(), 0700), 0);
}

TEST_F(PosixFileSystemTest, ReadOnlyFileSystemIsExplained) {
  ASSERT_TRUE(fs().create_directory(path("mount")));
  Child child([&] {
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      return std::string("cannot mount");
    }
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", path("mount").c_str(), "tmpfs", MS_RDONLY, nullptr) != 0) {
      return std::string("cannot mount");
    }
    return message_of(fs().create(path("mount/f"), WriteMode::buffered)) + "|" +
           message_of(fs().lock(path("mount/lock")));
  });
  const std::string line = child.line();
  if (line == "cannot mount") PAGETIDE_SKIP("needs the right to mount a file system");
  EXPECT_THAT(line, AllOf(HasSubstr("Read-only file system"), HasSubstr("Remount it writable"),
                          HasSubstr("/lock'"), Not(HasSubstr("no error"))));
}

TEST_F(PosixFileSystemTest, LockOfAnotherProcessIsBusyUntilItDies) {
  Child child([&] {
    auto held = fs().lock(path("lock"));
    static_cast<void>(held->release());  // keeps it until the process ends
    return message_of(held);
  });
  ASSERT_EQ(child.line(), "no error");
  const auto refused = fs().lock(path("lock"));
  ASSERT_EQ(code_of(refused), ErrorCode::busy);
  EXPECT_THAT(refused.error().message(),
              AllOf(HasSubstr(directory_.path()),
                    HasSubstr(fmt::format("is being written by process {};", child.pid())),
                    HasSubstr("only read work meanwhile")));
  child.kill();
  EXPECT_TRUE(fs().lock(path("lock")));
}

TEST_F(PosixFileSystemTest, LockOfThisProcessIsToldApart) {
  const auto held = fs().lock(path("lock")).value();
  EXPECT_THAT(fs().lock(path("lock")).error().message(),
              HasSubstr("already open for writing in this process"));
}

TEST_F(PosixFileSystemTest, ForkedChildDoesNotGiveUpTheLockOfItsParent) {
  auto held = fs().lock(path("lock")).value();
  Child child([&] {
    held.reset();
    return std::string("dropped");
  });
  ASSERT_EQ(child.line(), "dropped");
  EXPECT_EQ(code_of(fs().lock(path("lock"))), ErrorCode::busy);
}

TEST_F(PosixFileSystemTest, ForkedChildDoesNotKeepTheLockOfItsParent) {
  auto held = fs().lock(path("lock")).value();
  Child child([] { return std::string("has a copy"); });
  ASSERT_EQ(child.line(), "has a copy");
  held.reset();
  EXPECT_TRUE(fs().lock(path("lock")));
}

TEST_F(PosixFileSystemTest, DeadHolderIsNotNamed) {
  // The holder wrote its number and died; a child of it has the lock still.
  const UniqueFd fd(::open(path("lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(fd.valid());
  Child dead([] { return std::string(); });
  const std::string line = fmt::format("pid {}\n", dead.pid());
  dead.end();
  ASSERT_EQ(::write(fd.get(), line.data(), line.size()), static_cast<ssize_t>(line.size()));
  ASSERT_EQ(::flock(fd.get(), LOCK_EX), 0);
  const auto refused = fs().lock(path("lock"));
  ASSERT_EQ(code_of(refused), ErrorCode::busy);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("another process"), HasSubstr("fuser")));
}

TEST_F(PosixFileSystemTest, ReleasedLockNamesNobody) {
  auto held = fs().lock(path("lock")).value();
  EXPECT_EQ(read_all(fs(), path("lock")), fmt::format("pid {}\n", ::getpid()));
  held.reset();
  EXPECT_EQ(read_all(fs(), path("lock")), "");
}

TEST(ParentDirectory, FollowsTheRulesOfPaths) {
  EXPECT_EQ(parent_directory("a/b"), "a");
  EXPECT_EQ(parent_directory("a"), ".");
  EXPECT_EQ(parent_directory("/a"), "/");
  EXPECT_EQ(parent_directory("/a/b"), "/a");
  EXPECT_EQ(parent_directory("a/b/c"), "a/b");
  EXPECT_EQ(parent_directory("./a"), ".");
}

TEST(ParentDirectory, IgnoresSuperfluousSlashes) {
  EXPECT_EQ(parent_directory("a/b/"), "a");
  EXPECT_EQ(parent_directory("a//b///"), "a");
  EXPECT_EQ(parent_directory("a/"), ".");
  EXPECT_EQ(parent_directory("//a"), "/");
  EXPECT_EQ(parent_directory("/"), "/");
  EXPECT_EQ(parent_directory("//"), "/");
  EXPECT_EQ(parent_directory(""), ".");
}

}  // namespace
}  // namespace pagetide
