// `pagetide export`: the image is the memory, and a file that is there is complete.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <span>
#include <thread>

#include "pagetide/base/unique_fd.h"
#include "pagetide/snapshot/format.h"
#include "tests/tools/cli_fixture.h"

namespace pagetide {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

class CliExportTest : public CliTest {
 protected:
  RunResult export_to(const std::string& path, const std::string& id,
                      std::vector<std::string> more = {}, RunOptions options = {}) const {
    std::vector<std::string> arguments = {"export", store_, id, "--raw", "-o", path};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments, std::move(options));
  }

  // What the memory was when the snapshot was taken, page by page.
  std::string expected(std::uint64_t id) const {
    const Taken& taken = taken_.at(id);
    std::string bytes(taken.info.image_pages * page_size(), '\0');
    for (const auto& [page, content] : taken.image)
      bytes.replace(page * page_size(), page_size(), content);
    return bytes;
  }

  std::string image_ = directory_.file("image");
};

TEST_F(CliExportTest, IsTheMemoryPageForPage) {
  for (const auto& [id, taken] : taken_) {
    const std::string path = image_ + std::to_string(id);
    const RunResult result = export_to(path, std::to_string(id));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out + result.err, "");
    // Not EXPECT_EQ, which would print megabytes.
    EXPECT_TRUE(read_file(path) == expected(id)) << "snapshot " << id;
  }
}

TEST_F(CliExportTest, IsSparseAndForItsOwnerAlone) {
  ASSERT_EQ(export_to(image_, "1").exit_code, 0);
  struct stat status {};
  ASSERT_EQ(::stat(image_.c_str(), &status), 0);
  EXPECT_EQ(static_cast<std::uint64_t>(status.st_size),
            taken_.at(1).info.image_pages * page_size());
  // st_blocks counts 512 bytes; what is stored, and some of the file system's own.
  EXPECT_LT(static_cast<std::uint64_t>(status.st_blocks) * 512,
            (taken_.at(1).image.size() + 64) * page_size());
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
}

TEST_F(CliExportTest, ToStandardOutputIsTheSame) {
  const RunResult result = export_to("-", "2");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(result.out == expected(2));
  const RunResult latest = export_to("-", "latest");
  EXPECT_TRUE(latest.out == expected(4));
}

TEST_F(CliExportTest, RefusesAPlaceInsideAStore) {
  for (const std::string name : {"/root", "/000000000009.segment", "/image"}) {
    const RunResult result = run({"export", store_, "2", "--raw", "--force", "-o", store_ + name});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("is inside a store"));
  }
  EXPECT_EQ(run({"verify", store_}).exit_code, 0);
}

TEST_F(CliExportTest, RefusesATerminal) {
  const UniqueFd terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal.valid());
  const RunResult result = export_to("-", "1", {}, {.stdout_fd = terminal.get()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("terminal"));
}

TEST_F(CliExportTest, KeepsAFileThatExistsUnlessForced) {
  write_file(image_, "precious");
  const RunResult refused = export_to(image_, "1");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("exists"), HasSubstr("--force")));
  EXPECT_EQ(read_file(image_), "precious");
  EXPECT_EQ(export_to(image_, "1", {"--force"}).exit_code, 0);
  EXPECT_TRUE(read_file(image_) == expected(1));
}

TEST_F(CliExportTest, FollowsALinkInsteadOfReplacingIt) {
  const std::string link = directory_.file("link");
  write_file(image_, "precious");
  fs::create_symlink(image_, link);
  EXPECT_EQ(export_to(link, "1").exit_code, 2);
  EXPECT_EQ(read_file(image_), "precious");
  EXPECT_EQ(export_to(link, "1", {"--force"}).exit_code, 0);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(read_file(image_) == expected(1));
}

