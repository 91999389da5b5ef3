#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory_resource>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "pagetide/snapshot/snapshotter.h"
#include "tests/support/arena_image.h"
#include "tests/support/must.h"
#include "tests/support/run_program.h"
#include "tests/support/temporary_directory.h"

namespace pagetide {

using Json = nlohmann::json;

inline std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline void write_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

// Turns one bit of a file around.
inline void flip_bit(const std::string& path, std::size_t offset) {
  std::string content = read_file(path);
  ASSERT_LT(offset, content.size());
  content[offset] = static_cast<char>(content[offset] ^ 0x10);
  write_file(path, content);
}

// Runs the real `pagetide` over a store that a program made: four snapshots, the fourth taken
// after a rollback to the first, with data, zero pages and an untouched middle.
class CliTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kLargeBytes = std::size_t{1} << 20;

  struct Taken {
    SnapshotInfo info;
    ArenaImage image;
    HeapStats stats;
  };

  void SetUp() override {
    using Strings = std::pmr::vector<std::pmr::string>;
    using namespace literals;
    Store store = must(Store::open(store_));
    Arena arena = must(
        Arena::create({.name = "orders", .reserve_bytes = 64_MiB, .clear = ClearPolicy::on_free}));
    Snapshotter snapshotter(arena, store);
    auto* strings = must(arena.find_or_construct<Strings>("strings", arena.resource()));
    for (int i = 0; i < 2000; ++i) strings->emplace_back(std::string(100, 'a'));
    take(snapshotter, arena, store);
    // The second half of the block is written to, but zero.
    char* block = static_cast<char*>(must(arena.allocate(kLargeBytes)));
    std::memset(block, 7, kLargeBytes / 2);
    std::memset(block + kLargeBytes / 2, 0, kLargeBytes / 2);
    must(arena.find_or_construct<long>("counter", 1));
    take(snapshotter, arena, store);
    arena.deallocate(block);
    (*strings)[1000] = "changed";
    take(snapshotter, arena, store);
    must(snapshotter.rollback({1}));
    (*strings)[3] = std::string(100, 'z');
    take(snapshotter, arena, store);
  }

  // Runs `pagetide` with the test's options.
  RunResult run(const std::vector<std::string>& arguments, RunOptions options = {}) const {
    std::vector<std::string> command = {PAGETIDE_CLI_PATH};
    command.insert(command.end(), arguments.begin(), arguments.end());
    options.environment.try_emplace("PAGETIDE_STORE", std::nullopt);
    options.environment.try_emplace("TZ", "UTC");
    return run_program(command, options);
  }
  RunResult run_with_store_variable(const std::vector<std::string>& arguments,
                                    const std::string& directory = {}) const {
    return run(arguments, {.environment = {{"PAGETIDE_STORE", store_}}, .directory = directory});
  }

  std::string segment(int id) const {
    return store_ + "/00000000000" + std::to_string(id) + ".segment";
  }
  std::string manifest(int id) const {
    return store_ + "/00000000000" + std::to_string(id) + ".manifest";
  }

  TemporaryDirectory directory_;
  std::string store_ = directory_.file("orders.pagetide");
  std::map<std::uint64_t, Taken> taken_;  // by id

 private:
  void take(Snapshotter& snapshotter, Arena& arena, Store& store) {
    const SnapshotId id = must(snapshotter.take());
    taken_[id.value] = {must(store.info(id)), image_of(arena), arena.heap().stats()};
  }
};

}  // namespace pagetide
