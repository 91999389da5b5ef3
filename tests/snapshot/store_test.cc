#include "pagetide/snapshot/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

#include "pagetide/base/hash.h"
#include "pagetide/snapshot/snapshotter.h"
#include "pagetide/snapshot/verify.h"
#include "tests/support/arena_image.h"
#include "tests/support/must.h"
#include "tests/support/random_mutator.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_directory.h"

namespace pagetide {
namespace {

using namespace literals;

class StoreTest : public ::testing::Test {
 protected:
  // A store with one snapshot of a small arena; returns the arena's range.
  ByteRange make_store() {
    Store store = must(Store::open(path_));
    Arena arena = must(Arena::create({.name = "store", .reserve_bytes = 32_MiB}));
    RandomMutator(arena, 1).steps(50);
    Snapshotter snapshotter(arena, store);
    must(snapshotter.take());
    return arena.range();
  }
  Error open_error(StoreMode mode) {
    auto store = Store::open(path_, {.mode = mode});
    EXPECT_FALSE(store.has_value());
    return store ? Error(ErrorCode::busy, "") : store.error();
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_.file("store");
};

TEST_F(StoreTest, reading_a_store_that_is_missing_says_so) {
  const Error error = open_error(StoreMode::read);
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_EQ(error.message(),
            "there is no store at " + path_ +
                ". Check the path; a store is made by a program that takes snapshots.");
}

TEST_F(StoreTest, a_directory_with_other_files_is_never_made_a_store) {
  std::filesystem::create_directory(path_);
  std::ofstream(path_ + "/thesis.txt") << "mine";
  EXPECT_EQ(open_error(StoreMode::create_or_write).code(), ErrorCode::not_a_store);
  // Nothing was added to it.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path_), {}), 1);
}

TEST_F(StoreTest, a_file_is_not_a_store) {
  std::ofstream(path_) << "text";
  EXPECT_EQ(open_error(StoreMode::read).code(), ErrorCode::not_a_store);
  EXPECT_EQ(open_error(StoreMode::create_or_write).code(), ErrorCode::not_a_store);
}

TEST_F(StoreTest, a_foreign_root_is_not_a_store) {
  std::filesystem::create_directory(path_);
  std::ofstream(path_ + "/root") << "something else entirely";
  EXPECT_EQ(open_error(StoreMode::read).code(), ErrorCode::not_a_store);
}

TEST_F(StoreTest, a_root_that_is_cut_short_is_damage_wherever_it_was_cut) {
  make_store();
  const auto size = std::filesystem::file_size(path_ + "/root");
  for (std::uintmax_t left = size; left-- > 0;) {
    std::filesystem::resize_file(path_ + "/root", left);
    EXPECT_EQ(open_error(StoreMode::read).code(), ErrorCode::damaged) << left;
  }
}

// Gives a store's root another format version, with a right checksum.
void set_version(const std::string& path, std::uint32_t version) {
  std::fstream root(path + "/root", std::ios::in | std::ios::out | std::ios::binary);
  char record[128];
  root.read(record, sizeof(record));
  std::memcpy(record + 8, &version, sizeof(version));
  const std::uint64_t checksum = hash64(record, 120);
  std::memcpy(record + 120, &checksum, sizeof(checksum));
  root.seekp(0);
  root.write(record, sizeof(record));
}

TEST_F(StoreTest, a_newer_version_is_refused_by_name) {
  make_store();
  set_version(path_, 3);
  const Error error = open_error(StoreMode::read);
  EXPECT_EQ(error.code(), ErrorCode::version_too_new);
  EXPECT_EQ(error.message(), path_ +
                                 "/root has format version 3; this Pagetide reads up to 2. Use a "
                                 "newer Pagetide.");
}

TEST_F(StoreTest, the_version_with_metadata_in_pages_is_refused_and_told_what_to_do) {
  make_store();
  set_version(path_, 1);
  for (const StoreMode mode : {StoreMode::read, StoreMode::write, StoreMode::create_or_write}) {
    const Error error = open_error(mode);
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_EQ(
        error.message(),
        path_ +
            "/root has format version 1, which no release of Pagetide wrote; this one reads "
            "version 2. Begin a new store, or read this one with the Pagetide that wrote it.");
  }
}

TEST_F(StoreTest, a_second_writer_is_refused_and_told_who_writes) {
  Store store = must(Store::open(path_));
  const pid_t child = ::fork();
  if (child == 0) {
    auto second = Store::open(path_);
    const bool named =
        !second && second.error().code() == ErrorCode::busy &&
        second.error().message().find(std::to_string(::getppid())) != std::string::npos;
    ::_exit(named ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(StoreTest, the_lock_is_free_again_when_the_writer_is_gone) {
  { Store store = must(Store::open(path_)); }
  EXPECT_TRUE(Store::open(path_).has_value());
}

TEST_F(StoreTest, a_reader_sees_what_a_writer_commits_meanwhile) {
  Store writer = must(Store::open(path_));
  Arena arena = must(Arena::create({.name = "store", .reserve_bytes = 32_MiB}));
  Snapshotter snapshotter(arena, writer);
  must(snapshotter.take());
  Store reader = must(Store::open(path_, {.mode = StoreMode::read}));
  EXPECT_EQ(must(reader.latest()).value, 1U);
  RandomMutator(arena, 1).steps(50);
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(must(reader.latest()), id);
  EXPECT_EQ(difference(image_of(arena), must(image_of(reader, id))), "");
}

TEST_F(StoreTest, a_reading_store_cannot_be_committed_to) {
  make_store();
  Store reader = must(Store::open(path_, {.mode = StoreMode::read}));
  Arena arena = must(Arena::create({.name = "store", .reserve_bytes = 32_MiB}));
  Snapshotter snapshotter(arena, reader);
  auto id = snapshotter.take();
  ASSERT_FALSE(id.has_value());
  EXPECT_EQ(id.error().code(), ErrorCode::invalid_argument);
}

TEST_F(StoreTest, files_are_readable_by_their_owner_alone) {
  const mode_t old = ::umask(0);
  make_store();
  ::umask(old);
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0700U);
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0600U) << entry.path();
  }
}

TEST_F(StoreTest, a_taken_base_address_is_named_with_its_occupant) {
  const ByteRange range = make_store();
  void* occupant = ::mmap(range.data() + 1_MiB, page_size(), PROT_READ,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_NE(occupant, MAP_FAILED);
  Store store = must(Store::open(path_));
  auto arena = store.open_arena({1});
  ASSERT_FALSE(arena.has_value());
  EXPECT_EQ(arena.error().code(), ErrorCode::address_taken);
  EXPECT_NE(arena.error().message().find("anonymous memory"), std::string::npos)
      << arena.error().message();
  ::munmap(occupant, page_size());
  EXPECT_TRUE(store.open_arena({1}).has_value());
}

// Daemons change their directory after they have opened what they need.
TEST_F(StoreTest, changing_the_working_directory_does_not_change_the_store) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory_.path());
  Store store = must(Store::open("relative"));
  Arena arena = must(Arena::create({.name = "store", .reserve_bytes = 32_MiB}));
  Snapshotter snapshotter(arena, store);
  std::filesystem::current_path("/");
  auto id = snapshotter.take();
  std::filesystem::current_path(before);
  ASSERT_TRUE(id.has_value()) << id.error().message();
  EXPECT_TRUE(std::filesystem::exists(directory_.file("relative/000000000001.manifest")));
}

TEST_F(StoreTest, another_store_that_came_to_the_path_is_not_written_to) {
  Store store = must(Store::open(path_));
  Arena arena = must(Arena::create({.name = "store", .reserve_bytes = 32_MiB}));
  Snapshotter snapshotter(arena, store);
  std::filesystem::rename(path_, directory_.file("moved"));
  {
    Store other = must(Store::open(path_));
    Arena theirs = must(Arena::create({.name = "theirs", .reserve_bytes = 32_MiB}));
    Snapshotter their_snapshotter(theirs, other);
    must(their_snapshotter.take());
  }
  auto id = snapshotter.take();
  ASSERT_FALSE(id.has_value());
  EXPECT_EQ(id.error().code(), ErrorCode::identity_mismatch);
  Store other = must(Store::open(path_));
  EXPECT_EQ(must(other.info({1})).arena, "theirs");
  EXPECT_TRUE(must(verify(other)).sound());
}

TEST_F(StoreTest, a_store_that_was_removed_is_not_written_to) {
  Store store = must(Store::open(path_));
  Arena arena = must(Arena::create({.name = "store", .reserve_bytes = 32_MiB}));
  Snapshotter snapshotter(arena, store);
  std::filesystem::remove_all(path_);
  auto id = snapshotter.take();
  ASSERT_FALSE(id.has_value());
  EXPECT_NE(id.error().message().find("moved, removed or replaced"), std::string::npos)
      << id.error().message();
}

// "Not found" would read as "nothing there yet" to a program that then begins anew.
TEST_F(StoreTest, a_missing_part_of_a_committed_snapshot_is_damage) {
  make_store();
  for (const char* name : {"/000000000001.segment", "/000000000001.manifest", "/root"}) {
    std::filesystem::rename(path_ + name, directory_.file("aside"));
    auto store = Store::open(path_);
    const ErrorCode code = store ? store->open_arena({1}).error().code() : store.error().code();
    EXPECT_EQ(code, ErrorCode::damaged) << name;
    std::filesystem::rename(directory_.file("aside"), path_ + name);
  }
}

TEST_F(StoreTest, an_arena_in_the_way_of_another_is_named) {
  make_store();
  Store store = must(Store::open(path_));
  const Arena first = must(store.open_arena({1}));
  auto second = store.open_arena({1});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code(), ErrorCode::address_taken);
  EXPECT_NE(second.error().message().find("another arena of this process is there"),
            std::string::npos);
}

struct Polymorphic {
  virtual ~Polymorphic() = default;
  int value = 7;
};

TEST_F(StoreTest, code_addresses_of_another_program_are_refused) {
  {
    Store store = must(Store::open(path_));
    Arena arena = must(Arena::create({.name = "code", .reserve_bytes = 32_MiB}));
    must(arena.find_or_construct<Polymorphic>("object"));
    Snapshotter snapshotter(arena, store);
    must(snapshotter.take());
    EXPECT_TRUE(must(store.info({1})).holds_code_addresses);
  }
  {
    Store store = must(Store::open(path_));
    EXPECT_TRUE(store.open_arena({1}).has_value());
  }
  // The same snapshot as if another build had written it.
  const std::string name = path_ + "/000000000001.manifest";
  std::fstream manifest(name, std::ios::in | std::ios::out | std::ios::binary);
  char header[512];
  manifest.read(header, sizeof(header));
  header[96] = static_cast<char>(header[96] ^ 1);
  const std::uint64_t checksum = hash64(header, 504);
  std::memcpy(header + 504, &checksum, sizeof(checksum));
  manifest.seekp(0);
  manifest.write(header, sizeof(header));
  manifest.close();
  Store store = must(Store::open(path_));
  auto arena = store.open_arena({1});
  ASSERT_FALSE(arena.has_value());
  EXPECT_EQ(arena.error().code(), ErrorCode::identity_mismatch);
  EXPECT_TRUE(store.open_arena({1}, {.ignore_program_identity = true}).has_value());
}

TEST_F(StoreTest, plain_data_opens_in_any_program) {
  make_store();
  Store store = must(Store::open(path_));
  EXPECT_FALSE(must(store.info({1})).holds_code_addresses);
}

// Forced: a machine without userfaultfd.
TEST_F(StoreTest, without_userfaultfd_everything_works_by_comparing) {
  ASSERT_EQ(::setenv("PAGETIDE_DISABLE", "userfaultfd", 1), 0);
  {
    Arena arena = must(Arena::create({.name = "fallback", .reserve_bytes = 32_MiB}));
    EXPECT_EQ(arena.tracker().backend(), BackendKind::compare);
    EXPECT_NE(arena.tracker().reason().find("PAGETIDE_DISABLE"), std::string::npos);
    Store store = must(Store::open(path_));
    Snapshotter snapshotter(arena, store);
    RandomMutator mutator(arena, 1);
    mutator.steps(50);
    must(snapshotter.take());
    mutator.steps(50);
    const SnapshotId id = must(snapshotter.take());
    EXPECT_EQ(difference(image_of(arena), must(image_of(store, id))), "");
  }
  auto forced = Arena::create({.reserve_bytes = 32_MiB, .backend = BackendKind::uffd_async});
  ASSERT_FALSE(forced.has_value());
  EXPECT_EQ(forced.error().code(), ErrorCode::unsupported);
  ::unsetenv("PAGETIDE_DISABLE");
}

TEST_F(StoreTest, a_forked_child_cannot_take_snapshots_of_its_parent) {
  Store store = must(Store::open(path_));
  Arena arena = must(Arena::create({.name = "fork", .reserve_bytes = 32_MiB}));
  Snapshotter snapshotter(arena, store);
  RandomMutator mutator(arena, 1);
  mutator.steps(50);
  must(snapshotter.take());
  const pid_t child = ::fork();
  if (child == 0) {
    mutator.steps(50);
    auto id = snapshotter.take();
    auto back = snapshotter.rollback({1});
    const auto is_refused = [](const Error& error) {
      return error.code() == ErrorCode::forked &&
             error.message().starts_with("the arena 'fork' belongs to the parent process: ");
    };
    ::_exit(!id && !back && is_refused(id.error()) && is_refused(back.error()) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(must(store.latest()).value, 1U);
  mutator.steps(50);
  const SnapshotId id = must(snapshotter.take());
  EXPECT_EQ(difference(image_of(arena), must(image_of(store, id))), "");
}

TEST_F(StoreTest, an_arena_that_is_opened_reports_corruption_as_its_options_say) {
  make_store();
  Store store = must(Store::open(path_));
  int reports = 0;
  const auto count = [](const char*, const void*, void* context) { ++*static_cast<int*>(context); };
  Arena arena = must(store.open_arena({1}, {.on_corruption = {count, &reports}}));
  arena.deallocate(&reports);
  EXPECT_EQ(reports, 1);
}

// A real small disk.
class SmallDisk : public StoreTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) PAGETIDE_SKIP("mounting a tmpfs needs root");
    mount_ = directory_.file("disk");
    std::filesystem::create_directory(mount_);
    if (::mount("tmpfs", mount_.c_str(), "tmpfs", 0, "size=1m") != 0) {
      mount_.clear();
      PAGETIDE_SKIP("this sandbox does not allow mounting a tmpfs");
    }
    path_ = mount_ + "/store";
  }
  void TearDown() override {
    if (!mount_.empty()) ::umount(mount_.c_str());
  }
  std::string mount_;
};

TEST_F(SmallDisk, a_full_disk_is_an_error_and_loses_nothing) {
  std::optional<Store> store = must(Store::open(path_));
  Arena arena = must(Arena::create({.name = "full", .reserve_bytes = 32_MiB}));
  auto* block = static_cast<std::byte*>(must(arena.allocate(4_MiB)));
  Snapshotter snapshotter(arena, *store);
  std::memset(block, 1, 200_KiB);
  const SnapshotId first = must(snapshotter.take());
  const ArenaImage then = image_of(arena);
  std::memset(block, 2, 4_MiB);
  auto failed = snapshotter.take();
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().code(), ErrorCode::no_space);
  EXPECT_NE(failed.error().message().find("No space left on device"), std::string::npos);
  EXPECT_EQ(difference(then, must(image_of(*store, first))), "");
  ASSERT_EQ(::mount("tmpfs", mount_.c_str(), "tmpfs", MS_REMOUNT, "size=16m"), 0);
  const SnapshotId second = must(snapshotter.take());
  EXPECT_EQ(difference(image_of(arena), must(image_of(*store, second))), "");
  store.reset();
}

}  // namespace
}  // namespace pagetide