TEST_F(CliExportTest, RefusesWhatIsNoRegularFile) {
  // Never a device: run by root, a command that fails this test would replace it.
  const std::string fifo = directory_.file("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {fifo, directory_.path()}) {
    const RunResult result = export_to(path, "1", {"--force"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("not a regular file"));
  }
  EXPECT_TRUE(fs::is_fifo(fifo));
}

TEST_F(CliExportTest, LeavesNothingBehindWhenItFails) {
  // The damaged page is the last of the image, so everything before it was written.
  flip_bit(segment(4), fs::file_size(segment(4)) - 1);
  const RunResult damaged = export_to(image_, "4");
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.err, HasSubstr("is damaged"));
  fs::remove(segment(2));
  EXPECT_EQ(export_to(image_, "2").exit_code, 1);
  EXPECT_EQ(export_to(directory_.file("missing/image"), "1").exit_code, 3);
  EXPECT_EQ(export_to(image_, "9").exit_code, 3);
  // A limit on file sizes stands for the full disk: the write fails in the same place.
  const RunResult limited =
      run_program({"sh", "-c", "ulimit -f 64 && exec \"$@\"", "sh", PAGETIDE_CLI_PATH, "export",
                   store_, "1", "--raw", "-o", image_});
  EXPECT_EQ(limited.exit_code, 3);
  EXPECT_THAT(limited.err,
              AllOf(HasSubstr("cannot write '" + image_), HasSubstr("File too large")));
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(directory_.path())) left.push_back(entry.path());
  EXPECT_THAT(left, ElementsAre(store_));
}

TEST_F(CliExportTest, FailsWithThreeWhenStandardOutputIsFull) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const RunResult result = export_to("-", "1", {}, {.stdout_fd = full.get()});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("No space left"));
}

TEST_F(CliExportTest, NeverWritesMessagesIntoTheImage) {
  // Without care the image would be opened under the number of the stream that is closed.
  for (const int out : {RunOptions::kCapture, RunOptions::kClosed}) {
    const RunResult result = export_to(image_, "1", {"--progress", "--force"},
                                       {.stdout_fd = out, .stderr_fd = RunOptions::kClosed});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_TRUE(read_file(image_) == expected(1));
  }
}

TEST_F(CliExportTest, APageBeyondTheEndOfTheImageIsDamage) {
  // A manifest with right checksums that says less than what its parent holds.
  const auto bytes_of = [](const std::string& text) { return std::as_bytes(std::span(text)); };
  const auto root = must(format::decode_root(bytes_of(read_file(store_ + "/root")), "root"));
  auto forged = must(format::decode_manifest(bytes_of(read_file(manifest(4))), root.uuid, 4,
                                             root.seed, "manifest"));
  const format::Extent& last = forged.delta.back();
  forged.header.image_pages = last.first_page + last.page_count;
  ASSERT_LT(forged.header.image_pages, taken_.at(4).image.rbegin()->first);
  const auto bytes = format::encode(forged, root.seed);
  write_file(manifest(4), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const RunResult result = export_to(image_, "4");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("its image ends at"));
  EXPECT_FALSE(fs::exists(image_));
}

// Fills a pipe that nobody reads, so that whoever writes to it waits.
UniqueFd full_pipe(UniqueFd& read_end) {
  std::array<int, 2> ends{-1, -1};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  read_end.reset(ends[0]);
  UniqueFd write_end(ends[1]);
  const int flags = ::fcntl(write_end.get(), F_GETFL);
  EXPECT_EQ(::fcntl(write_end.get(), F_SETFL, flags | O_NONBLOCK), 0);
  while (::write(write_end.get(), "x", 1) == 1) {
  }
  EXPECT_EQ(::fcntl(write_end.get(), F_SETFL, flags), 0);
  return write_end;
}

TEST_F(CliExportTest, RemovesThePartialFileWhenItIsTerminated) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    UniqueFd read_end;
    const UniqueFd blocked = full_pipe(read_end);
    bool was_there = false;
    // It waits in the middle of the export for its progress to be read.
    const auto terminate = [&](pid_t pid) {
      const std::string partial = image_ + ".partial-" + std::to_string(pid);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (std::chrono::steady_clock::now() < deadline && !was_there) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        std::error_code ignored;
        const auto size = fs::file_size(partial, ignored);
        was_there = !ignored && size > 0;
      }
      ::kill(pid, signal);
    };
    const RunResult result =
        export_to(image_, "1", {"--progress"}, {.stderr_fd = blocked.get(), .on_start = terminate});
    EXPECT_TRUE(was_there);
    EXPECT_EQ(result.signal, signal);
    std::vector<std::string> left;
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      left.push_back(entry.path());
    EXPECT_THAT(left, ElementsAre(store_));
  }
}

TEST_F(CliExportTest, TakesTheStoreFromTheEnvironment) {
  const RunResult result = run_with_store_variable({"export", "3", "--raw", "-o", image_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(read_file(image_) == expected(3));
}

}  // namespace
}  // namespace pagetide
